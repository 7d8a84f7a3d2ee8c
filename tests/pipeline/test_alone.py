"""One backend fails for good: the others go on, operators see it, and mending it is enough."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.running import Run, document, eventually, messages, running
from tests.servers import Database, Nats, Postgres

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
