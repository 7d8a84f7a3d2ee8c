"""A stop is idempotent, saves, and returns within its time."""

import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from penstock.leases import open_store
from tests.pipeline.running import (
    Run,
    assert_none_is_left,
    count,
    document,
    eventually,
    messages,
    running,
    tree,
)
from tests.servers import Database, Nats

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
