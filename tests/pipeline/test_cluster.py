"""A standalone cluster whose workers share neither the driver's folder nor its sockets."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.demo.servers import Database, Nats
from penstock.errors import Unavailable
from tests.cluster import Cluster
from tests.pipeline.running import (
    SHORT_LIVED,
    Run,
    document,
    eventually,
    json_messages,
    running,
    send,
)

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.fault]

TABLES = """
CREATE TABLE a (id bigserial PRIMARY KEY, note text);
CREATE TABLE b (id bigserial PRIMARY KEY, note text);
CREATE PUBLICATION pub_a FOR TABLE a;
CREATE PUBLICATION pub_b FOR TABLE b
"""
NAMES = ("a", "b")
# More than a nats-server takes.
TOO_LARGE = 2 * 2**20


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    try:
        with Cluster() as found:
            yield found
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def pipeline(
    cluster: Cluster,
    database: Database,
    nats: Nats,
    stream: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> dict[str, Any]:
    """Two backends, a table each; the driver's files are where no worker sees them."""
    monkeypatch.setenv("TMPDIR", str(cluster.hidden))
    monkeypatch.setenv("JDK_JAVA_OPTIONS", SHORT_LIVED)
    database.execute(TABLES)
    made = document(tmp_path, database, nats, stream)
    (first,) = made["backends"]
    made["backends"] = [
        {**first, "name": name, "slot": f"{first['slot']}_{name}", "publication": f"pub_{name}"}
        for name in NAMES
    ]
    conf = {"spark.executor.memory": "512m", "spark.executor.cores": 1}
    made["spark"] = {"master": cluster.url, "conf": conf}
    return made


def insert(database: Database, table: str, rows: int) -> None:
    database.execute(f"INSERT INTO {table} (note) SELECT 'x' FROM generate_series(1, {rows})")


def ids(nats: Nats, stream: str, table: str) -> list[int]:
    """Of a table's stored rows, in their order."""
    bodies = json_messages(nats, stream)
    return [body["data"]["id"] for body in bodies if body["collection"] == table]


def connected(run: Run) -> bool:
    return all(each["connected"] for each in run.status()["backends"])


def test_tasks_on_other_hosts_report(
    cluster: Cluster, database: Database, nats: Nats, stream: str, tmp_path: Path, pipeline: Any
) -> None:
    cluster.scale(2)
    pipeline["backends"][1]["on_error"] = "suspend"
    with running(tmp_path, pipeline) as run:
        eventually(lambda: connected(run), run=run)
        insert(database, "a", 100)
        insert(database, "b", 100)
        eventually(lambda: run.status()["sinks"][0]["published"] == 200, run=run)
        send(cluster.executors(), signal.SIGKILL)
        assert run.stop() == 0
    assert ids(nats, stream, "a") == list(range(1, 101))
