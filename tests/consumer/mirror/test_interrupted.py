"""A mirror of a table whose snapshot is interrupted, beside a writer that changes keys."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.consumer.mirror.snapshot_messages import body_of
from penstock.snapshots.init_stream import InitStream
from penstock.snapshots.range_progress import HEADER, read_header
from tests.consumer.mirror.world import World, same
from tests.servers import Database
from tests.snapshots.test_interrupted import CREATE, ENDED, Writer
from tests.waiting import until

# Keys that the writer does not have, in the first and in the last range.
MORE = "INSERT INTO t SELECT n, 0, repeat('m', 3000) || n FROM unnest('{-3,-2,-1,9000}'::int[]) n"
# From which message of the snapshot on, whose first ranges are read by then; the second one in a
# chunk of another point than the first.
MOVES = (
    # To a range that is read later, and another row comes under the old key.
    (60, "UPDATE t SET id = 9001 WHERE id = -3; INSERT INTO t VALUES (-3, 0, repeat('y', 3000))"),
    # From a range that is read later, to where another row was.
    (
        100,
        "DELETE FROM t WHERE id IN (-2, -1);"
        "UPDATE t SET id = -2 WHERE id = 9000; UPDATE t SET id = -1 WHERE id = 9001",
    ),
)


def test_a_snapshot_of_several_points_and_the_changes_between_them_are_the_table(
    database: Database,
    world_of: Callable[..., World],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows whose key changes take large values along that are not sent: they are not lost, and the
    table is not loaded a second time."""
    database.execute(f"{CREATE}; {MORE}")
    counted, moves, points, lock = count(1), list(MOVES), set[str](), threading.Lock()
    publish = InitStream.publish

    def interrupted(stream: InitStream, *given: Any) -> int:
        with lock:
            number, header = next(counted), given[2].get(HEADER)
            lsn = read_header(header)["lsn"] if header else None
            if lsn and lsn not in points and moves and number >= moves[0][0]:
                points.add(lsn)
                database.execute(moves.pop(0)[1])
                database.execute(ENDED)
        return publish(stream, *given)

    monkeypatch.setattr(InitStream, "publish", interrupted)
    world, target = world_of(snapshot={"chunk_rows": 10}).start(), f"sqlite:///{tmp_path}/m.db"
    writer, replica = Writer(database, 1), world.replica(target)
    with ExitStack() as stack:
        stack.callback(replica.close)
        writer.start()
        stack.callback(writer.stop)
        until(lambda: replica.step(0.1) >= 0 and bool(replica.tables), 90)
        meta = world.api.last("INIT", "init.meta.t")
        assert meta is not None
        chunks = body_of(meta.headers, meta.payload)["chunks"]
        assert not moves
        assert len({one["lsn"] for one in chunks}) == 3
        writer.stop()
        database.execute("INSERT INTO t VALUES (0, 0, 'after all points')")
        world.published()
        replica.run(once=True)
        assert replica.status.snapshots == 1
        assert not replica.tables[0].has_several_points
        same(database, target, "t")
