"""Services that `penstock prove` tries: what is made at one of a user's own, and always removed."""

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from penstock.feeds import Feed, GapPolicy
from penstock.model.errors import SettingsError
from penstock.model.position import Bookmark, PartitionId
from penstock.process.plugins import driver
from penstock.testing import living
from penstock.testing.claims import NotTried, Trial
from penstock.testing.feeds import following, read, take
from penstock.testing.living import Stage

# Scheme of a URL -> the module of the service.
_MODULES = {
    "postgresql": "postgres",
    "postgres": "postgres",
    "nats": "nats",
    "tls": "nats",
    "mongodb": "mongodb",
    "mongodb+srv": "mongodb",
    "dynamodb": "dynamodb",
    "cosmos": "cosmos",
}  # fmt: skip


# Among the parameters of a URL.
_SECRET = re.compile(r"[?&][^=&]*(?:pass|secret|token|key)[^=&]*=([^&]+)", re.IGNORECASE)


class TriedService(ABC):
    """A service of a user's own. Constructing one does no I/O. Inherit from it."""

    kind: str
    drivers: Sequence[str]
    """Distributions whose versions matter."""
    needs: str
    """What its login must be allowed to do."""
    price: str = ""
    """What it costs, in a sentence; "" for nothing."""

    makes: str
    """What is made and removed, for people; `{}` is the name that all of it begins with."""

    def __init__(self, url: str, given: Mapping[str, str]) -> None:
        self.url, self.given = url, given
        self.name = f"penstock_prove_{secrets.token_hex(4)}"
        self.makes = self.makes.format(self.name)
        self.secrets = secrets_of(url)
        """What must not be printed."""

    @abstractmethod
    def make(self) -> None:
        """Makes it. Raises SettingsError, Unavailable, or the driver's errors."""

    @abstractmethod
    def version(self) -> str:
        """The service's, as it says it."""

    @abstractmethod
    def trials(self) -> Generator[Trial]:
        """Each is to be called before the next is asked for."""

    @abstractmethod
    def remove(self) -> None:
        """Removes all that was made, also where making it was interrupted. Idempotent."""


class SourceService(TriedService, Stage):
    """A service with changes."""

    stays: str
    """Why nothing is split or moved."""

    @abstractmethod
    def reader(self, policy: GapPolicy = "fail") -> Feed:
        """A feed of what was made."""

    @contextmanager
    def feed(self) -> Iterator[Feed]:
        yield self.reader()

    def move(self) -> None:
        raise NotTried(self.stays)

    def trials(self) -> Generator[Trial]:
        return living.trials_of(self)

    def read_some(self, feed: Feed) -> tuple[PartitionId, Bookmark]:
        """Makes some changes and reads them: a partition, and a bookmark in it."""
        begun = feed.begin("now")
        self.insert([uuid4().hex for _ in range(8)])
        pages = read(feed, begun, 8, self.patience)
        name = pages[0].partition
        number = sum(page.count for page in pages if page.partition == name)
        with following(feed, name, begun[name], self.patience) as found:
            last = take([found], number, self.patience)[-1].last
            bookmark = found.bookmark(last)
        assert bookmark is not None
        return name, bookmark


@dataclass(frozen=True)
class Loss:
    """A `LostHistory`. `feed` is the service's `reader`."""

    feed: Callable[[GapPolicy], Feed]
    partition: PartitionId
    bookmark: Bookmark
    causes: Sequence[str]
    insert: Callable[[Sequence[str]], None]

    def write(self) -> None:
        self.insert([uuid4().hex for _ in range(20)])  # some to each partition


def service_of(url: str, **given: Any) -> TriedService:
    """The service of a URL. `given`: what its URL cannot have, of which it takes what it knows.
    Raises SettingsError, which repeats nothing of it."""
    scheme = url.partition(":")[0]
    if (module := _MODULES.get(scheme)) is None:
        raise SettingsError(
            "no service that is known has such a URL", "cli.prove-url",
            hint="write postgresql://..., nats://..., mongodb://..., dynamodb://REGION or cosmos://...",
        )  # fmt: skip
    build: Callable[..., TriedService] = driver(f"{__name__}.{module}").build
    return build(url, {name: value for name, value in given.items() if value})


def secrets_of(url: str) -> list[str]:
    """Passwords, tokens and keys that a URL has, or several by commas: as they are there and as
    they are meant."""
    found = list[str]()
    for each in (url, *url.split(",")):
        login = each.partition("://")[2].rpartition("@")[0]
        is_token = ":" not in login and each.startswith(("nats:", "tls:"))
        found += [login if is_token else login.partition(":")[2]]
    found += [match[1] for match in _SECRET.finditer(url)]
    return [text for secret in found if secret for text in (secret, unquote(secret))]
