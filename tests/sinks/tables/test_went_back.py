"""A destination that went back: what it lacks is read again, or lost, and never in silence."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.sinks.tables import write
from penstock.snapshots import loading
from tests.servers import Database, Postgres
from tests.sinks.tables.destinations import MADE, File, Server, folder_of, standby_of
from tests.sinks.tables.kept import Kept
from tests.waiting import until

TABLES = {"t": {}, "other": {}}


@pytest.fixture
def source(postgres: Postgres) -> Iterator[Database]:
    with postgres.database() as database:
        database.execute(MADE)
        database.execute("INSERT INTO t SELECT n, 'first' FROM generate_series(1, 100) n")
        yield database


@pytest.fixture(params=["server", "file"])
def destination(
    request: pytest.FixtureRequest, postgres: Postgres, tmp_path: Path
) -> Iterator[Server | File]:
    """With `indirect` also a "standby" that is promoted, and a "folder" that is put back."""
    with ExitStack() as stack:
        if request.param == "file":
            yield File(tmp_path / "target.db")
        elif request.param == "folder":
            yield stack.enter_context(folder_of(18))
        elif request.param == "standby":
            yield stack.enter_context(standby_of(18))
        else:
            yield Server(stack.enter_context(postgres.database()))


PROMOTED = pytest.mark.parametrize("destination", ["server", "file", "standby"], indirect=True)
PUT_BACK = pytest.mark.parametrize(
    "destination", ["server", "file", "standby", "folder"], indirect=True
)


FlowOf = Callable[..., Kept]


@pytest.fixture
def flow_of(source: Database, destination: Server | File, tmp_path: Path) -> FlowOf:
    def make(**options: Any) -> Kept:
        slot = f"kept_{source.name}"
        store = tmp_path / "positions.db"
        return Kept(source, destination.target, TABLES, store, slot=slot, **options)

    return make


def has(destination: Server | File, *rows: int) -> bool:
    """Whether the target has these rows of `t`, and no others beyond 100."""
    found = destination.execute("SELECT id FROM t WHERE id > 100 ORDER BY id")
    return [id for (id,) in found] == sorted(rows)


def changed(source: Database, destination: Server | File, flow: Kept) -> None:
    """Kept at one row; two more are stored since, and an update, and all of it is saved."""
    source.execute("INSERT INTO t VALUES (101, 'kept')")
    until(lambda: has(destination, 101) and flow.is_saved)
    destination.keep()
    source.execute("INSERT INTO t VALUES (102, 'after'), (103, 'after')")
    source.execute("UPDATE t SET v = 'new' WHERE id = 1")
    until(lambda: has(destination, 101, 102, 103) and flow.is_saved)


def arrives(source: Database, destination: Server | File, flow: Kept) -> None:
    until(
        lambda: (flow.check(), equal(source, destination))[1],
        60,
        problem=lambda: (flow.lost, flow.states()),
    )


def equal(source: Database, destination: Server | File) -> bool:
    rows = "SELECT id, v FROM t ORDER BY id"
    return source.execute(rows) == destination.execute(rows)


@PUT_BACK
def test_what_went_back_while_it_runs_is_found_before_anything_is_written(
    source: Database, destination: Server | File, flow_of: FlowOf
) -> None:
    with flow_of() as flow:
        flow.loaded()
        changed(source, destination, flow)
        destination.put_back()
        source.execute("INSERT INTO t VALUES (200, 'later')")
        assert "the destination went back" in flow.refused().message
    assert has(destination, 101), "nothing was written on top"


@PUT_BACK
def test_what_went_back_between_two_writes_is_found_by_the_next_one(
    source: Database, destination: Server | File, flow_of: FlowOf
) -> None:
    with flow_of() as flow:
        flow.loaded()
        changed(source, destination, flow)
        with flow.between_writes():
            destination.put_back()
            source.execute("INSERT INTO t VALUES (200, 'later')")
        assert "the destination went back" in flow.refused().message
    assert has(destination, 101), "nothing was written on top"


def test_what_the_tables_of_a_backend_leave_out_is_never_taken_for_it(
    source: Database, destination: Server | File, flow_of: FlowOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_PATIENCE", 0.0)
    source.execute("CREATE TABLE apart (id int PRIMARY KEY); CREATE PUBLICATION p FOR ALL TABLES")
    for number in (1, 3):
        with flow_of(publication="p", follows=["t", "other"]) as flow:
            flow.loaded()
            for id in (number, number + 1):
                source.execute("INSERT INTO apart VALUES (%s)", [id])
                before = flow.saved.place
                until(lambda: flow.is_saved and flow.saved.place != before)  # noqa: B023
                source.execute(
                    f"BEGIN; INSERT INTO t VALUES ({100 + id}, 'more');"
                    f" INSERT INTO apart VALUES ({100 + id}); COMMIT"
                )
                until(lambda: equal(source, destination) and flow.is_saved)
            assert (flow.began_anew, flow.gap) == (None, None)


@PROMOTED
def test_what_was_not_saved_is_read_again(
    source: Database, destination: Server | File, flow_of: FlowOf
) -> None:
    with flow_of(saves=False) as flow:
        flow.loaded()
        changed(source, destination, flow)
        destination.put_back()
        source.execute("INSERT INTO t VALUES (200, 'later')")
        flow.refused()
    with flow_of() as flow:
        arrives(source, destination, flow)
        assert flow.gap is None


@PROMOTED
def test_what_was_committed_and_not_noted_is_never_acknowledged(
    source: Database, destination: Server | File, flow_of: FlowOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby that lacks the last commits has the note of before, as it was read last."""
    with flow_of() as flow:
        flow.loaded()
        source.execute("INSERT INTO t VALUES (101, 'kept')")
        until(lambda: has(destination, 101) and flow.is_saved)
        destination.keep()
        monkeypatch.setattr(write, "_NOTE", 5.0)
        source.execute("INSERT INTO t VALUES (102, 'after')")
        until(lambda: has(destination, 101, 102))
        destination.put_back()
        flow.refused()
    with flow_of() as flow:
        arrives(source, destination, flow)
        assert flow.gap is None


@pytest.mark.parametrize("running", [True, False])
def test_what_was_acknowledged_is_a_gap(
    source: Database, destination: Server | File, flow_of: FlowOf, *, running: bool
) -> None:
    with flow_of() as flow:
        flow.loaded()
        changed(source, destination, flow)
        if running:
            destination.put_back()
            source.execute("INSERT INTO t VALUES (200, 'later')")
            flow.refused()
    if not running:
        destination.put_back()
        source.execute("INSERT INTO t VALUES (200, 'later')")
    with flow_of() as flow:
        until(lambda: "the destination went back" in flow.lost)
        assert flow.gap is not None
        assert (flow.gap["cause"], flow.gap["stale"]) == ("sink_went_back", True)
    assert has(destination, 101)
    with flow_of(on_gap="continue") as flow:
        until(lambda: has(destination, 101, 200))
        assert flow.gap is not None
        assert flow.gap["stale"]
    with flow_of(on_gap="continue") as flow:
        source.execute("INSERT INTO t VALUES (201, 'last')")
        until(lambda: has(destination, 101, 200, 201))


@PUT_BACK
def test_a_gap_is_mended_by_loading_anew(
    source: Database, destination: Server | File, flow_of: FlowOf
) -> None:
    with flow_of() as flow:
        flow.loaded()
        changed(source, destination, flow)
    destination.put_back()
    with flow_of(on_gap="resnapshot") as flow:
        until(lambda: equal(source, destination) and flow.gap and not flow.gap["stale"])
        source.execute("INSERT INTO t VALUES (200, 'later')")
        until(lambda: equal(source, destination))


def test_an_idle_pipeline_finds_it_too(
    source: Database, destination: Server | File, flow_of: FlowOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_PATIENCE", 0.0)
    with flow_of() as flow:
        flow.loaded()
        changed(source, destination, flow)
        assert flow.began_anew is None
        destination.put_back()
        until(lambda: flow.began_anew)


def test_what_did_not_go_back_is_never_taken_for_it(
    source: Database, destination: Server | File, flow_of: FlowOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped and started, idle, with traffic of no table, changes that no commit has, a table that
    is loaded anew, and a ledger that an earlier version made."""
    monkeypatch.setattr(loading, "_PATIENCE", 0.0)
    for number in range(101, 104):
        with flow_of() as flow:
            flow.loaded()
            source.execute("INSERT INTO t VALUES (%s, 'more')", [number])
            until(lambda: equal(source, destination) and flow.is_saved)
            source.execute("SELECT pg_logical_emit_message(true, 'x', 'of no table')")
            source.execute("CREATE TABLE IF NOT EXISTS apart (i int); INSERT INTO apart VALUES (1)")
            until(lambda: flow.is_saved)
            flow._sink.reload("t", None)
            flow.loaded()
            until(lambda: flow.is_saved)
            assert (flow.began_anew, flow.gap) == (None, None)
        if number == 102:
            own = "penstock." if isinstance(destination, Server) else "penstock_"
            destination.execute(f"DROP TABLE {own}source")
            destination.execute(f"ALTER TABLE {own}ledger DROP COLUMN commits")


def test_a_ledger_that_is_dropped_while_it_runs_has_all_loaded_anew(
    source: Database, database: Database, tmp_path: Path
) -> None:
    server, tables = Server(database), {"t": {"existing": "replace"}}
    slot = f"kept_{source.name}"
    with Kept(source, database, tables, tmp_path / "p", slot=slot) as flow:
        flow.loaded()
        source.execute("INSERT INTO t VALUES (101, 'before')")
        until(lambda: has(server, 101) and flow.is_saved)
        server.execute("DROP SCHEMA penstock CASCADE")
        source.execute("INSERT INTO t VALUES (102, 'later')")
        flow.refused()
    with Kept(source, database, tables, tmp_path / "p", slot=slot) as flow:
        flow.loaded()
        until(lambda: equal(source, server))
        assert flow.gap is None
