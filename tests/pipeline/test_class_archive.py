"""An idle run makes the archive of Spark's classes, and the next one uses it; a damaged one stops
no JVM. The first run shows many partitions on the way."""

import json
import os
import shlex
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.spark.session.archive import ClassArchive
from tests.pipeline.running import CLASSES, Run, eventually, running, tree

pytestmark = pytest.mark.usefixtures("staged")

PARTITIONS, CHANGES = 400, 20


@pytest.mark.timeout(900)
def test_an_idle_run_makes_the_class_archive_and_the_next_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs first, and later tests start Spark with what it makes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # At its own priority the maker would wait for the rest of the suite.
    (tmp_path / "nice").write_text('#!/bin/sh\nshift 2\nexec "$@"\n')
    (tmp_path / "nice").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    many = {"type": "staged", "partitions": PARTITIONS, "changes": CHANGES, "polled": True}
    pipeline = {
        "backends": [{"name": "many", **many}],
        "sink": {"type": "memory", "keep": False},
        "spark": {"class_archive": True},
    }
    cache = tmp_path / "cache" / "penstock"
    with running(tmp_path, pipeline) as run:
        eventually(lambda: run.get("/ready")[0] == 200, run=run)
        assert "-XX:DumpLoadedClassList=" in " ".join(java_of(run))
        assert_all_partitions_and_their_sums_arrive(run)
        eventually(lambda: list(cache.glob("*.jsa")), seconds=600, run=run)
        # The folder of its draft is removed after that.
        eventually(lambda: [each.suffix for each in cache.iterdir()] == [".jsa"], run=run)
        (archive,) = cache.iterdir()
        stop(run)
    with running(tmp_path, pipeline) as run:
        eventually(lambda: run.get("/ready")[0] == 200, run=run)
        java = java_of(run)
        assert f"-XX:SharedArchiveFile={archive}" in java
        stop(run)
    assert list(cache.iterdir()) == [archive]
    assert starts(java, archive, "-Xshare:on")
    whole = archive.read_bytes()
    damaged = tmp_path / "damaged.jsa"
    half = len(whole) // 2
    damaged.write_bytes(whole[:half] + bytes(1 << 20) + whole[half + (1 << 20) :])
    assert not starts(java, damaged, "-Xshare:on"), "it is seen to be damaged"
    assert starts(java, damaged)
    new = CLASSES.with_name(f"{CLASSES.name}.{os.getpid()}")
    shutil.copy(archive, new)
    new.replace(CLASSES)


def test_false_neither_makes_nor_uses_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pipeline = {
        "backends": [{"type": "memory"}],
        "sink": {"type": "memory"},
        "spark": {"class_archive": False},
    }
    with running(tmp_path, pipeline) as run:
        eventually(lambda: run.get("/ready")[0] == 200, run=run)
        assert not {"SharedArchiveFile", "LoadedClassList"} & {
            word.partition("=")[0].removeprefix("-XX:Dump").removeprefix("-XX:")
            for word in java_of(run)
        }
        stop(run)
    assert not (tmp_path / "cache").exists()


def java_of(run: Run) -> list[str]:
    found = []
    for process in tree(run):
        with suppress(psutil.NoSuchProcess):  # some end while we look
            if process.name() == "java":
                found.append(process.cmdline())
    (java,) = found
    return java


def stop(run: Run) -> None:
    assert run.get("/shutdown", "POST")[0] == 202
    assert run.process.wait(180) == 0


def starts(java: list[str], archive: Path, *more: str) -> bool:
    """Whether this JVM does with this archive."""
    command = [each for each in java if "SharedArchiveFile" not in each]
    command = command[: command.index("org.apache.spark.deploy.SparkSubmit")]
    options = ClassArchive(archive, archive.with_name("list"), is_ours=False).options()
    command += [*shlex.split(options), *more, "-version"]
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
