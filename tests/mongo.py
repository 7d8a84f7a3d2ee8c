"""A MongoDB for tests: the embedded stand-in, or a real replica set from PENSTOCK_MONGODB_URL."""

import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pymongo

from penstock.feeds import Following
from penstock.feeds.mongodb import MongoFeed, MongoSettings
from penstock.feeds.mongodb.feed import PARTITION
from penstock.model.page import Page
from penstock.model.position import Bookmark
from tests.servers import Secantus

REAL = os.environ.get("PENSTOCK_MONGODB_URL", "")


@dataclass(frozen=True, slots=True)
class Shop:
    """A database of its own."""

    url: str
    name: str
    client: "pymongo.MongoClient[dict[str, Any]]"

    @property
    def db(self) -> Any:
        return self.client[self.name]

    def settings(self, **more: Any) -> MongoSettings:
        return MongoSettings(**{"connection": self.url, "database": self.name, **more})

    def feed(self, **more: Any) -> MongoFeed:
        return MongoFeed(self.settings(**more))


@contextmanager
def mongodb(**options: object) -> Iterator[str]:
    """The URL of a server; of the stand-in, unless there is a real one."""
    if REAL:
        yield REAL
        return
    with Secantus(options={"sync-on-commit": False, "enable-test-commands": True, **options}) as it:
        yield it.url


@contextmanager
def shop_on(url: str) -> Iterator[Shop]:
    """A fresh database."""
    name = f"t{uuid.uuid4().hex[:12]}"
    with pymongo.MongoClient(url, serverMonitoringMode="poll") as client:
        yield Shop(url, name, client)
        client.drop_database(name)


@contextmanager
def follow(feed: MongoFeed, bookmark: Bookmark) -> Iterator[Following]:
    found = feed.follow(PARTITION, bookmark)
    try:
        yield found
    finally:
        found.close()


def pages(following: Following, count: int, *, seconds: float = 60) -> list[Page]:
    """Pages until there are `count` changes."""
    found: list[Page] = []
    deadline = time.monotonic() + seconds
    while sum(page.count for page in found) < count:
        assert time.monotonic() < deadline, f"{sum(page.count for page in found)} of {count}"
        found += following.read(0.2)
    return found


def rows(feed: MongoFeed, found: list[Page], images: str = "json") -> list[dict[str, Any]]:
    """The decoded changes."""
    decoder = feed.decoder("json" if images == "json" else "msgpack", "dead-letter")
    return [row for page in found for batch in decoder.decode(page) for row in batch.to_pylist()]
