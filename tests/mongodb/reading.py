"""Reading a scripted mongod with the feed, as a pipeline does."""

import time
from collections.abc import Callable
from typing import Any

from penstock.feeds import Gap
from penstock.feeds.mongodb import MongoFeed, MongoSettings
from penstock.feeds.mongodb.feed import PARTITION
from penstock.model.errors import PenstockError, PositionLost, Unavailable
from penstock.model.position import Bookmark, PartitionId, Place
from penstock.reading.reader import PartitionReader
from tests.mongo import rows
from tests.mongodb.server import ScriptedMongod


def settings_of(server: ScriptedMongod, **more: Any) -> MongoSettings:
    given = {"connection": server.url, "database": "shop", "connect_timeout": 2, **more}
    return MongoSettings.model_validate(given)


def feed_of(server: ScriptedMongod, **more: Any) -> MongoFeed:
    return MongoFeed(settings_of(server, **more))


class Reading:
    """A `PartitionReader` and its `GapRecorder`. Waits between tries are skipped, and `clock` is
    the reader's."""

    def __init__(self, feed: MongoFeed, bookmark: Bookmark) -> None:
        self.now = 100.0
        self.feed = feed
        self.gaps: list[Gap] = []
        self.ends: list[str] = []
        self.errors: list[PenstockError] = []
        self.rows: list[dict[str, Any]] = []
        self.reader = PartitionReader(feed, PARTITION, bookmark, self, clock=lambda: self.now)

    def verify(self, partition: PartitionId) -> None:
        """See `GapRecorder`."""

    def lost(self, partition: PartitionId, gap: Gap, bookmark: Bookmark, *, to: str = "") -> None:
        """See `GapRecorder`."""
        if to:
            self.ends.append(to)
        else:
            self.gaps.append(gap)

    def step(self) -> PenstockError | None:
        """One step; its error."""
        step = self.reader.step(0.05)
        self.rows += rows(self.feed, list(step.pages))
        if step.error is not None:
            self.errors.append(step.error)
        elif step.wait:
            self.now += step.wait  # for a second answer
        return step.error

    def until(self, done: Callable[[], Any], *, seconds: float = 60) -> Any:
        """Steps until it is true, through whatever may be tried again; returns what it gave."""
        deadline = time.monotonic() + seconds
        while not (found := done()):
            assert time.monotonic() < deadline, (self.errors[-3:], self.gaps, len(self.rows))
            error = self.step()
            assert error is None or isinstance(error, Unavailable), error
        return found

    def loss(self) -> PositionLost:
        """Steps until one has lost its position, which the server says twice."""
        while not isinstance(error := self.step(), PositionLost):
            assert error is None or isinstance(error, Unavailable), error
        return error

    def read(self, count: int) -> list[str]:
        """The ids of the first `count` changes."""
        self.until(lambda: len(self.rows) >= count)
        return [row["document_id"] for row in self.rows]

    @property
    def causes(self) -> list[str]:
        return [gap.cause for gap in self.gaps]

    @property
    def places(self) -> list[Place]:
        return [Place(row["cursor"], row["ordinal"]) for row in self.rows]

    def bookmark(self) -> Bookmark:
        """Of all that was read."""
        found = self.reader.bookmark(self.reader.read_to)
        assert found is not None
        return found

    def close(self) -> None:
        self.reader.disconnect()


Read = Callable[..., Reading]
Serve = Callable[..., ScriptedMongod]
