"""The session's master: open micro-batches keep their slots."""

import os

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


def test_an_open_session_leaves_the_environment_alone(spark: SparkSession) -> None:
    """A pipeline that this process starts would take over its Java options and its workers."""
    assert spark.range(1).count() == 1
    ours = str(spark.sparkContext.pythonExec)
    assert ours.endswith("/python")
    assert os.environ.get("PYSPARK_PYTHON") != ours
    assert not os.environ.get("SPARK_HOME", "").endswith("/spark-home")
