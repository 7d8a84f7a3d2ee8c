"""What may come of a snapshot while it is loaded. The pipeline takes one; then it is published once
more, by hand, as its service would."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zlib import crc32

import orjson
import pytest

from penstock.consumer.mirror.bootstrap import Bootstrap
from penstock.consumer.mirror.published_tables import Catalog
from penstock.consumer.mirror.steps import RestoreRows
from penstock.consumer.mirror.target import MirrorTarget, open_target
from penstock.consumer.mirror.target_table import TargetTable
from penstock.nats.protocol import Msg
from penstock.tables.fold import Clear
from tests.consumer.mirror.world import World, rows_of
from tests.servers import Database
from tests.waiting import until


class Taken:
    """A snapshot of `t` whose service is stopped, and a target that does not have it yet."""

    def __init__(self, world: World, folder: Path) -> None:
        world.mirror(f"sqlite:///{folder}/first.db")
        world.stop_service()
        self.world, self.url = world, f"sqlite:///{folder}/second.db"
        self.target: MirrorTarget = open_target(self.url)
        self.target.open(["t"])
        last = world.api.last
        chunk, meta = last("INIT", "init.snap.t.>"), last("INIT", "init.meta.t")
        assert chunk is not None
        assert meta is not None
        self.chunk, self.meta = orjson.loads(chunk.payload), orjson.loads(meta.payload)
        self.version = chunk.headers["Penstock-Table-Schema"]

    def bootstrap(self) -> Bootstrap:
        announced = Catalog(self.world.connection).read()["t"]
        table = replace(announced.mirrored(), snapshot_id=self.meta["snapshot_id"])
        return Bootstrap(
            self.world.connection, "INIT", announced, self.target, table,
            is_patient=True,
        )  # fmt: skip

    def purge(self, subject: str) -> None:
        self.world.api.purge("INIT", subject)

    def publish(self, subject: str, body: Any) -> bytes:
        """Stores a message of the snapshot; returns its body."""
        payload = orjson.dumps(body)
        head = f"NATS/1.0\r\nPenstock-Table-Schema: {self.version}\r\n\r\n".encode()
        self.world.api.publish(subject, head, payload)
        return payload


@pytest.fixture
def taken(database: Database, world_of: Callable[..., World], tmp_path: Path) -> Iterator[Taken]:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, name text); INSERT INTO t VALUES (1, 'x')"
    )
    made = Taken(world_of(encoding="json").start(), tmp_path)
    yield made
    made.target.close()


def whole(bootstrap: Bootstrap) -> TargetTable:
    found = until(lambda: bootstrap.step(0.2))
    assert found is not None
    return found


def test_a_chunk_number_that_is_used_again_is_read_from_the_beginning(taken: Taken) -> None:
    taken.purge("init.meta.t")
    bootstrap = taken.bootstrap()
    while not bootstrap.progress.chunks:
        bootstrap.step(0.2)
    subject = f"init.snap.t.{taken.meta['snapshot_id']}.0"
    taken.purge(subject)
    rows = [{"id": 7, "name": "other"}, {"id": 8, "name": None}]
    body = taken.publish(subject, {**taken.chunk, "data": rows})
    listed = [{**taken.meta["chunks"][0], "crc32": crc32(body), "rows": 2}]
    taken.publish("init.meta.t", {**taken.meta, "row_count": 2, "chunks": listed})
    table = whole(bootstrap)
    taken.target.apply([], {table.stream: table.sequence})
    assert sorted(dict(row)["id"] or "" for row in rows_of(taken.url, "t")) == ["7", "8"]
    assert (bootstrap.progress.chunks, bootstrap.progress.rows) == (1, 2)


def test_rows_of_the_last_of_several_points_in_the_log_are_kept_beside(taken: Taken) -> None:
    taken.purge("init.meta.t")
    cursor = taken.chunk["position"].rpartition(":")[0]
    points = ["F" * 8 + "/0000000" + digit for digit in "12"]
    listed = [taken.meta["chunks"][0]]
    for number, point in enumerate(points, 1):
        subject = f"init.snap.t.{taken.meta['snapshot_id']}.{number}"
        rows = [{"id": 1, "name": point}, {"id": number + 1, "name": point}]
        more = {"chunk": number, "position": f"{point}:0", "data": rows}
        body = taken.publish(subject, taken.chunk | more)
        listed.append({"chunk": number, "crc32": crc32(body)})
    meta = {**taken.meta, "row_count": 5, "batch_count": 3, "chunks": listed}
    taken.publish("init.meta.t", meta)
    table = whole(taken.bootstrap())
    assert (table.cursor, table.last_point, table.has_several_points) == (cursor, points[1], True)
    assert taken.target.open(["t"]) == [table]
    taken.target.apply([(table, [Clear(), RestoreRows(None)])], {table.stream: 9})
    found = sorted(tuple(value for _, value in row) for row in rows_of(taken.url, "t"))
    assert found == [("1", points[1]), ("3", points[1])]


def test_a_snapshot_of_a_stream_that_was_made_again_is_refused(taken: Taken) -> None:
    taken.world.make_stream_again()
    bootstrap = taken.bootstrap()
    assert bootstrap._stored() is None

    def asks_for_another() -> bool:
        assert bootstrap.step(0.1) is None
        return bootstrap.table.snapshot_id == ""

    until(asks_for_another)


@pytest.mark.parametrize("minutes", [-5, 5])
def test_whose_stream_a_snapshot_is_of_is_not_judged_by_clocks(taken: Taken, minutes: int) -> None:
    clock = datetime.now(UTC) + timedelta(minutes=minutes)
    meta = {**taken.meta, "timestamp": clock.isoformat()}
    taken.purge("init.meta.t")
    taken.publish("init.meta.t", meta)
    assert taken.bootstrap()._stored() == meta["snapshot_id"]
    taken.publish("init.meta.t", {**meta, "stream_created": "2020-01-01T00:00:00Z"})
    assert taken.bootstrap()._stored() is None


@pytest.mark.parametrize("part", [{"partial": True}, {"where": "id < 3"}])
def test_a_part_of_a_table_is_not_taken_for_the_table(taken: Taken, part: Any) -> None:
    """Neither as what took the place of a run, nor as the last snapshot that there is."""
    taken.purge("init.meta.t")
    bootstrap = taken.bootstrap()
    later = {**taken.meta, **part, "snapshot_id": "snap-Z", "row_count": 0, "chunks": []}
    taken.publish("init.meta.t", later)
    assert bootstrap._stored() is None
    bootstrap.step(0.2)
    assert bootstrap.table.snapshot_id == taken.meta["snapshot_id"]
    taken.publish("init.meta.t", taken.meta)
    taken.publish("init.meta.t", {**later, "snapshot_id": "snap-ZZ"})
    assert bootstrap._stored() == taken.meta["snapshot_id"]
    assert whole(bootstrap).snapshot_id == taken.meta["snapshot_id"]


def test_a_service_that_says_again_is_asked_again(taken: Taken, monkeypatch: Any) -> None:
    answers = [
        {"error": "not now", "hint": "", "again": True},
        {"snapshot_id": taken.meta["snapshot_id"]},
    ]
    answer = lambda *_: Msg(b"", b"", b"", orjson.dumps(answers.pop(0)))  # noqa: E731
    monkeypatch.setattr("penstock.consumer.mirror.bootstrap.asked", answer)
    bootstrap = taken.bootstrap()
    bootstrap.table = replace(bootstrap.table, snapshot_id="")
    bootstrap._asked_at -= 20
    assert bootstrap.step(0.01) is None
    assert whole(bootstrap).state == "live"
    assert answers == []


def test_what_has_come_is_read_before_a_snapshot_is_asked_for_again(taken: Taken) -> None:
    bootstrap = taken.bootstrap()
    bootstrap._asked_at -= 60  # the mirror did something else for a while
    bootstrap._request = lambda: pytest.fail("it was asked for")  # type: ignore[method-assign]
    assert bootstrap.step(10) is not None or whole(bootstrap).state == "live"
