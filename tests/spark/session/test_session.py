"""The session's master: open micro-batches keep their slots."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark.session.launch import is_local, with_slots

CORES = os.cpu_count() or 1


@pytest.mark.parametrize(
    ("master", "slots", "meant"),
    [
        ("local", 1, "local"),
        ("local", 3, "local[3]"),
        ("local[2]", 2, "local[2]"),
        ("local[2]", 3, "local[3]"),
        ("local[*]", CORES, "local[*]"),
        ("local[*]", CORES + 1, f"local[{CORES + 1}]"),
        ("local[1,4]", 2, "local[2,4]"),
        ("local[*, 4]", CORES + 2, f"local[{CORES + 2}, 4]"),
        ("local[two]", 3, "local[two]"),
        ("spark://host:7077", 3, "spark://host:7077"),
    ],
)
def test_a_local_master_has_a_slot_for_every_backend(master: str, slots: int, meant: str) -> None:
    assert with_slots(master, slots) == meant


@pytest.mark.parametrize("master", ["local-cluster[2,1,1024]", "spark://host:7077", "yarn"])
def test_a_cluster_is_not_local(master: str) -> None:
    assert not is_local(master)


@pytest.mark.parametrize("which", ["JAVA_HOME", "PATH"])
def test_a_run_without_java_says_so(which: str, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text("{backends: [{type: memory}], sink: {type: memory}, ops: {port: 0}}")
    environment = {**os.environ, "JAVA_HOME": ""}
    environment[which] = "/nowhere"
    done = subprocess.run(
        [sys.executable, "-m", "penstock", "run", file, "--state", tmp_path],
        env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert "[spark.java-missing]" in done.stderr or "explain spark.java-missing" in done.stderr
    assert "install a Java runtime 17 or newer" in done.stderr


def test_an_open_session_leaves_the_environment_alone(spark: SparkSession) -> None:
    """A pipeline that this process starts would take over its Java options and its workers."""
    assert spark.range(1).count() == 1
    ours = str(spark.sparkContext.pythonExec)
    assert ours.endswith("/python")
    assert os.environ.get("PYSPARK_PYTHON") != ours
    assert not os.environ.get("SPARK_HOME", "").endswith("/spark-home")
