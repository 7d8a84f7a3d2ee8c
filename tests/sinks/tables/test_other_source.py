"""A source that is another server now: its places do not compare with those of before."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.model.position import PartitionId
from tests.servers import Database, Postgres
from tests.sinks.tables.kept import Kept
from tests.waiting import until

MADE = "CREATE TABLE t (id int PRIMARY KEY, v text)"
SLOT = "kept"


def end_of(server: Database) -> int:
    return int(server.execute("SELECT pg_current_wal_lsn() - '0/0'")[0][0])


@pytest.fixture
def other(postgres_of: Callable[[int], Postgres]) -> Iterator[Database]:
    """Where the source is now."""
    with postgres_of(18).database() as database:
        database.execute(MADE)
        database.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')")
        yield database


@pytest.fixture
def source(postgres: Postgres, other: Database) -> Iterator[Database]:
    """Where it was; its log is further."""
    with postgres.database() as database:
        database.execute(MADE)
        database.execute("CREATE TABLE apart (i int)")
        while end_of(database) < end_of(other) + 2**26:
            database.execute("INSERT INTO apart VALUES (1)")
            database.execute("SELECT pg_switch_wal()")
        database.execute("INSERT INTO t VALUES (1, 'a'), (2, 'b')")
        yield database


class Moves:
    """Flows of one pipeline into one target."""

    def __init__(self, target: Database, store: Path) -> None:
        self.target, self.store = target, store
        target.execute(MADE)

    def of(self, source: Database, **options: Any) -> Kept:
        return Kept(source, self.target, {"t": {}}, self.store, slot=SLOT, **options)

    def ran(self, source: Database) -> None:
        """All of the source is in the target, and saved."""
        with self.of(source) as flow:
            flow.loaded()
            source.execute("INSERT INTO t VALUES (9, 'change')")
            until(lambda: self.equals(source) and flow.saved.place is not None)

    def equals(self, source: Database) -> bool:
        rows = "SELECT id, v FROM t ORDER BY id"
        return source.execute(rows) == self.target.execute(rows)

    def follows(self, source: Database, flow: Kept) -> None:
        """Its rows are there, and its changes come."""
        flow.loaded()
        until(lambda: self.equals(source))
        source.execute("INSERT INTO t VALUES (4, 'd'); DELETE FROM t WHERE id = 2")
        source.execute("UPDATE t SET v = 'changed' WHERE id = 1")
        until(lambda: (flow.check(), self.equals(source))[1], 60)


@pytest.fixture
def moves(database: Database, tmp_path: Path) -> Moves:
    return Moves(database, tmp_path / "positions.db")


@pytest.mark.parametrize("state", ["live", "waiting", "loading", "never loaded"])
def test_a_source_that_left_comes_back_on_another_server(
    source: Database, other: Database, moves: Moves, state: str
) -> None:
    if state == "never loaded":
        sink = moves.of(source)._sink
        sink.prepare()
        sink.enter("shop", PartitionId(SLOT), initial=True)
    else:
        moves.ran(source)
    left = moves.of(source)
    if state == "waiting":
        left._sink.suspend_table("shop", "public.t")
    if state == "loading":
        left._sink.reload("t", None)
    assert left._sink.leave("shop", [], [PartitionId(SLOT)])
    moves.store.unlink(missing_ok=True)
    with moves.of(other) as flow:
        moves.follows(other, flow)


@pytest.mark.parametrize("positions", ["kept", "lost"])
def test_another_server_is_lost_history_whether_positions_are_there_or_not(
    source: Database, other: Database, moves: Moves, positions: str
) -> None:
    moves.ran(source)
    if positions == "lost":
        moves.store.unlink()
    before = moves.target.execute("SELECT * FROM t ORDER BY id")
    with moves.of(other) as flow:
        until(lambda: "the server is another one" in flow.lost)
    assert moves.target.execute("SELECT * FROM t ORDER BY id") == before
    with moves.of(other, on_gap="resnapshot") as flow:
        until(lambda: flow.gap and not flow.gap["stale"])
        moves.follows(other, flow)


def test_an_era_outlives_the_positions(source: Database, other: Database, moves: Moves) -> None:
    moves.ran(source)
    with moves.of(other, on_gap="resnapshot") as flow:
        until(lambda: flow.gap and not flow.gap["stale"])
        moves.follows(other, flow)
        until(lambda: flow.saved.place is not None and flow.saved.place.cursor.startswith("e0001-"))
    moves.store.unlink()
    with moves.of(other) as flow:
        other.execute("INSERT INTO t VALUES (5, 'e')")
        until(lambda: moves.equals(other))
        assert flow.gap is None


def test_what_does_not_compare_is_loaded_anew(
    source: Database, other: Database, moves: Moves
) -> None:
    """Whoever begins without what the ledger has, and does not say so: its places are smaller."""
    moves.ran(source)
    moves.store.unlink()
    flow = moves.of(other)
    flow.positions().begin(flow._feed.begin())
    with flow:
        other.execute("INSERT INTO t VALUES (5, 'e')")
        moves.follows(other, flow)
