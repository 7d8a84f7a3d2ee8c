"""Spark on standby: everything that the pipeline's queries will need is running and imported."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import structlog
from pyspark.sql import SparkSession

from penstock.config import Pipeline, parse_pipeline
from penstock.spark.queries import warming as module
from penstock.spark.queries.warming import Warming
from tests.workers import python_workers

# What Spark runs for a query of ours, besides the planner, which is each query's own.
KINDS = {"create_data_sou", "plan_data_sourc", "sink_runner", "write_into_data", "worker"}
PLANNER = "source_runner"


def pipeline_of(folder: Path, **more: object) -> Pipeline:
    """Neither its database nor its broker is there."""
    document = {
        "name": "shop",
        "backends": [
            {
                "name": "default",
                "type": "postgres",
                "connection": "postgresql://127.0.0.1:1/none",
                "slot": "s",
                "publication": "p",
            }
        ],
        "sink": {"type": "jetstream", "url": "nats://127.0.0.1:1", "stream": "NONE"},
        "state": str(folder),
        **more,
    }
    return parse_pipeline(json.dumps(document))


def workers() -> dict[int, str]:
    """Process -> its kind, of all Python workers of this test's Spark that are alive."""
    return python_workers(psutil.Process())


def until_warm(warming: Warming, spark: SparkSession) -> None:
    deadline = time.monotonic() + 90
    with structlog.testing.capture_logs() as logs:
        while {"event": "spark is warm", "log_level": "info"} not in logs:
            assert time.monotonic() < deadline, logs
            warming.keep(spark)
            time.sleep(0.1)


@pytest.fixture
def pipeline(request: pytest.FixtureRequest, tmp_path: Path) -> Pipeline:
    return pipeline_of(tmp_path, **getattr(request, "param", {}))


@pytest.fixture
def warming(pipeline: Pipeline, tmp_path: Path) -> Iterator[Warming]:
    made = Warming(pipeline, tmp_path)
    yield made
    made.end()


@pytest.mark.parametrize(
    "pipeline",
    [{}, {"transform": [{"sql": "SELECT * FROM changes"}]}],
    ids=["realtime", "rows"],
    indirect=True,
)
def test_every_kind_of_worker_is_there_and_stays_and_has_imported_what_it_needs(
    warming: Warming, spark: SparkSession
) -> None:
    until_warm(warming, spark)
    before = workers()
    assert KINDS | {PLANNER} <= set(before.values())
    mapped = set()
    for pid, kind in before.items():
        with suppress(psutil.Error):
            if any("psycopg" in each.path for each in psutil.Process(pid).memory_maps()):
                mapped.add(kind)
    assert mapped >= {"worker", PLANNER}
    warming.end()
    assert spark.streams.active == []
    after = workers()
    assert set(after.values()) >= KINDS
    assert {pid for pid, kind in after.items() if kind in KINDS} <= set(before)


def test_it_begins_again_after_its_end_and_when_it_fails_which_is_told(
    warming: Warming, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PACE", 1)
    until_warm(warming, spark)
    warming.end()
    until_warm(warming, spark)
    assert [query.name for query in spark.streams.active] == ["warming"]
    for query in spark.streams.active:
        query.stop()
    with structlog.testing.capture_logs() as logs:
        warming.keep(spark)
        warming.keep(spark)
    assert [each["event"] for each in logs] == ["spark is not kept warm; trying again"]
    until_warm(warming, spark)
