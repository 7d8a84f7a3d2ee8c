"""Spark waits 10 s for a Python that it starts by itself. On a busy machine a fork comes later."""

import os
import signal
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark.session import session
from tests.spark.test_datasource import events, sink, source

pytestmark = pytest.mark.spark

# Of Spark, for a connection: PythonWorkerFactory.createSimpleWorker. There is no setting for it.
PATIENCE = 10.0


def test_a_source_whose_python_starts_late_is_waited_for(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert session._jvm is not None
    forks = session._jvm._forks
    assert forks is not None
    frame = source(spark)
    server = forks._process.pid
    os.kill(server, signal.SIGSTOP)
    late = threading.Timer(PATIENCE + 3, os.kill, (server, signal.SIGCONT))
    late.start()
    try:
        query = sink(frame.limit(100), tmp_path, tmp_path / "checkpoint")
        try:
            while len(events(tmp_path)) < 100:
                assert query.isActive, query.exception()
                late.join(0.2)
        finally:
            query.stop()
    finally:
        late.join()
