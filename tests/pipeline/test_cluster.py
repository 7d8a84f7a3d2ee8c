"""A standalone cluster whose workers share neither the driver's folder nor its sockets."""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import nats as nats_py
import psutil
import psycopg
import pytest

from penstock.model.errors import Unavailable
from tests.cluster import Cluster
from tests.pipeline.running import (
    SHORT_LIVED,
    Run,
    count,
    document,
    eventually,
    json_messages,
    running,
    send,
    tree,
)
from tests.servers import Database, Nats

pytestmark = pytest.mark.fault

TABLES = """
CREATE TABLE a (id bigserial PRIMARY KEY, note text);
CREATE TABLE b (id bigserial PRIMARY KEY, note text);
CREATE PUBLICATION pub_a FOR TABLE a;
CREATE PUBLICATION pub_b FOR TABLE b
"""
NAMES = ("a", "b")
# More than a nats-server takes.
TOO_LARGE = 2 * 2**20
# A cluster has no fork server: on a busy machine, workers are started several times over.
patiently = partial(eventually, seconds=400)


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
    # Subjects of its own make each backend's writes exactly once.
    made["sink"]["subject"] = f"{stream.lower()}.{{backend}}"
    conf = {"spark.executor.memory": "512m", "spark.executor.cores": 1}
    made["spark"] = {"master": cluster.url, "conf": conf}
    return made


@contextmanager
def load(database: Database) -> Iterator[Callable[[], int]]:
    """Inserts five rows into each table again and again; the function ends that, and says how many
    each has got."""
    stop, rows = threading.Event(), [0]

    def insert() -> None:
        with psycopg.connect(database.url, autocommit=True) as connection:
            while not stop.wait(0.05):
                for name in NAMES:
                    connection.execute(
                        f"INSERT INTO {name} (note) SELECT 'x' FROM generate_series(1, 5)"
                    )
                rows[0] += 5

    thread = threading.Thread(target=insert, daemon=True)
    thread.start()

    def end() -> int:
        stop.set()
        thread.join()
        return rows[0]

    try:
        yield end
    finally:
        end()


def stored(nats: Nats, stream: str) -> dict[str, list[int]]:
    """The ids of each table's rows, in their order in the stream."""
    found: dict[str, list[int]] = {name: [] for name in NAMES}
    for body in json_messages(nats, stream):
        if body["operation"] == "INSERT":  # not the message that a table is suspended
            found[body["collection"]].append(body["data"]["id"])
    return found


def assert_complete(nats: Nats, stream: str, rows: int) -> bool:
    """Every row is there; raises for those that are not."""
    for name, ids in stored(nats, stream).items():
        missing = sorted(set(range(1, rows + 1)) - set(ids))
        assert not missing, f"{name} lacks {len(missing)} of {rows}: {missing[:20]}"
    return True


def assert_exact(nats: Nats, stream: str, rows: int) -> None:
    assert stored(nats, stream) == {name: list(range(1, rows + 1)) for name in NAMES}


def connected(run: Run) -> bool:
    return all(each["connected"] for each in run.status()["backends"])


def kill_an_executor(cluster: Cluster, nats: Nats, stream: str, run: Run) -> None:
    """With kill -9, while changes flow; returns when they flow again."""
    send(cluster.executors()[:1], signal.SIGKILL)
    before = count(nats, stream)
    patiently(lambda: count(nats, stream) > before + 100, run=run)


def published(run: Run) -> int:
    return int(run.status()["sinks"][0]["published"])


def insert_too_large(database: Database, table: str) -> None:
    """A row that no nats-server takes, with an id of its own."""
    database.execute(f"INSERT INTO {table} VALUES (0, repeat('x', {TOO_LARGE}))")


def free_ports(number: int) -> int:
    """The first of so many free ports in a row, below those that the kernel gives away."""
    for first in range(20_000 + os.getpid() % 1000 * 10, 32_000, number):
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + number):
                stack.enter_context(socket.create_server(("0.0.0.0", port)))
            return first
    raise AssertionError("no ports are free")


def listening(run: Run) -> set[tuple[str, int]]:
    """Where the run's Python processes listen for TCP connections."""
    found = set[tuple[str, int]]()
    for process in tree(run):
        with suppress(psutil.NoSuchProcess):  # a worker that has ended meanwhile
            if process.name().startswith("python"):
                found |= {
                    (each.laddr.ip, each.laddr.port)
                    for each in process.net_connections("tcp")
                    if each.status == psutil.CONN_LISTEN
                }
    return found


@pytest.mark.timeout(1200)
def test_tasks_on_other_hosts_report_and_lose_nothing_with_an_executor(
    cluster: Cluster, database: Database, nats: Nats, stream: str, tmp_path: Path, pipeline: Any
) -> None:
    """Nor when the cluster ends its application, after which the service starts again."""
    cluster.scale(2)
    first = free_ports(3)
    pipeline["spark"]["port"] = first
    # As behind NAT: executors connect to another address than the one that is bound.
    pipeline["spark"]["conf"] |= {
        "spark.driver.host": "127.0.0.3",
        "spark.driver.bindAddress": "0.0.0.0",
    }
    pipeline["backends"][1]["on_error"] = "suspend"
    with running(tmp_path, pipeline) as run:
        # Before there are slots, nothing is followed.
        patiently(lambda: connected(run), run=run)
        with load(database) as end:
            patiently(lambda: published(run) > 100, run=run)
            assert list(cluster.hidden.glob("penstock-run-*/board"))
            assert cluster.seen_by_workers() == []
            assert {("0.0.0.0", port) for port in range(first, first + 3)} <= listening(run)
            kill_an_executor(cluster, nats, stream, run)
            assert cluster.end_applications() == 1
            patiently(lambda: "starting again" in run.log, run=run)
            flows(nats, stream, run, rows=100)
            rows = end()
        patiently(lambda: assert_complete(nats, stream, rows), run=run)
        for name in NAMES:
            insert_too_large(database, name)

        def poison() -> tuple[Any, Any]:
            status = run.status()
            tables = {
                each["table"]: each["state"] for each in status["tables"]
                if each["state"] == "suspended"
            }  # fmt: skip
            return status["sinks"][0]["dead_letters"], tables

        patiently(lambda: poison() == ({"too-large": 2}, {"public.b": "suspended"}), run=run)
        sink = run.status()["sinks"][0]
        assert (sink["delivery"], sink["connected"]) == ("exactly-once", True)
        assert sink["pressure"] is not None
        assert run.stop() == 0
    assert_exact(nats, stream, rows)


@pytest.mark.thorough  # of the first, with a transform
@pytest.mark.timeout(1200)
def test_a_transform_on_other_hosts_loses_nothing_with_an_executor(
    cluster: Cluster, database: Database, nats: Nats, stream: str, tmp_path: Path, pipeline: Any
) -> None:
    cluster.scale(2)
    pipeline["transform"] = [{"sql": "SELECT * FROM changes WHERE collection <> 'none'"}]
    with running(tmp_path, pipeline) as run:
        # Before there are slots, nothing is followed.
        patiently(lambda: connected(run), run=run)
        with load(database) as end:
            patiently(lambda: published(run) > 100, run=run)
            kill_an_executor(cluster, nats, stream, run)
            rows = end()
        insert_too_large(database, "a")
        patiently(lambda: assert_complete(nats, stream, rows), run=run)
        letters = {"too-large": 1}
        patiently(lambda: run.status()["sinks"][0]["dead_letters"] == letters, run=run)
        assert run.stop() == 0
    assert_exact(nats, stream, rows)


def has_long_epochs(nats: Nats, stream: str, run: Run) -> bool:
    """Whether no epoch ends while each table gets 200 rows, which takes ten short ones."""

    def batches() -> list[int]:
        return [each["batches"] for each in run.status()["backends"]]

    before = batches()
    flows(nats, stream, run, rows=200)
    return batches() == before


@pytest.mark.thorough  # of the third, with executors that Spark asks for
@pytest.mark.timeout(1200)
def test_with_dynamic_allocation_each_backend_gets_a_core(
    cluster: Cluster, database: Database, nats: Nats, stream: str, tmp_path: Path, pipeline: Any
) -> None:
    cluster.scale(2)
    pipeline["spark"]["conf"] |= {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": len(NAMES),
        "spark.dynamicAllocation.maxExecutors": 4,
        "spark.dynamicAllocation.executorIdleTimeout": "5s",
    }
    with running(tmp_path, pipeline) as run:
        patiently(lambda: connected(run), run=run)
        with load(database) as end:
            flows(nats, stream, run)
            patiently(lambda: has_long_epochs(nats, stream, run), run=run)
            # Spark asks for another executor in place of one that died.
            kill_an_executor(cluster, nats, stream, run)
            patiently(lambda: has_long_epochs(nats, stream, run), run=run)
            rows = end()
        patiently(lambda: assert_complete(nats, stream, rows), run=run)
        assert run.stop() == 0
    assert_exact(nats, stream, rows)


def flows(nats: Nats, stream: str, run: Run, rows: int = 1) -> None:
    """Waits until so many more rows of each table are stored."""
    before = counts(nats, stream)

    def came() -> bool:
        now = counts(nats, stream)
        return all(now.get(name, 0) >= before.get(name, 0) + rows for name in NAMES)

    patiently(came, run=run)


def counts(nats: Nats, stream: str) -> dict[str, int]:
    """How many rows each backend has stored."""
    return asyncio.run(_counts(nats.url, stream))


async def _counts(url: str, stream: str) -> dict[str, int]:
    connection = await nats_py.connect(url)
    try:
        found = await connection.jetstream(timeout=60).stream_info(stream, subjects_filter=">")
    except nats_py.js.errors.NotFoundError:
        return {}
    finally:
        await connection.close()
    return {subject.split(".")[1]: n for subject, n in (found.state.subjects or {}).items()}
