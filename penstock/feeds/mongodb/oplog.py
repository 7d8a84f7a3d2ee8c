"""What the server says of itself: its clock, how far its oplog reaches back, its collections."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from bson.timestamp import Timestamp

from penstock.feeds.mongodb.cluster import hello_of, is_sharded, oldest_in
from penstock.feeds.mongodb.connect import Client, address, connect
from penstock.feeds.mongodb.failures import code_of, translating
from penstock.feeds.mongodb.settings import ALL, MongoSettings
from penstock.model.errors import SettingsError

_OWN = ("admin", "config", "local")
# Codes of a right that is missing: Unauthorized, and AtlasError.
_DENIED = (13, 8000)


@contextmanager
def asking(settings: MongoSettings) -> Iterator[Client]:
    """A client for a few questions."""
    with translating(f"asking {address(settings)}"), connect(settings) as client:
        yield client


def time_of(reply: Mapping[str, Any]) -> int:
    """The newest operation that the answering server knows: seconds * 2**32 + counter."""
    found = reply.get("operationTime")
    return found.time << 32 | found.inc if isinstance(found, Timestamp) else 0


def asked(client: Client, command: str) -> dict[str, Any]:
    """The answer of the server where the client reads, which needs no primary."""
    found: dict[str, Any] = client.admin.command(command, read_preference=client.read_preference)
    return found


def operation_time(settings: MongoSettings) -> int:
    """The same, asked for now. Raises Unavailable, SettingsError."""
    with asking(settings) as client:
        return time_of(asked(client, "ping"))


def reach(settings: MongoSettings) -> tuple[int, str]:
    """The cluster time of the oldest entry of the oplog; 0 where there is none that we may read,
    and why. Raises Unavailable, SettingsError."""
    try:
        with asking(settings) as client:
            if is_sharded(hello_of(client)):
                return 0, "the oplogs of a sharded cluster cannot be read through mongos"
            found = oldest_in(client)
    except SettingsError as error:
        if error.__cause__ is None or code_of(error.__cause__) not in _DENIED:
            raise
        return 0, f"the oplog cannot be read ({error.message})"
    return found, "" if found else "there is no oplog"


def oldest(settings: MongoSettings) -> int:
    """The beginning. Raises Unavailable, and SettingsError where it cannot be known."""
    found, why = reach(settings)
    if not found:
        raise SettingsError(
            why,
            hint="begin now, or at a time that the oplog reaches back to; `penstock check` names"
            " the role that may read it",
        )
    return found


def collections(settings: MongoSettings) -> Sequence[tuple[str, str]]:
    """(database, collection), those that are followed and exist, by name."""
    with asking(settings) as client:
        names = (
            [each for each in client.list_database_names() if each not in _OWN]
            if settings.database == ALL
            else [settings.database]
        )
        pairs = [
            (name, each["name"])
            for name in names
            for each in client[name].list_collections()
            if each.get("type", "collection")
            == "collection"  # views and time series have no stream
            and not each["name"].startswith("system.")
        ]
    return sorted(pair for pair in pairs if settings.takes(*pair))
