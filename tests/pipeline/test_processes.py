"""Which processes a pipeline has, and that none stays behind."""

from pathlib import Path

import psutil
import pytest

from penstock.demo.servers import Database, Nats
from tests.pipeline.running import (
    Run,
    assert_none_is_left,
    commands,
    count,
    document,
    eventually,
    running,
)

pytestmark = [pytest.mark.live, pytest.mark.spark]


def family(run: Run) -> list[psutil.Process]:
    return psutil.Process(run.process.pid).children(recursive=True)


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
        everything = family(run)
        (server,) = (
            child
            for child in psutil.Process(run.process.pid).children()
            if any("penstock.spark.session.forkserver" in word for word in commands([child]))
        )
        twins = commands(server.children())
        assert any("python_streaming_source_runner" in command for command in twins)
        assert any("pyspark.daemon pyspark.worker" in command for command in twins)
        # Every worker is one of them: no other process has imported PySpark.
        forks = server.children(recursive=True)
        rest = commands([each for each in everything if each not in (server, *forks)])
        assert [word for word in rest if "pyspark" in word and "standin.py" not in word] == [
            word for word in rest if "java" in word
        ]
        run.kill()
        assert_none_is_left(everything)
    assert "Traceback" not in run.log
