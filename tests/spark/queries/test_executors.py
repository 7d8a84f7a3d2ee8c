"""What Spark says of its executors."""

import pytest
from pyspark.sql import SparkSession

from penstock.config import Spark
from penstock.spark.queries.executors import counting, listening

pytestmark = pytest.mark.spark


def test_the_task_slots_of_a_local_session_are_its_threads(spark: SparkSession) -> None:
    count = counting(spark)
    assert [count(), count()] == [2, 2]


def test_a_local_session_needs_no_server_for_executors(spark: SparkSession) -> None:
    assert listening(spark, Spark(port=7100)) is None
