"""The three signals on their way to a collector, from threads of their own.

Queues are bounded and drop what is too much. A collector that is away holds nothing up, and takes
two seconds of a stop at most.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, Self

import orjson
import structlog
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client import core
from structlog.typing import EventDict, WrappedLogger

from penstock.model.version import __version__
from penstock.ops.board import Board
from penstock.ops.logs import also_through
from penstock.ops.reports import SpansReport
from penstock.ops.telemetry import Signal
from penstock.ops.telemetry.metrics import metrics_data
from penstock.ops.telemetry.spans import BatchSpans
from penstock.process.closing import Closes, closing_on_failure
from penstock.process.repeated import Repeated

STOPPING = 2.0  # seconds that a stop waits for what is not sent yet
AGAIN = 60.0  # seconds between two lines that say that something cannot be sent

log = structlog.get_logger("penstock")


class Exporting(Closes):
    """Sends these signals within a `with`. Raises ValueError for a variable without a meaning."""

    def __init__(
        self,
        signals: Collection[Signal],
        board: Board,
        families: Callable[[], Iterable[core.Metric]],
        about: Mapping[str, str],
    ) -> None:
        self._signals = signals
        self._board, self._families = board, families
        self._resource = Resource(dict(about)).merge(OTELResourceDetector().detect())
        self._open = ExitStack()
        self._last: list[Callable[[], object]] = []  # send what is left, and end a thread
        opened = {"metrics": self._metrics, "logs": self._logs, "traces": self._traces}
        sdk = logging.getLogger("opentelemetry")
        # For good: threads that hang at a stop complain afterwards.
        sdk.handlers, sdk.propagate = [_Complaints()], False
        with closing_on_failure(self):
            for signal in sorted(signals):
                opened[signal]()

    def __enter__(self) -> Self:
        log.info("telemetry is sent", signals=sorted(self._signals))
        return self

    def close(self) -> None:
        """Sends what is left, for a moment. Threads that hang are daemons."""
        threads = [threading.Thread(target=each, daemon=True) for each in self._last]
        self._last.clear()
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + STOPPING
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._open.close()

    def _metrics(self) -> None:
        exporter, started = OTLPMetricExporter(), time.time_ns()
        scope = InstrumentationScope("penstock", __version__)

        def export() -> None:
            found = self._families()
            exporter.export(
                metrics_data(found, self._resource, scope, started=started, now=time.time_ns())
            )

        seconds = float(os.environ.get("OTEL_METRIC_EXPORT_INTERVAL") or 60_000) / 1000
        self._open.enter_context(Repeated(export, interval=seconds, name="telemetry"))
        self._last.append(export)
        self._open.callback(exporter.shutdown)

    def _logs(self) -> None:
        provider = LoggerProvider(self._resource, shutdown_on_exit=False)
        provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
        self._last.append(provider.shutdown)
        logger = provider.get_logger("penstock", __version__)

        def pass_on(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
            if event.get("event") != "METRICS":
                logger.emit(_record(event))
            return event

        self._open.enter_context(also_through(pass_on))

    def _traces(self) -> None:
        provider = TracerProvider(resource=self._resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        spans = BatchSpans(provider.get_tracer("penstock", __version__))
        self._open.enter_context(self._board.passing_on(SpansReport, spans.take))

        def last() -> None:
            spans.close()
            provider.shutdown()

        self._last.append(last)


def _record(event: EventDict) -> LogRecord:
    """A line of the log, which has no secrets any more."""
    level = str(event.get("level", "info"))
    given = {name: each for name, each in event.items() if name not in ("event", "level")}
    if "exception" in given:
        given["exception.stacktrace"] = given.pop("exception")
    return LogRecord(
        timestamp=time.time_ns(),
        severity_text=level.upper(),
        severity_number=_SEVERITIES.get(level, SeverityNumber.INFO),
        body=str(event.get("event", "")),
        attributes={name: _plain(each) for name, each in given.items() if name != "timestamp"},
    )


_SEVERITIES = {
    "debug": SeverityNumber.DEBUG,
    "info": SeverityNumber.INFO,
    "warning": SeverityNumber.WARN,
    "error": SeverityNumber.ERROR,
    "critical": SeverityNumber.FATAL,
}


def _plain(value: Any) -> str | bool | int | float:
    """A value that every collector takes: nested ones as JSON."""
    return value if isinstance(value, str | bool | int | float) else orjson.dumps(value).decode()


class _Complaints(logging.Handler):
    """What the SDK says of itself: one line a minute, however much fails."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._told = -AGAIN

    def emit(self, record: logging.LogRecord) -> None:
        if (now := time.monotonic()) - self._told >= AGAIN:
            self._told = now
            log.warning("telemetry cannot be sent now", error=record.getMessage())
