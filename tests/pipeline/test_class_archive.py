"""The first run makes the archive of Spark's classes at its end; a damaged one stops no JVM. The
run shows many partitions on the way."""

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from penstock.spark.session.session import ClassArchive
from tests.pipeline.running import CLASSES, Run, eventually, running, tree

pytestmark = pytest.mark.usefixtures("staged")

PARTITIONS, CHANGES = 400, 20


@pytest.mark.timeout(600)
def test_the_first_run_makes_the_class_archive_and_a_damaged_one_stops_none(tmp_path: Path) -> None:
    """It runs first, and later tests start Spark with what it makes."""
    archive = CLASSES.with_name("spark-classes.new")
    archive.unlink(missing_ok=True)
    many = {"type": "staged", "partitions": PARTITIONS, "changes": CHANGES, "polled": True}
    pipeline = {
        "backends": [{"name": "many", **many}],
        "sink": {"type": "memory", "keep": False},
        "spark": {"class_archive": str(archive)},
    }
    with running(tmp_path, pipeline) as run:
        eventually(lambda: run.get("/ready")[0] == 200, run=run)
        (java,) = (each.cmdline() for each in tree(run) if each.name() == "java")
        assert any("-XX:ArchiveClassesAtExit=" in word for word in java)
        assert_all_partitions_and_their_sums_arrive(run)
        assert run.get("/shutdown", "POST")[0] == 202
        assert run.process.wait(180) == 0
    assert starts(java, archive, "-Xshare:on")
    whole = archive.read_bytes()
    archive.replace(CLASSES)
    damaged = tmp_path / "damaged.jsa"
    half = len(whole) // 2
    damaged.write_bytes(whole[:half] + bytes(1 << 20) + whole[half + (1 << 20) :])
    assert not starts(java, damaged, "-Xshare:on"), "it is seen to be damaged"
    assert starts(java, damaged)


def starts(java: list[str], archive: Path, *more: str) -> bool:
    """Whether this JVM does with this archive."""
    command = [each for each in java if "ArchiveClassesAtExit" not in each]
    command = command[: command.index("org.apache.spark.deploy.SparkSubmit")]
    command += [*shlex.split(ClassArchive(archive).options()), *more, "-version"]
    return subprocess.run(command, check=False, capture_output=True, timeout=60).returncode == 0


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
