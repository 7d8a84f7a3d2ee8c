"""Where a backend goes on, by what its store and its sink know; and what is said of it."""

import time
from pathlib import Path
from typing import Any

import pytest
import structlog

from penstock.feeds import HistoryLost
from penstock.feeds.postgres import PostgresFeed
from penstock.model.position import Bookmark, PartitionId, Place
from penstock.reading.positions import Positions
from penstock.service.beginning import resume
from penstock.service.ownership import positions_of
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSink
from tests.servers import Database, Nats
from tests.service.pipelines import pipeline_of
from tests.sinks.jetstream.raw import Raw
from tests.slots import drop_slot

pytestmark = pytest.mark.live

REPEATS = "what was delivered after that comes again"
AFTER = "resuming after them"
UNTOLD = "does not say how far it is"


class Start:
    """A pipeline's start, up to where its query would begin."""

    def __init__(self, folder: Path, database: Database, nats: Nats, stream: str) -> None:
        self.folder, self.database, self.nats, self.stream = folder, database, nats, stream
        self.slot = PartitionId(f"s_{database.name}")
        database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE t")
        self.configure()

    def configure(self, **sink: Any) -> None:
        self.pipeline = pipeline_of(
            {"name": "default", "type": "postgres", "connection": self.database.url,
             "slot": self.slot, "publication": "p"},
            sink={"type": "jetstream", "url": self.nats.url, "stream": self.stream,
                  "subject": f"{self.stream}.{{operation}}", **sink},
            folder=self.folder,
        )  # fmt: skip
        feed, made = self.pipeline.backends[0].feed(), self.pipeline.sink.sink()
        assert isinstance(feed, PostgresFeed)
        assert isinstance(made, JetStreamSink)
        self.feed, self.sink = feed, made

    @property
    def positions(self) -> Positions:
        return positions_of(self.pipeline, "default", "")

    def run(self) -> str:
        """What the log says; "" if nothing."""
        self.sink.prepare()
        with structlog.testing.capture_logs() as logs:
            resume(self.pipeline.backends[0], self.positions, self.sink)
        return "; ".join(f"{each['log_level']}: {each['event']}" for each in logs)

    def carry(self, *numbers: int) -> Place:
        """Rows of these ids go from the table to the stream; the place of the last."""
        for number in numbers:
            self.database.execute("INSERT INTO t VALUES (%s)", [number])
        following = self.feed.follow(self.slot)
        decoder, left, place = self.feed.decoder("json"), len(numbers), None
        deadline = time.monotonic() + 30
        while left:
            assert time.monotonic() < deadline
            for page in following.read(0.2):
                left -= page.count
                self.sink.write(decoder.decode(page), ignore)
                place = page.last
        following.close()
        assert place is not None
        return place

    def empty(self) -> None:
        Raw(self.nats.url).api._call(f"STREAM.PURGE.{self.stream}", {})

    def forget(self) -> None:
        """The positions store is lost."""
        positions = self.positions
        positions.load()
        positions.forget([self.slot])

    def drop_slot(self) -> None:
        drop_slot(self.database, self.slot)

    @property
    def has_slot(self) -> bool:
        query = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s"
        return self.database.execute(query, [self.slot]) == [(1,)]

    @property
    def stored(self) -> Bookmark | None:
        return self.positions.load().get(self.slot)

    def store(self, place: Place) -> None:
        positions = self.positions
        positions.load()
        positions.save({self.slot: Bookmark(place, {})}, force=True)


@pytest.fixture
def start(database: Database, nats: Nats, stream: str, tmp_path: Path) -> Start:
    return Start(tmp_path, database, nats, stream)


def test_a_first_start_makes_the_slot(start: Start) -> None:
    assert start.run() == ""
    assert start.has_slot
    stored = start.stored
    assert stored is not None
    assert stored.place is None
    assert stored.mark
    assert stored.mark["flushed"], "what another slot of this name would not promise"
    assert start.run() == ""
    assert start.stored == stored, "it begins once"


def test_behind_a_stored_position_nothing_is_made_or_said(start: Start) -> None:
    start.run()
    place = start.carry(1, 2)
    start.store(place)
    start.drop_slot()
    assert start.run() == ""
    assert not start.has_slot
    assert start.stored == Bookmark(place, {})


def test_behind_a_stored_position_an_emptied_stream_may_get_changes_again(start: Start) -> None:
    start.run()
    place = start.carry(1, 2)
    start.store(place)
    start.empty()
    assert REPEATS in start.run()
    assert start.stored == Bookmark(place, {})


def test_without_a_position_the_stream_says_where_to_go_on(start: Start) -> None:
    start.run()
    place = start.carry(1, 2)
    start.drop_slot()
    start.forget()
    assert AFTER in start.run()
    assert start.stored == Bookmark(place, {})
    assert not start.has_slot


@pytest.mark.parametrize("why", ["emptied", "no record"])
def test_a_stream_that_cannot_say_how_far_it_is_makes_no_first_start(
    start: Start, why: str
) -> None:
    start.run()
    if why == "no record":
        start.configure(delivery="deduplicated")
    start.carry(1, 2)
    if why == "emptied":
        start.empty()
    start.drop_slot()
    start.forget()
    assert UNTOLD in start.run()
    assert start.stored == Bookmark(None, {}), "where the slot is"
    assert not start.has_slot
    with pytest.raises(HistoryLost) as caught:
        start.feed.follow(start.slot, Bookmark(mark={}))
    assert caught.value.gap.cause == "slot_missing"
