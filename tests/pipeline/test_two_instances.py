"""Two instances of one pipeline: one publishes, the other takes over, and never do both."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.demo.programs import free_port
from penstock.demo.servers import Database, Nats
from tests.pipeline.running import Run, document, eventually, running
from tests.pipeline.test_faults import assert_exact, load, prepared, stored_all

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.fault]

# Seconds from the end of one instance to the first message of the next, on a busy machine.
SOON = 60.0


@contextmanager
def two(folder: Path, pipeline: dict[str, Any]) -> Iterator[tuple[Run, Run]]:
    """A run that publishes, and one on standby."""
    folders = folder / "first", folder / "second"
    for each in folders:
        each.mkdir()
    with running(folders[0], pipeline) as first:
        eventually(lambda: first.status()["last_batch"], run=first)
        with running(folders[1], pipeline) as second:
            eventually(lambda: second.status()["health"] == "standby", run=second)
            yield first, second


def takes_over(second: Run) -> float:
    """Waits until it publishes; how long it took."""
    before = time.monotonic()
    eventually(lambda: second.status()["sinks"][0]["published"], seconds=SOON, run=second)
    return time.monotonic() - before


@pytest.mark.timeout(300)
def test_without_a_shared_store_the_slot_decides(
    database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    truth = prepared(database)
    pipeline = document(tmp_path, database, nats, stream)
    pipeline["positions"] = "memory:"
    with load(database) as writer, two(tmp_path, pipeline) as (first, second):
        assert "in use by the process" in second.status()["standby"]
        first.kill()
        takes_over(second)
        changes = writer.stop()
        eventually(lambda: stored_all(nats, stream, changes), run=second)
    assert_exact(truth, nats, stream, changes)


@pytest.mark.timeout(300)
def test_on_one_host_the_second_waits_for_the_ops_port_too(
    database: Database, nats: Nats, stream: str, tmp_path: Path
) -> None:
    prepared(database)
    pipeline = document(tmp_path, database, nats, stream)
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    pipeline["ops"] = {"port": free_port()}
    with running(tmp_path / "first", pipeline) as first:
        eventually(lambda: first.status()["health"] == "ok", run=first)
        with running(tmp_path / "second", pipeline) as second:
            eventually(lambda: "waits for its port" in second.log, run=second)
            first.kill()
            eventually(lambda: second.status()["health"] == "ok", seconds=SOON, run=second)
            assert second.url == first.url
