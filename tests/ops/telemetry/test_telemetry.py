"""OpenTelemetry: what is sent, to a collector of the suite, and what happens without one."""

import io
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from penstock.ops.board import Board
from penstock.ops.metrics import families, metrics_text
from penstock.ops.telemetry import telemetry, wanted
from penstock.ops.telemetry.exporting import STOPPING
from penstock.process.histograms import histograms, observed
from penstock.process.plugins import to_install
from tests.ops.test_metrics import BACKEND, STATUS
from tests.servers.otlp import Collector, attributes, points
from tests.waiting import until

ABOUT = {"service.name": "penstock", "penstock.pipeline": "shop"}
HERE = "http://127.0.0.1:4318"


@pytest.mark.parametrize(
    ("variables", "signals"),
    [
        ({}, ""),
        ({"OTEL_SERVICE_NAME": "x", "OTEL_TRACES_SAMPLER": "always_on"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": HERE}, "logs metrics traces"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, ""),
        ({"OTEL_EXPORTER_OTLP_LOGS_ENDPOINT": HERE}, "logs"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": HERE, "OTEL_TRACES_EXPORTER": "none"}, "logs metrics"),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": HERE, "OTEL_SDK_DISABLED": "true"}, ""),
        (
            {"OTEL_EXPORTER_OTLP_ENDPOINT": HERE, "OTEL_SDK_DISABLED": "false"},
            "logs metrics traces",
        ),
    ],
)
def test_the_standard_variables_say_what_is_sent(
    variables: Mapping[str, str], signals: str
) -> None:
    assert sorted(wanted(variables)) == signals.split()


def _without(code: str) -> str:
    """What a process prints that has imported the service."""
    modules = "penstock.service.service, penstock.service.processing, penstock.microbatch.task"
    code = f"import sys, {modules}\n{code}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def test_without_an_endpoint_opentelemetry_is_not_imported() -> None:
    assert _without(
        "from penstock.ops.telemetry import telemetry\n"
        "with telemetry(None, None, {}): print([n for n in sys.modules if 'opentelemetry' in n])"
    ) == "[]\n"  # fmt: skip


def test_an_endpoint_without_the_extra_is_one_line_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", HERE)
    found = _without(
        "from penstock.ops.telemetry import telemetry\n"
        "from penstock.ops.logs import configure\n"
        "configure('logfmt')\n"
        "sys.modules['opentelemetry'] = None\n"
        "with telemetry(None, None, {}): pass"
    )
    assert found.count("\n") == 1
    assert "no telemetry is sent" in found
    assert f"pip install '{to_install('otel')}'" in found


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc", "use http/protobuf"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "often", "correct the OTEL_"),
    ],
)
def test_a_variable_that_cannot_be_followed_is_one_line(
    name: str, value: str, told: str, log: io.StringIO, board: Board, collector: Collector,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv(name, value)
    with telemetry(board, list, ABOUT):
        structlog.get_logger().info("goes on")
    lines = [line for line in log.getvalue().splitlines() if "goes on" not in line]
    assert len(lines) == 1 and told in lines[0]
    assert not collector.logs


def test_metrics_are_those_of_the_exposition(
    log: io.StringIO, board: Board, collector: Collector
) -> None:
    sizes = histograms(observed("batch", [1, 5, 5_000]))
    backend = replace(BACKEND, histograms=sizes)
    status = replace(STATUS, backends=(backend,))
    with telemetry(board, lambda: families(status), ABOUT):
        pass  # the last ones are sent at the end
    assert _sent(collector) == _exposed(status)
    assert collector.metrics["penstock_events"].sum.is_monotonic
    assert {
        attributes(each)["backend"] for each in points(collector.metrics["penstock_events"])
    } == {backend.name}
    assert collector.metrics["penstock_lag_seconds"].unit == "s"


def _exposed(status: Any) -> dict[tuple[Any, ...], float]:
    text = metrics_text(status).decode()
    return {
        (sample.name.removesuffix("_total"), *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if family.type != "unknown" and not sample.name.endswith("_created")
    }


def _sent(collector: Collector) -> dict[tuple[Any, ...], float]:
    """As the exposition has it."""
    found = {}
    for name, metric in collector.metrics.items():
        for point in points(metric):
            labels = attributes(point)
            if metric.WhichOneof("data") != "histogram":
                found[(name, *sorted(labels.items()))] = point.as_double
                continue
            found[(f"{name}_count", *sorted(labels.items()))] = point.count
            found[(f"{name}_sum", *sorted(labels.items()))] = point.sum
            below = 0
            for bound, count in zip(
                [*point.explicit_bounds, "+Inf"] if point.explicit_bounds else [],
                point.bucket_counts,
                strict=False,
            ):
                below += count
                marked = labels | {"le": f"{bound:g}" if bound != "+Inf" else bound}
                found[(f"{name}_bucket", *sorted(marked.items()))] = below
    return found


def test_metrics_are_sent_at_the_interval_that_is_set(
    log: io.StringIO, board: Board, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    with telemetry(board, lambda: families(STATUS), ABOUT):
        until(lambda: len(collector.requests) > 2)


def test_the_log_is_sent_without_secrets_and_without_the_metrics_line(
    log: io.StringIO, board: Board, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=of-the-collector")
    logger = structlog.get_logger("penstock")
    with telemetry(board, list, ABOUT):
        logger.info("METRICS", events=5)
        logger.warning(
            "it waits", url="postgresql://me:hunter22@db/x", n=3, of=["a", "of-the-collector"]
        )
        try:
            raise ValueError("hunter22")
        except ValueError:
            logger.exception("it failed")
    logger.info("afterwards")
    told, waits, failed = collector.logs
    assert told.body.string_value == "telemetry is sent"
    assert (waits.body.string_value, waits.severity_text) == ("it waits", "WARNING")
    assert attributes(waits) == {
        "url": "postgresql://me:***@db/x", "n": 3, "of": '["a","***"]',
    }  # fmt: skip
    assert "ValueError: ***" in attributes(failed)["exception.stacktrace"]
    assert collector.headers[0]["api-key"] == "of-the-collector"
    assert "afterwards" in log.getvalue()


def test_the_variables_name_the_resource(
    log: io.StringIO, board: Board, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "orders")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    with telemetry(board, lambda: families(STATUS), ABOUT):
        pass
    assert collector.resources
    for resource in collector.resources:
        assert resource["service.name"] == "orders"
        assert resource["deployment.environment.name"] == "test"
        assert resource["penstock.pipeline"] == "shop"


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A collector that accepts connections, and answers nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        yield listening


@pytest.mark.slow
def test_a_collector_that_does_not_answer_holds_nothing_up(
    log: io.StringIO, board: Board, silent: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BLRP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    with telemetry(board, lambda: families(STATUS), ABOUT):
        begun = time.monotonic()
        for number in range(5_000):  # more than a queue takes
            structlog.get_logger().info("a line", number=number)
        # One request to it takes ten seconds.
        assert time.monotonic() - begun < 8
        stopping = time.monotonic()
    assert time.monotonic() - stopping < STOPPING + 5
    assert log.getvalue().count("a line") == 5_000
    assert log.getvalue().count("telemetry cannot be sent now") <= 1


def test_a_collector_that_is_away_is_told_once_and_gets_what_comes_later(
    log: io.StringIO, board: Board, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BLRP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    collector.__exit__()
    with telemetry(board, lambda: families(STATUS), ABOUT):
        until(lambda: "telemetry cannot be sent now" in log.getvalue())
        collector.__enter__()
        structlog.get_logger().info("it is back")
        until(lambda: "it is back" in {each.body.string_value for each in collector.logs})
    assert log.getvalue().count("telemetry cannot be sent now") == 1
