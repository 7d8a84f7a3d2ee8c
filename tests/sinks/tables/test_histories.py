"""A source that becomes another server, in each way that it can, at each step that it can be at:
nothing that the destination has or had is taken for what comes now."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import Unavailable
from penstock.model.position import PartitionId
from penstock.sinks.tables.row_writer import TableRowWriter
from penstock.sinks.tables.sources import StoredSources
from tests.chaos.proxy import Proxy
from tests.conftest import FAST
from tests.feeds.postgres.copies import copy_of
from tests.servers import Database, Postgres
from tests.sinks.tables.destinations import turn
from tests.sinks.tables.kept import Kept
from tests.waiting import until

SLOT = PartitionId("kept")
MADE = "CREATE TABLE t (id int PRIMARY KEY, v text)"
FILLED = "INSERT INTO t SELECT n, '{}' FROM generate_series(1, 500) n"
# Ranges of some 64 rows.
PARTS = {"chunk_rows": 1}


class Source:
    """A server behind an address of its own."""

    def __init__(self, server: Postgres, name: str) -> None:
        self.server, self._name = server, name
        self.proxy = Proxy(server.host, server.port)
        url = server.url_of(name).replace(f":{server.port}/", f":{self.proxy.port}/")
        self.database = Database(name=name, url=url)

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        """At the server that is there now, without the address."""
        found = Database(name=self._name, url=self.server.url_of(self._name))
        return found.execute(statement)

    def become(self, server: Postgres) -> None:
        self.server = server
        turn(self.proxy, server)


class Moves:
    """Flows of one pipeline into one target. `most`: parts that a load may write."""

    def __init__(self, source: Source, target: Database, store: Path) -> None:
        self.source, self.target, self.store = source, target, store
        target.execute(MADE)
        self.most, self.parts = 10**6, 0

    def flow(self, **options: Any) -> Kept:
        tables = {"t": {"existing": "replace"}}
        return Kept(
            self.source.database, self.target, tables, self.store, snapshot=PARTS, **options
        )

    def equals(self) -> bool:
        rows = "SELECT id, v FROM t ORDER BY id"
        return self.source.execute(rows) == self.target.execute(rows)

    def arrives(self, flow: Kept) -> None:
        until(
            lambda: (flow.check(), self.equals())[1], 60, problem=lambda: (flow.lost, flow.states())
        )

    def changes(self, flow: Kept, number: int) -> None:
        """Changes of each kind come, and all is saved."""
        flow.loaded()
        self.source.execute(
            f"INSERT INTO t VALUES ({number}, 'new'); DELETE FROM t WHERE id = {number - 900};"
            f" UPDATE t SET v = 'changed {number}' WHERE id < 9"
        )
        self.arrives(flow)
        until(lambda: flow.is_saved, 60)

    def is_mended(self, flow: Kept) -> None:
        """Its history is lost, and all is loaded anew."""
        self.source.execute("DELETE FROM t WHERE id BETWEEN 90 AND 95")
        until(lambda: flow.gap and not flow.gap["stale"], 90, problem=flow.states)
        self.changes(flow, 1003)

    def reaches(self, flow: Kept, step: str) -> None:
        if step == "before its load":
            until(lambda: flow.states())
        elif step == "loading":
            until(lambda: self.parts >= self.most, 60)
        else:
            self.changes(flow, 1000)


@pytest.fixture
def moves(
    database: Database, postgres: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[Postgres], Moves]]:
    made: list[Moves] = []
    real = TableRowWriter.write

    def write(writer: TableRowWriter, *args: Any) -> None:
        (each,) = made
        if each.parts >= each.most:
            raise Unavailable("no more parts")
        real(writer, *args)
        each.parts += 1

    monkeypatch.setattr(TableRowWriter, "write", write)

    def make(server: Postgres) -> Moves:
        stack.enter_context(server.database("history"))
        made.append(Moves(Source(server, "history"), database, tmp_path / "positions.db"))
        made[0].source.execute(MADE)
        made[0].source.execute(FILLED.format("first"))
        return made[0]

    with ExitStack() as stack:
        yield make
        for each in made:
            each.source.proxy.close()


@contextmanager
def another(moves: Moves, server: Postgres) -> Iterator[Postgres]:
    """A server with a table of that name, whose log is not as far as that of the source."""
    with server.database("history") as there:
        there.execute(MADE)
        there.execute(FILLED.format("second"))
        there.execute("DELETE FROM t WHERE id > 400")
        end = "SELECT pg_current_wal_lsn() - '0/0'"
        (reached,) = there.execute(end)
        moves.source.execute("CREATE TABLE apart (i int)")
        while moves.source.execute(end)[0] < (reached[0] + 2**24,):
            moves.source.execute("INSERT INTO apart VALUES (1); SELECT pg_switch_wal()")
        yield server


STEPS = ["before its load", "loading", "live", "stopped"]
MOST = {"before its load": 0, "loading": 3}


@pytest.mark.parametrize(
    ("way", "step"),
    [
        # Each way at two steps, each step in one way or two; the others are thorough.
        pytest.param(way, step, marks=[pytest.mark.thorough] if (row + column) % 2 else [])
        for row, way in enumerate(["moved", "positions lost", "added again"])
        for column, step in enumerate(STEPS)
    ],
)
def test_another_server_is_never_taken_for_the_one_before(
    postgres: Postgres, postgres_of: Callable[[int], Postgres], moves: Any, way: str, step: str
) -> None:
    """Its places are smaller: compared with those of before, all of its changes were stored."""
    one: Moves = moves(postgres)
    with another(one, postgres_of(18)) as other:
        one.most = MOST.get(step, one.most)
        with one.flow(on_gap="resnapshot") as flow:
            one.reaches(flow, step)
            if way == "moved" and step != "stopped":
                one.source.become(other)
                one.most = 10**6
                one.is_mended(flow)
                return
        if way == "added again":
            one.flow()._sink.leave("shop", [], [SLOT])
        if way != "moved":
            one.store.unlink()
        one.source.become(other)
        one.most = 10**6
        with one.flow(on_gap="resnapshot") as flow:
            one.changes(flow, 1001)


@pytest.mark.parametrize("step", STEPS)
def test_a_server_that_is_restored_lacks_what_came_from_it(moves: Any, step: str) -> None:
    with Postgres(settings=FAST) as server:
        one: Moves = moves(server)
        one.most = MOST.get(step, one.most)
        with one.flow(on_gap="resnapshot") as flow:
            one.reaches(flow, step)
        server.stop()
        backup = copy_of(server)
        server.start()
        one.most = 10**6
        one.source.become(server)
        with ExitStack() as stack:
            with one.flow(on_gap="resnapshot") as flow:
                one.source.execute("UPDATE t SET v = 'undone' WHERE id % 3 = 0; CHECKPOINT")
                one.changes(flow, 1002)
                if step != "stopped":
                    one.source.become(stack.enter_context(backup))
                    one.is_mended(flow)
                    return
            one.source.become(stack.enter_context(backup))
            with one.flow(on_gap="resnapshot") as flow:
                one.is_mended(flow)


@contextmanager
def promoted(server: Postgres) -> Iterator[Postgres]:
    """A standby that has all that the server has now, its slots, too; what comes on a timeline of
    its own."""
    server.stop()
    standby = copy_of(server)
    (standby.data / "recovery.signal").touch()
    standby.settings["restore_command"] = "false"
    if standby.user is not None:
        os.chown(standby.data / "recovery.signal", standby.user, standby.user)
    server.start()
    with standby:
        until(lambda: standby.execute("SELECT pg_is_in_recovery()") == [(False,)])
        yield standby


@pytest.mark.parametrize(
    "lacks", ["nothing", "what was saved", "what was noted", "what was stored"]
)
def test_a_standby_that_is_promoted(
    moves: Any, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    """Its changes have the places of those that it lacks, though it is the same server."""
    with Postgres(version=18, settings=FAST) as server:
        one: Moves = moves(server)
        with one.flow() as flow:
            one.changes(flow, 1000)
        with promoted(server) as standby:
            one.source.become(server)
            if lacks == "what was stored":  # a kill in the half second before it is noted
                monkeypatch.setattr(StoredSources, "note", lambda *_: None)
            if lacks != "nothing":
                with one.flow(saves=lacks == "what was saved") as flow:
                    for number in range(50):
                        one.source.execute(f"UPDATE t SET v = 'lost {number}' WHERE id > {number}")
                    one.arrives(flow)
                    until(lambda: flow.is_saved, 60)
            monkeypatch.undo()
            server.stop("immediate")
            one.source.become(standby)
            one.source.execute("UPDATE t SET v = 'promoted' WHERE id = 77")
            if lacks in ("what was saved", "what was noted"):
                with one.flow() as flow:
                    until(lambda: "the server is on timeline 2" in flow.lost, 60)
                assert not one.equals()
            with one.flow(on_gap="resnapshot") as flow:
                one.arrives(flow)
                one.changes(flow, 1001)
                assert bool(flow.gap) == (lacks in ("what was saved", "what was noted"))
