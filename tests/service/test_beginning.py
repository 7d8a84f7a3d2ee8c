"""Where a backend goes on, by what its store and its sink know; and what is said of it. Also of a
second instance without the positions of the first, where the stream does not say how far it is
(delivery `deduplicated`): what it gives again, and where it refuses to guess.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import structlog

from penstock.feeds import Following, HistoryLost
from penstock.feeds.postgres import PostgresFeed
from penstock.model.errors import SettingsError
from penstock.model.position import Bookmark, Bookmarks, PartitionId, Place
from penstock.reading.positions import Positions
from penstock.reading.roster import openings
from penstock.service.beginning import resume
from penstock.service.ownership import positions_of
from penstock.service.standby import WriterLease
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSink
from penstock.sinks.messages.message import read_bookmark
from tests.dynamodb.server import StreamsServer, settings_of
from tests.mongo import Shop
from tests.pipeline.running import messages
from tests.servers import Database, Nats
from tests.service.pipelines import pipeline_of
from tests.sinks.jetstream.raw import Raw
from tests.slots import drop_slot

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
        """What the log warns of; "" if nothing."""
        self.sink.prepare()
        with structlog.testing.capture_logs() as logs:
            resume(self.pipeline.backends[0], self.positions, self.sink)
        self.told = [each for each in logs if each["log_level"] == "info"]
        warned = [each for each in logs if each["log_level"] != "info"]
        return "; ".join(f"{each['log_level']}: {each['event']}" for each in warned)

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


def test_the_log_says_what_was_resumed_after(start: Start) -> None:
    start.run()
    (line,) = start.told
    assert line["event"] == "beginning: no position was saved"
    assert (line["backend"], line["start"], line["places"]) == ("default", "slot", [])
    place = start.carry(1)
    start.store(place)
    start.run()
    (line,) = start.told
    assert line["event"] == "resuming after the saved position"
    assert line["places"] == [str(place)] and line["partitions"] == 1
    start.forget()
    start.run()
    (line,) = start.told
    assert line["event"] == "resuming after what the sink has"
    assert line["places"] == [str(place)]


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


class Host:
    """An instance on a machine of its own: its positions are nobody else's."""

    def __init__(self, nats: Nats, stream: str, backend: dict[str, Any], instance: str) -> None:
        target = {"url": nats.url, "stream": stream, "subject": f"{stream}.{{collection}}"}
        sink = {"type": "jetstream", "delivery": "deduplicated", **target}
        self._pipeline = pipeline = pipeline_of({"name": "default", **backend}, sink=sink)
        self.lease = WriterLease(pipeline, instance)
        self.feed, self._sink = pipeline.backends[0].feed(), pipeline.sink.sink()
        self._positions = positions_of(pipeline, "default", "")
        self._known: dict[PartitionId, Bookmark] = {}
        self._followings: dict[PartitionId, Following] = {}

    def start(self) -> list[str]:
        """The warnings of the start; it has the lease."""
        assert self.lease.attempt(None) is None
        self._sink.prepare()
        with structlog.testing.capture_logs() as logs:
            resume(self._pipeline.backends[0], self._positions, self._sink)
        self._known = dict(self._positions.load())
        return [each["event"] for each in logs if each["log_level"] == "warning"]

    def store(self, bookmarks: Bookmarks) -> None:
        """As `penstock positions import` does."""
        self._positions.save(bookmarks, force=True)

    def carry(self, count: int) -> int:
        """Reads this many changes and writes them; how many of them the stream had already."""
        decoder, read, repeated = self.feed.decoder("json"), 0, 0
        deadline = time.monotonic() + 60
        while read < count:
            assert time.monotonic() < deadline, f"{read} of {count}"
            self._open()
            for partition, following in list(self._followings.items()):
                for page in following.read(0.01):
                    read += page.count
                    repeated += self._sink.write(decoder.decode(page), ignore).duplicates
                if following.drained:
                    del self._followings[partition]
                    self._known[partition] = Bookmark(None, {}, ended=True)
        return repeated

    def _open(self) -> None:
        listing = self.feed.partitions(self._known)
        for name, bookmark in openings(listing, self._known, self._followings).ready.items():
            self._known[name] = bookmark
            self._followings[name] = self.feed.follow(name, bookmark)

    def leave(self) -> None:
        for following in self._followings.values():
            following.close()
        self.lease.release()


@pytest.fixture
def hosts() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def stored(nats: Nats, stream: str) -> list[str]:
    return [message.id for message in messages(nats, stream)]


def test_dynamodb_is_read_from_its_oldest_record_and_message_ids_drop_what_was_stored(
    nats: Nats, stream: str, hosts: ExitStack
) -> None:
    with StreamsServer() as server:
        source = server.stream("users")
        parent = source.shard()
        backend = settings_of(server, poll=0.001, start="trim_horizon").model_dump(
            mode="json", include={"table", "endpoint", "region", "poll", "start"}
        )
        backend |= {"type": "dynamodb", "access_key": "a", "secret_key": "b"}
        first, second = (Host(nats, stream, backend, name) for name in ("one", "two"))
        hosts.callback(first.leave)
        hosts.callback(second.leave)
        for number in range(6):
            source.put(parent, f"k{number}", at=server.now)
        assert first.start() == []
        assert first.carry(6) == 0
        assert second.lease.attempt(None) is not None, "the first writes"
        first.leave()

        # The shard splits before the takeover, and nobody has read its end.
        source.put(parent, "k6", at=server.now)
        parent.closed = True
        children = [source.shard(parent) for _ in range(2)]
        for number, child in enumerate(children):
            source.put(child, f"c{number}", at=server.now)
        (warning,) = second.start()
        assert UNTOLD in warning
        assert second.carry(9) == 6, "all from the beginning, and six of them were there"
        ids = stored(nats, stream)
        assert len(ids) == len(set(ids)) == 9


def test_mongodb_stands_still_until_a_position_is_set(
    shop: Shop, nats: Nats, stream: str, hosts: ExitStack
) -> None:
    """A change stream has no memory of us: now would be a silent hole."""
    backend = {"type": "mongodb", "connection": shop.url, "database": shop.name}
    first, second = (Host(nats, stream, backend, name) for name in ("one", "two"))
    hosts.callback(first.leave)
    hosts.callback(second.leave)
    assert first.start() == []
    shop.db.users.insert_many({"_id": number} for number in range(5))
    assert first.carry(5) == 0
    first.leave()
    shop.db.users.insert_one({"_id": 5})
    (warning,) = second.start()
    assert UNTOLD in warning
    with pytest.raises(SettingsError, match="goes on by its resume token") as caught:
        second.carry(1)
    assert "set the position with its mark" in str(caught.value.hint)
    assert len(stored(nats, stream)) == 5

    # The last message's headers are that position, as far as its order can be trusted.
    found = read_bookmark(messages(nats, stream)[-1].headers)
    assert found is not None
    second.store({found[0].partition: found[1]})
    assert second.start() == []
    assert second.carry(1) == 0
    ids = stored(nats, stream)
    assert len(ids) == len(set(ids)) == 6
