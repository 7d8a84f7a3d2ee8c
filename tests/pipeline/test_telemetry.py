"""`penstock run` sends its telemetry: real PostgreSQL, real Spark, real JetStream, a collector."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.running import document, eventually, messages, running, slot_of
from tests.servers import Database, Nats
from tests.servers.otlp import Collector, attributes, points

TRACE = f"00-{'1' * 32}-{'2' * 16}-01"
SAY = f"SELECT pg_logical_emit_message(true, 'traceparent', '{TRACE}')"
TABLE = "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION pub FOR ALL TABLES"


def test_metrics_logs_and_batches_reach_a_collector(
    database: Database, nats: Nats, stream: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(TABLE)
    pipeline = document(tmp_path, database, nats, stream, checkpoint={"interval": "200ms"})
    pipeline["sink"]["traceparent"] = {"message": "traceparent"}
    with Collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        with running(tmp_path, pipeline) as run:
            eventually(lambda: slot_of(database)[2], run=run)
            database.execute("INSERT INTO t SELECT i, 'v' FROM generate_series(1, 50) i")
            database.execute(f"{SAY}; INSERT INTO t SELECT i, 'v' FROM generate_series(51, 60) i")
            eventually(lambda: len(messages(nats, stream)) == 61, run=run)
            found = {
                m.body["data"].get("id"): m.headers.get("traceparent")
                for m in messages(nats, stream)
            }
            assert {found[n] for n in range(1, 51)} == {None}
            assert {found[n] for n in range(51, 61)} == {TRACE}
            eventually(lambda: "save" in {span.name for span in collector.spans}, run=run)
            eventually(lambda: _value(collector, "penstock_acknowledged") == 61, run=run)
            assert run.stop() == 0
        assert_logs_are_the_lines(collector, run.log)
    assert_each_batch_is_whole(collector.spans)
    (pipeline_name,) = {each["penstock.pipeline"] for each in collector.resources}
    assert pipeline_name == "test"


def _value(collector: Collector, name: str) -> float:
    return sum(each.as_double for each in points(collector.metrics[name]))


def assert_logs_are_the_lines(collector: Collector, log: str) -> None:
    sent = [each.body.string_value for each in collector.logs]
    assert {"telemetry is sent", "ops server listens", "spark is ready"} <= set(sent)
    assert "METRICS" not in sent
    lines = re.findall(r'^timestamp=\S+ level=\w+ event=(?:"([^"]*)"|(\S+))', log, re.MULTILINE)
    logged = [one or other for one, other in lines]
    after = logged[logged.index("telemetry is sent") :]
    assert [event for event in after if event in sent] == sent


def assert_each_batch_is_whole(spans: list[Any]) -> None:
    batches = {span.span_id: span for span in spans if span.name == "batch"}
    assert 0 < sum(attributes(each)["penstock.changes"] for each in batches.values()) <= 61
    steps: dict[bytes, dict[str, Any]] = {}
    for span in spans:
        if span.parent_span_id:
            steps.setdefault(span.parent_span_id, {})[span.name] = span
    assert set(steps) == set(batches)
    for batch, within in steps.items():
        assert list(within) == ["read", "decode", "store", "save"]
        begins = [span.start_time_unix_nano for span in within.values()]
        assert begins == sorted(begins)
        assert begins[0] == batches[batch].start_time_unix_nano
        assert within["save"].end_time_unix_nano == batches[batch].end_time_unix_nano
