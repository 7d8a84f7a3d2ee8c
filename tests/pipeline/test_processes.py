"""Which processes a pipeline has, when it is ready, and that no process stays behind."""

import json
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
    messages,
    running,
    slot_of,
)
from tests.servers import Database, Nats
from tests.workers import FORK_SERVER, python_workers

pytestmark = [pytest.mark.live, pytest.mark.spark]

TABLE = "CREATE TABLE items (id bigserial PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE items"


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


def ready(run: Run) -> bool:
    code, body = run.get("/ready")
    assert json.loads(body)["ready"] is (code == 200)
    return code == 200


@pytest.mark.timeout(600)
def test_a_pipeline_from_its_first_start_to_its_kill(
    database: Database, stream: str, tmp_path: Path
) -> None:
    """What is written after the first 200 of /ready is delivered; it is not ready while its sink is
    away; its workers are forks of one process; a killed service leaves none."""
    database.execute(TABLE)
    database.execute("INSERT INTO items DEFAULT VALUES")
    with Nats() as nats, running(tmp_path, document(tmp_path, database, nats, stream)) as run:
        eventually(lambda: run.url, run=run)
        code, body = run.get("/ready")
        assert (code, json.loads(body)["reasons"]) == (503, ["backend default: has not begun"])
        eventually(lambda: ready(run), run=run)
        insert(database, 100)
        eventually(lambda: count(nats, stream) == 100, run=run)
        nats.stop()
        insert(database, 50)
        eventually(lambda: not ready(run), run=run)
        nats.start()
        eventually(lambda: ready(run), run=run)
        eventually(lambda: count(nats, stream) == 150, run=run)
        ids = [message.body["data"]["id"] for message in messages(nats, stream)]
        assert ids == list(range(2, 152))
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


def insert(database: Database, rows: int) -> None:
    database.execute("INSERT INTO items SELECT FROM generate_series(1, %s::int)", (rows,))


@pytest.mark.thorough  # rarely fails
@pytest.mark.timeout(240)
def test_without_the_fork_server_a_killed_service_leaves_no_worker(
    database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    database.execute(TABLE)
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
