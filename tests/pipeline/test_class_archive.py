"""The first run makes the archive of Spark's classes at its end; a damaged one stops no Spark. The
first shows many partitions on the way."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.running import CLASSES, Run, commands, eventually, running, tree

pytestmark = pytest.mark.usefixtures("staged")

PARTITIONS, CHANGES = 400, 20


@pytest.mark.timeout(600)
def test_the_first_run_makes_the_class_archive_and_a_damaged_one_stops_none(tmp_path: Path) -> None:
    """It runs first, and later tests start Spark with what it makes."""
    archive = CLASSES.with_name("spark-classes.new")
    archive.unlink(missing_ok=True)
    with started(tmp_path, archive, "-XX:ArchiveClassesAtExit=") as run:
        assert_all_partitions_and_their_sums_arrive(run)
        assert run.get("/shutdown", "POST")[0] == 202
        assert run.process.wait(180) == 0
    whole = archive.read_bytes()
    archive.replace(CLASSES)
    damaged = tmp_path / "damaged.jsa"
    half = len(whole) // 2
    damaged.write_bytes(whole[:half] + bytes(1 << 20) + whole[half + (1 << 20) :])
    with started(tmp_path, damaged, f"-XX:SharedArchiveFile={damaged}") as run:
        assert run.stop() == 0


@contextmanager
def started(folder: Path, archive: Path, option: str) -> Iterator[Run]:
    """A pipeline with this archive that is ready, in a JVM with this option."""
    many = {"type": "staged", "partitions": PARTITIONS, "changes": CHANGES, "polled": True}
    pipeline = {
        "backends": [{"name": "many", **many}],
        "sink": {"type": "memory", "keep": False},
        "spark": {"class_archive": str(archive)},
    }
    with running(folder, pipeline) as run:
        eventually(lambda: run.get("/ready")[0] == 200, run=run)
        assert any(option in command for command in commands(tree(run)))
        yield run


def backend(run: Run, query: str = "") -> Any:
    return json.loads(run.get(f"/status{query}")[1])["backends"][0]


def assert_all_partitions_and_their_sums_arrive(run: Run) -> None:
    def durable() -> bool:
        rows = backend(run, "?partitions=all")["partitions"]
        return len([row for row in rows if row["place"]]) == PARTITIONS

    eventually(durable, run=run)
    eventually(lambda: backend(run)["events"] == PARTITIONS * CHANGES, run=run)
    found = backend(run)
    assert (found["connected"], found["partition_count"]) == (True, PARTITIONS)
    assert found["partition_states"] == {"reading": PARTITIONS}
    assert len(found["partitions"]) == 20
    assert found["pages"] == PARTITIONS
    assert found["last_event_seconds"] is not None
    every = backend(run, "?partitions=all")["partitions"]
    assert {row["partition"] for row in every} == {f"p{n}" for n in range(PARTITIONS)}
    eventually(lambda: backend(run)["lag"] == {"changes": 0}, run=run)
    eventually(lambda: run.get("/health")[0] == 200, run=run)
    where = 'penstock_partitions{backend="many",state="reading"}'
    assert f"{where} {PARTITIONS}.0" in run.get("/metrics")[1]
