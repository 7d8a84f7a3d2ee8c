"""A stop is idempotent, saves, and returns within its time, also while nothing can be saved."""

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.leases import open_store
from penstock.model.errors import Unavailable
from tests.pipeline.running import (
    Run,
    assert_none_is_left,
    count,
    document,
    eventually,
    messages,
    running,
    slot_of,
    tree,
)
from tests.servers import Database, Etcd, Nats, etcd_program

pytestmark = [
    pytest.mark.live,
    pytest.mark.spark,
    pytest.mark.timeout(900),  # starts of Spark
]

# Seconds: draining has 30, an unreachable store 5 of them; Spark ends after that.
IN_TIME = 180


def twice_by_signal(run: Run) -> None:
    for _ in range(2):
        run.process.send_signal(signal.SIGTERM)


def twice_by_request(run: Run) -> None:
    assert run.get("/shutdown", "POST")[0] == 202
    with suppress(OSError):  # it had ended before that
        assert run.get("/shutdown", "POST")[0] == 202


def by_both(run: Run) -> None:
    assert run.get("/shutdown", "POST")[0] == 202
    run.process.send_signal(signal.SIGINT)


def rows(database: Database, first: int, last: int) -> None:
    database.execute("INSERT INTO items SELECT generate_series(%s::int, %s::int)", (first, last))


@pytest.fixture
def items(database: Database) -> Database:
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY); CREATE PUBLICATION pub FOR TABLE items"
    )
    return database


@pytest.mark.thorough  # rarely fails
@pytest.mark.parametrize("stop", [by_both, twice_by_signal, twice_by_request])
def test_a_second_stop_changes_nothing(
    stop: Callable[[Run], None], items: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    """What is in flight is stored and its position saved, once, and no process is left."""
    pipeline = document(tmp_path, items, nats, stream)
    with running(tmp_path, pipeline) as run:
        eventually(lambda: run.get("/ready")[0] == 200, run=run)
        rows(items, 1, 500)
        eventually(lambda: count(nats, stream) >= 500, run=run)
        processes = tree(run)
        started = time.monotonic()
        stop(run)
        assert run.process.wait(IN_TIME) == 0
        assert time.monotonic() - started < IN_TIME
        assert run.log.count("Traceback") == 0, run.log
        assert_none_is_left(processes)
    assert len(messages(nats, stream)) == 500
    store = open_store(f"sqlite:///{tmp_path}/state/positions.db")
    try:
        (row,) = store.list("test/default/")
    finally:
        store.close()
    last = messages(nats, stream)[-1].body["position"]
    assert f'"place": "{last}"' in row.continuation


@pytest.mark.fault
def test_a_stop_while_the_positions_store_is_away(
    items: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    """Changes flow on, nothing is acknowledged, and health says so. A stop returns within its time
    and says what was not saved; the next start waits for the store, and repeats nothing."""
    try:
        etcd_program()
    except Unavailable as error:
        pytest.skip(str(error))
    with Etcd() as etcd:
        url = f"{etcd.url}/penstock/positions"
        pipeline = document(tmp_path, items, nats, stream, positions=url)
        pipeline["checkpoint"] = {"interval": "1s"}
        with running(tmp_path, pipeline) as run:
            eventually(lambda: run.get("/ready")[0] == 200, run=run)
            rows(items, 1, 100)
            eventually(lambda: count(nats, stream) == 100, run=run)
            eventually(lambda: run.status()["backends"][0]["saved"] > 0, run=run)
            assert "penstock_checkpoint_seconds_count" in run.get("/metrics")[1]
            etcd.kill()
            before = slot_of(items)[1]
            rows(items, 101, 200)
            eventually(lambda: count(nats, stream) == 200, run=run)
            last = messages(nats, stream)[-1].body["position"]
            eventually(lambda: "positions are not saved" in str(run.status()["reasons"]), run=run)
            assert run.status()["health"] == "degraded"
            eventually(lambda: run.status()["backends"][0]["save_errors"] >= 3, run=run)
            assert run.status()["backends"][0]["restarts"] == 0
            assert is_before(items, slot_of(items)[0], before)
            started = time.monotonic()
            assert run.stop(IN_TIME) == 0
            assert time.monotonic() - started < IN_TIME
            assert "stopped with positions that are not saved" in run.log
            assert last in run.log
        with running(tmp_path, pipeline) as run:
            eventually(lambda: run.get("/ready")[0] == 503, run=run)
            eventually(lambda: "not available; trying again" in run.log, run=run)
            etcd.start()
            eventually(lambda: run.get("/ready")[0] == 200, run=run)
            rows(items, 201, 300)
            eventually(lambda: count(nats, stream) == 300, run=run)
            assert run.stop(IN_TIME) == 0
    ids = [message.body["data"]["id"] for message in messages(nats, stream)]
    assert ids == list(range(1, 301))


def is_before(database: Database, confirmed: str, lsn: str) -> bool:
    """Whether not everything up to `lsn` was acknowledged."""
    return bool(database.execute("SELECT %s::pg_lsn <= %s::pg_lsn", (confirmed, lsn))[0][0])
