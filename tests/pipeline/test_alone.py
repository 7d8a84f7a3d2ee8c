"""One backend fails for good: the others go on, operators see it, and mending it is enough."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from penstock.leases.sqlite import SqliteStore
from tests.pipeline.running import Run, document, eventually, messages, running
from tests.servers import Database, Nats, Postgres
from tests.slots import drop_slot

pytestmark = [pytest.mark.live, pytest.mark.spark]

TABLE = "CREATE TABLE items (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE items"


@pytest.fixture
def databases(postgres: Postgres) -> Iterator[list[Database]]:
    """Two databases with a table and a publication each."""
    with ExitStack() as stack:
        found = [stack.enter_context(postgres.database()) for _ in range(2)]
        for database in found:
            database.execute(TABLE)
        yield found


def pipeline_of(folder: Path, databases: list[Database], nats: Nats, stream: str) -> dict[str, Any]:
    """Backends `a` and `b`; the slot has the name of its database."""
    made = document(folder, databases[0], nats, stream)
    (first,) = made["backends"]
    made["backends"] = [
        first | {"name": name, "connection": database.url, "slot": f"slot_{database.name}"}
        for name, database in zip("ab", databases, strict=True)
    ]
    made["sink"]["subject"] = f"{stream}.{{backend}}.{{collection}}"
    made["sink"]["encoding"] = "json"
    made["checkpoint"] = {"interval": "500ms"}
    return made


def insert(database: Database, first: int, last: int) -> None:
    database.execute("INSERT INTO items SELECT generate_series(%s::int, %s::int)", (first, last))


def ids(nats: Nats, stream: str, backend: str) -> list[int]:
    bodies = [message.body for message in messages(nats, stream)]
    return [body["data"]["id"] for body in bodies if body["backend"] == backend]


def backend(run: Run, name: str) -> Any:
    return next(each for each in run.status()["backends"] if each["name"] == name)


def connected(run: Run) -> bool:
    return all(each["connected"] for each in run.status()["backends"])


@pytest.mark.thorough  # of a backend that may not log in
def test_a_backend_whose_publication_is_dropped_fails_alone(
    databases: list[Database], nats: Nats, stream: str, tmp_path: Path
) -> None:
    a, b = databases
    pipeline = pipeline_of(tmp_path, databases, nats, stream)
    pipeline["backends"][0]["on_gap"] = "continue"
    with running(tmp_path, pipeline) as run:
        eventually(lambda: connected(run), run=run)
        insert(a, 1, 3)
        insert(b, 1, 3)
        eventually(lambda: len(messages(nats, stream)) == 6, run=run)
        eventually(lambda: SqliteStore(tmp_path / "state/positions.db").list("test/a/"), run=run)
        a.execute("DROP PUBLICATION pub")
        insert(a, 4, 4)
        eventually(lambda: "pub" in backend(run, "a")["blocked"], run=run)
        insert(b, 4, 61)
        eventually(lambda: ids(nats, stream, "b") == list(range(1, 62)), run=run)
        assert run.get("/health")[0] == 503
        (reason,) = run.status()["reasons"]
        assert reason.startswith("backend a: stands still")
        assert backend(run, "b")["blocked"] == ""
        # For the server the publication has never been there when row 4 was written: as the hint
        # says, its slot has to go, too.
        a.execute("CREATE PUBLICATION pub FOR TABLE items")
        slot = f"slot_{a.name}"
        drop_slot(a, slot, taken=True)
        eventually(lambda: backend(run, "a")["gaps"][slot]["gaps"][0]["to"], run=run)
        insert(a, 5, 6)
        eventually(lambda: ids(nats, stream, "a") == [1, 2, 3, 5, 6], run=run)
        eventually(lambda: backend(run, "a")["blocked"] == "", run=run)
        assert run.stop() == 0


# tests/pipeline/test_gaps.py has a backend that stops while others go on.
@pytest.mark.thorough
def test_a_backend_that_may_not_log_in_any_more_goes_on_when_it_may(
    databases: list[Database], nats: Nats, stream: str, tmp_path: Path
) -> None:
    a, b = databases
    role = f"r_{a.name}"
    a.execute(f"CREATE ROLE {role} LOGIN REPLICATION SUPERUSER")
    pipeline = pipeline_of(tmp_path, databases, nats, stream)
    pipeline["backends"][0]["connection"] = a.url.replace("postgres@", f"{role}@")
    try:
        with running(tmp_path, pipeline) as run:
            eventually(lambda: connected(run), run=run)
            insert(a, 1, 3)
            eventually(lambda: ids(nats, stream, "a") == [1, 2, 3], run=run)
            a.execute(f"ALTER ROLE {role} NOLOGIN")
            a.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots"
                " WHERE slot_name = %s",
                (f"slot_{a.name}",),
            )
            insert(a, 4, 9)
            eventually(lambda: "not permitted to log in" in backend(run, "a")["blocked"], run=run)
            insert(b, 1, 61)
            eventually(lambda: ids(nats, stream, "b") == list(range(1, 62)), run=run)
            a.execute(f"ALTER ROLE {role} LOGIN")
            eventually(lambda: ids(nats, stream, "a") == list(range(1, 10)), run=run)
            eventually(lambda: run.get("/health")[0] == 200, run=run)
            assert run.stop() == 0
        assert len(messages(nats, stream)) == 9 + 61
    finally:
        a.execute(f"DROP ROLE {role}")


@pytest.mark.thorough
def test_a_backend_that_can_not_begin_does_not_hold_up_the_others(
    databases: list[Database], nats: Nats, stream: str, tmp_path: Path
) -> None:
    a, b = databases
    a.execute("DROP PUBLICATION pub")
    with running(tmp_path, pipeline_of(tmp_path, databases, nats, stream)) as run:
        eventually(lambda: backend(run, "b")["connected"], run=run)
        insert(b, 1, 61)
        eventually(lambda: ids(nats, stream, "b") == list(range(1, 62)), run=run)
        assert run.get("/health")[0] == 503
        assert "CREATE PUBLICATION" in backend(run, "a")["blocked"]
        assert not backend(run, "a")["begun"]
        a.execute("CREATE PUBLICATION pub FOR TABLE items")
        eventually(lambda: backend(run, "a")["connected"], run=run)
        insert(a, 1, 3)
        eventually(lambda: ids(nats, stream, "a") == [1, 2, 3], run=run)
        assert run.get("/health")[0] == 200
        assert run.stop() == 0


def test_a_start_ends_where_no_backend_can_begin(
    databases: list[Database], nats: Nats, stream: str, tmp_path: Path
) -> None:
    for database in databases:
        database.execute("DROP PUBLICATION pub")
    with running(tmp_path, pipeline_of(tmp_path, databases, nats, stream)) as run:
        assert run.process.wait(180) == 2
        assert run.log.count("\nerror: ") == 1
        assert 'CREATE PUBLICATION "pub"' in run.log
        assert "Traceback" not in run.log
