"""Which processes a pipeline has, and that none stays behind."""

import tempfile
from pathlib import Path

import psutil
import pytest

from tests.pipeline.running import (
    Run,
    assert_none_is_left,
    commands,
    count,
    document,
    eventually,
    running,
    slot_of,
)
from tests.servers import Database, Nats
from tests.workers import FORK_SERVER, python_workers

pytestmark = [pytest.mark.live, pytest.mark.spark]


def family(run: Run) -> list[psutil.Process]:
    return psutil.Process(run.process.pid).children(recursive=True)


def fork_server(run: Run) -> psutil.Process:
    (server,) = (
        child
        for child in psutil.Process(run.process.pid).children()
        if any(FORK_SERVER in word for word in commands([child]))
    )
    return server


def kinds(run: Run) -> list[str]:
    """What each of its Python workers is."""
    return sorted(python_workers(psutil.Process(run.process.pid)).values())


@pytest.mark.timeout(240)
def test_workers_are_forks_of_one_process_and_a_killed_service_leaves_none(
    database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE items (id bigserial PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE items"
    )
    database.execute(
        "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (f"slot_{database.name}",)
    )
    database.execute("INSERT INTO items DEFAULT VALUES")
    with running(tmp_path, document(tmp_path, database, nats, stream)) as run:
        eventually(lambda: count(nats, stream) == 1, run=run)
        server = fork_server(run)
        # The planner, and the worker of the open micro-batch: those that are done are gone.
        eventually(lambda: kinds(run) == ["source_runner", "worker"], run=run)
        everything = family(run)
        sockets = Path(tempfile.gettempdir()).glob(f"penstock-run-{run.process.pid}-*/sockets/.*")
        assert list(sockets), "a killed run would leave its sockets behind"
        # Every worker is one of them: no other process has imported PySpark.
        forks = server.children(recursive=True)
        rest = commands([each for each in everything if each not in (server, *forks)])
        pythons = [word for word in rest if "python" in word.partition(" ")[0]]
        assert pythons, "each fork has a launcher"
        assert [word for word in pythons if "launcher.py" not in word] == []
        run.kill()
        assert_none_is_left(everything)
    assert "Traceback" not in run.log


@pytest.mark.thorough  # rarely fails
@pytest.mark.timeout(240)
def test_without_the_fork_server_a_killed_service_leaves_no_worker(
    database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE items (id bigserial PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE items"
    )
    pipeline = document(tmp_path, database, nats, stream, spark={"fork_server": False})
    with running(tmp_path, pipeline) as run:
        eventually(lambda: slot_of(database)[2], run=run)
        database.execute("INSERT INTO items DEFAULT VALUES")
        eventually(lambda: count(nats, stream) == 1, run=run)
        everything = family(run)
        assert {"source_runner", "worker"} <= set(kinds(run))
        started = commands(everything)
        assert [word for word in started if FORK_SERVER in word or "launcher.py" in word] == []
        run.kill()
        assert_none_is_left(everything)


@pytest.mark.timeout(240)
def test_with_a_transform_one_worker_of_each_kind_is_kept_and_no_daemon(
    database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    database.execute(
        "CREATE TABLE items (id bigserial PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE items"
    )
    transform = [{"sql": "SELECT * FROM changes WHERE collection = 'items'"}]
    with running(tmp_path, document(tmp_path, database, nats, stream, transform=transform)) as run:
        eventually(lambda: slot_of(database)[2], run=run)
        database.execute("INSERT INTO items DEFAULT VALUES")
        eventually(lambda: count(nats, stream) == 1, run=run)
        # The planner, the two of a task, and one of each kind that Spark asks now and then (names
        # have 15 bytes): their daemons are no processes of their own.
        asked = ["lookup_data_sou", "create_data_sou", "plan_data_sourc", "write_into_data"]
        wanted = ["source_runner", "worker", "worker", *asked, "sink_runner"]
        eventually(lambda: kinds(run) == sorted(wanted), run=run)
