"""A mirror of a table of DynamoDB: a snapshot while items change, then the changes."""

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.microbatch.planned import PlannedReading
from penstock.reading.gaps import GapLog
from penstock.reading.positions import Positions
from penstock.reading.reservoir import Reservoir
from penstock.reading.roster import Roster
from penstock.service.ownership import positions_of
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSink
from penstock.snapshots.records import Records
from tests.consumer.mirror.world import STREAM, Pump, World, converges, sqlite_rows
from tests.dynamodb.consumers import fast
from tests.dynamodb.endpoints import OTHERS, WHOLE, Endpoint, Table, table_on
from tests.reading.made import options_of
from tests.servers import Nats
from tests.waiting import until


class ItemWorld(World):
    """A pipeline without Spark over the one shard of a table."""

    def __init__(
        self, table: Table, nats: Nats, folder: Path, on_gap: str = "fail", **snapshot: Any
    ) -> None:
        self.table, self.nats, self.folder = table, nats, folder
        document = {
            "name": "shop", "state": str(folder / "state"),
            "backends": [{"name": "default", "type": "dynamodb", "reads": 1000, "poll": 0.02,
                          "start": "latest", "on_gap": on_gap, **table.given}],
            "sink": {"type": "jetstream", "url": nats.url, "stream": STREAM, "encoding": "json"},
            "snapshot": snapshot,
        }  # fmt: skip
        (folder / "state").mkdir(exist_ok=True)
        self.marks = 0
        self._open(document)

    def _begin(self) -> None:
        begun = self.feed.begin()
        (self.slot,) = [name for name, bookmark in begun.items() if not bookmark.ended]
        self.first = begun[self.slot]
        self._store(begun)

    @property
    def positions(self) -> Positions:
        return positions_of(self.pipeline, "default", "me")

    def published(self) -> None:
        """An item of which the stream's last message is."""
        self.marks += 1
        text = f"mark {self.marks}"
        self.table.put("mark", text={"S": text})
        wanted = text.encode()
        until(lambda: wanted in self._last())

    def _last(self) -> bytes:
        stream = self.api.stream(STREAM)
        last = stream["state"]["last_seq"] if stream else 0
        found = self.api.next(STREAM, ">", last) if last else None
        return found.payload if found else b""

    def same(self, target: str) -> None:
        """Asserts that the mirror has the table's items."""
        with closing(iter(self.feed.collection(self.table.name).rows(None))) as rows:
            mine = {f'"{identity}"': _as_json(item) for identity, item in rows}
        theirs = {
            row["id"]: orjson.loads(row["document"]) for row in sqlite_rows(target, self.table.name)
        }
        assert theirs.keys() == mine.keys()
        assert theirs == mine


class AllShards(Pump):
    """As the pipeline's reader process: every shard, saved positions, and gaps on record."""

    world: ItemWorld

    def _run(self) -> None:
        feed, sink = self.world.feed, JetStreamSink(self.world.settings)
        positions, options = self.world.positions, options_of(patience=0.0)
        reservoir = Reservoir(feed, limit=options.buffer, gaps=GapLog(positions))
        planner = PlannedReading(reservoir, Roster(feed, clock=fast), options)
        decoder, done = feed.decoder(sink.settings.images), dict(positions.load())
        while not self._over.is_set():
            end = planner.advance(done, patience=0.1)
            pages = [
                page
                for split in planner.splits(done, end)
                for part in split.parts
                for page in part.pages
            ]
            for page in pages:
                sink.write(list(decoder.decode(page)), ignore)
            done = dict(end)
            positions.save(done, force=True)
        reservoir.stop(5.0)


def _as_json(item: Any) -> Any:
    return orjson.loads(orjson.dumps(item, default=lambda raw: raw.hex()))


@pytest.fixture
def world_of_items(
    request: pytest.FixtureRequest, own_nats: Callable[..., Nats], tmp_path: Path
) -> Iterator[Callable[..., ItemWorld]]:
    """On a server of the class that is the parameter."""
    kind: type[Endpoint] = request.param
    with ExitStack() as stack:
        server = stack.enter_context(kind())

        def make(on_gap: str = "fail", **snapshot: Any) -> ItemWorld:
            table = stack.enter_context(table_on(server))
            made = ItemWorld(table, own_nats(), tmp_path, on_gap, **snapshot)
            stack.callback(made.close)
            return made

        yield make


@pytest.mark.parametrize("world_of_items", OTHERS, indirect=True)
def test_writes_while_it_is_read_converge(
    world_of_items: Callable[..., ItemWorld], tmp_path: Path
) -> None:
    world, target = world_of_items(chunk_rows=50), f"sqlite:///{tmp_path}/m.db"
    world.table.fill(1000)
    world.start()
    counted = [0]

    def write(over: threading.Event) -> None:
        rng = random.Random(7)
        while not over.is_set():
            key = f"r{rng.randrange(1100)}"
            if rng.random() < 0.3:
                world.table.delete(key)
            else:
                world.table.put(key, v={"N": str(counted[0])})
            counted[0] += 1

    converges(world, target, world.table.name, write, lambda: counted[0])
    world.same(target)


@pytest.mark.parametrize("world_of_items", OTHERS, indirect=True)
def test_items_then_their_changes(world_of_items: Callable[..., ItemWorld], tmp_path: Path) -> None:
    world, target = world_of_items(), f"sqlite:///{tmp_path}/m.db"
    world.table.put("a", n={"N": "1.50"}, m={"M": {"l": {"L": [{"NULL": True}]}}})
    world.table.put("b", n={"N": "2"})
    world.start()
    world.mirror(target, tables=[world.table.name])
    world.same(target)
    world.table.put("a", n={"N": "3"})
    world.table.delete("b")
    world.table.put("document", document={"S": "x"})
    world.mirror(target, tables=[world.table.name])
    world.same(target)


@pytest.mark.parametrize("world_of_items", WHOLE, indirect=True)
def test_items_that_changed_while_the_stream_was_disabled_are_mended_by_a_snapshot(
    world_of_items: Callable[..., ItemWorld], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream that is enabled again is another one (tests/dynamodb/test_tables.py): what was
    written in between is in neither."""
    monkeypatch.setattr("penstock.service.snapshots._LOOK", 0.0)
    world, target = world_of_items("resnapshot", chunk_rows=5), f"sqlite:///{tmp_path}/m.db"
    world.table.fill(20)
    world.start()
    world.stop_pump()
    world.pump = AllShards(world)
    world.pump.start()
    world.mirror(target, tables=[world.table.name])
    world.table.put("r1", v={"N": "1"})  # a change of before the gap
    world.mirror(target, tables=[world.table.name])
    world.same(target)
    world.table.enable(False)
    world.table.put("r1", v={"N": "2"})
    world.table.put("lost")
    for n in range(10, 15):
        world.table.delete(f"r{n}")
    world.table.enable(True)
    gaps = world.positions.gaps

    def stale() -> list[bool]:
        return [row["stale"] for row in gaps.rows().values()]

    until(lambda: stale() == [False])
    (row,) = gaps.rows().values()
    assert [gap["cause"] for gap in row["gaps"]] == ["stream_replaced"]
    world.table.put("r2", v={"N": "3"})  # a change of after it
    world.table.delete("r3")
    world.mirror(target, tables=[world.table.name])
    world.same(target)
    taken = Records(world.connection, "shop").all()
    assert [each.state for each in taken] == ["done", "done"], "the mirror needs no other"
    world.mirror(target, tables=[world.table.name])
    assert len(Records(world.connection, "shop").all()) == 2
