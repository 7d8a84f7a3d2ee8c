"""The status as Prometheus text, with HELP and TYPE. Tables, so that the manual can be held to
them.

A caller may add series of its own to them (`MoreMetrics`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from penstock.ops.snapshot_metrics import snapshot_metrics
from penstock.ops.status import BackendStatus, SinkStatus, Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class _Series(NamedTuple):
    """One series of a backend or sink: the field it shows, times `scale`."""

    of: Literal["backend", "sink", "batch"]
    kind: Literal["counter", "gauge"]
    name: str
    help: str
    field: str
    scale: float = 1.0


# What has no value yet (a lag before the first connection) has no sample.
SERIES: tuple[_Series, ...] = (
    _Series("backend", "gauge", "connected", "1 while the source is connected.", "connected"),
    _Series(
        "backend",
        "gauge",
        "source_ok",
        "0 while the source is disabled or throttled, or may soon lose changes.",
        "source_ok",
    ),
    _Series("backend", "gauge", "lag_bytes", "Log that is not confirmed yet.", "lag_bytes"),
    _Series(
        "backend",
        "gauge",
        "lag_seconds",
        "How far what is stored is behind the source.",
        "lag_seconds",
    ),
    _Series(
        "backend",
        "gauge",
        "window_seconds",
        "How far the source's history reaches back.",
        "window_seconds",
    ),
    _Series(
        "backend",
        "gauge",
        "window_left_seconds",
        "How long what is durable stays in the source's history: alert when it falls.",
        "window_left_seconds",
    ),
    _Series("backend", "counter", "events", "Changes read from the source.", "events"),
    _Series("backend", "counter", "pages", "Pages of changes read from the source.", "pages"),
    _Series("backend", "counter", "batches", "Micro-batches planned.", "batches"),
    _Series("backend", "gauge", "buffered_events", "Changes in the buffer.", "buffered_events"),
    _Series("backend", "gauge", "buffered_bytes", "Bytes in the buffer.", "buffered_bytes"),
    _Series("backend", "counter", "reconnects", "Connections made anew.", "reconnects"),
    _Series("backend", "counter", "restarts", "Restarts of the backend's query.", "restarts"),
    _Series(
        "backend",
        "gauge",
        "last_event_seconds",
        "Since changes were read from the source.",
        "last_event_seconds",
    ),
    _Series("backend", "counter", "checkpoints", "Times that positions were saved.", "saved"),
    _Series(
        "backend",
        "counter",
        "checkpoint_errors",
        "Times that positions could not be saved.",
        "save_errors",
    ),
    _Series("batch", "gauge", "batch_rows", "Rows of the last micro-batch.", "rows"),
    _Series(
        "batch",
        "gauge",
        "batch_duration_seconds",
        "Time that the last micro-batch took.",
        "duration_ms",
        1e-3,
    ),
    _Series("sink", "gauge", "sink_connected", "1 while the sink is connected.", "connected"),
    _Series("sink", "counter", "published", "Changes sent to the sink.", "published"),
    _Series("sink", "counter", "acknowledged", "Changes the sink has stored.", "acknowledged"),
    _Series("sink", "counter", "duplicates", "Changes that were stored before.", "duplicates"),
    _Series("sink", "counter", "sink_errors", "Refusals and failures of the sink.", "errors"),
    _Series("sink", "counter", "sink_reconnects", "Connections made anew.", "reconnects"),
    _Series(
        "sink",
        "gauge",
        "sink_answer_seconds",
        "Longest that the sink's server took for an answer lately.",
        "answer_ms",
        1e-3,
    ),
    _Series(
        "sink",
        "counter",
        "sink_pressure_transitions",
        "Changes of the back-pressure's state.",
        "pressure_transitions",
    ),
    _Series(
        "sink",
        "counter",
        "sink_breaker_transitions",
        "Changes of the circuit breaker's state.",
        "breaker_transitions",
    ),
)

_HEALTH = ("ok", "degraded", "unhealthy", "standby")


class _States(NamedTuple):
    """A series with one sample for each state: 1 for the one that the sink is in."""

    name: str
    help: str
    field: str
    states: tuple[str, ...]


STATES: tuple[_States, ...] = (
    _States(
        "sink_pressure_state",
        "Back-pressure: 1 for the state it is in.",
        "pressure",
        ("normal", "slow", "critical"),
    ),
    _States(
        "sink_breaker_state",
        "Circuit breaker: 1 for the state it is in.",
        "breaker",
        ("closed", "open", "half-open"),
    ),
)


MoreMetrics = Callable[[Status], Iterable[Metric]]


def no_more_metrics(status: Status) -> Iterable[Metric]:
    """Only penstock's own series."""
    return ()


def metrics_text(status: Status, more: MoreMetrics = no_more_metrics) -> bytes:
    """The exposition of a status; the series of `more` follow."""
    return generate_latest(_Metrics(status, more))


@dataclass(frozen=True, slots=True)
class _Metrics(Collector):
    """What `generate_latest` wants: something to collect from."""

    status: Status
    more: MoreMetrics

    def collect(self) -> Iterator[Metric]:
        yield from _pipeline(self.status)
        for series in SERIES:
            yield _family(series, self.status)
        for states in STATES:
            yield _state_set(states, self.status.sinks)
        yield from _partitions(self.status.backends)
        yield from _losses(self.status.backends)
        yield _latency(self.status.sinks)
        yield _pressure(self.status.sinks)
        for histogram in HISTOGRAMS:
            yield _histogram(histogram, self.status)
        yield _dead_letters(self.status.sinks)
        yield _suspended(self.status)
        yield from snapshot_metrics(self.status.backends)
        yield from self.more(self.status)


def _pipeline(status: Status) -> Iterator[Metric]:
    info = GaugeMetricFamily("penstock_info", "Always 1.", labels=["pipeline", "version"])
    info.add_metric([status.name, status.version], 1)
    yield info
    yield GaugeMetricFamily(
        "penstock_uptime_seconds", "Since the start.", value=status.uptime_seconds
    )
    health = GaugeMetricFamily("penstock_health", "1 for the state it is in.", labels=["state"])
    for state in _HEALTH:
        health.add_metric([state], float(status.health == state))
    yield health


def _family(series: _Series, status: Status) -> Metric:
    family = CounterMetricFamily if series.kind == "counter" else GaugeMetricFamily
    label = "sink" if series.of == "sink" else "backend"
    made = family(f"penstock_{series.name}", series.help, labels=[label])
    for owner in status.sinks if series.of == "sink" else status.backends:
        source: Any = getattr(owner, "batch", None) if series.of == "batch" else owner
        value = getattr(source, series.field, None)
        if value is not None:
            made.add_metric([owner.name], float(value) * series.scale)
    return made


def _state_set(series: _States, sinks: Sequence[SinkStatus]) -> Metric:
    made = GaugeMetricFamily(f"penstock_{series.name}", series.help, labels=["sink", "state"])
    for sink in sinks:
        current = getattr(sink, series.field)
        for state in series.states if current is not None else ():
            made.add_metric([sink.name, state], float(state == current))
    return made


def _partitions(backends: Sequence[BackendStatus]) -> Iterator[Metric]:
    states = GaugeMetricFamily(
        "penstock_partitions", "Partitions, by state.", labels=["backend", "state"]
    )
    lag = GaugeMetricFamily(
        "penstock_lag",
        "What the source has that is not durable yet, in what it counts.",
        labels=["backend", "unit"],
    )
    each = GaugeMetricFamily(
        "penstock_partition_lag_seconds",
        "How old what is not durable yet is, of the partitions that need attention most.",
        labels=["backend", "partition"],
    )
    details = GaugeMetricFamily(
        "penstock_backend_detail", "Numbers in the source's own terms.", labels=["backend", "name"]
    )
    for backend in backends:
        for state, count in backend.partition_states.items():
            states.add_metric([backend.name, state], count)
        for unit, value in backend.lag.items():
            lag.add_metric([backend.name, unit], value)
        for row in backend.partitions:
            if row.lag_seconds is not None:
                each.add_metric([backend.name, row.partition], row.lag_seconds)
        for name, value in sorted(backend.details.items()):
            if isinstance(value, int | float):
                details.add_metric([backend.name, name], float(value))
    yield states
    yield lag
    yield each
    yield details


def _losses(backends: Sequence[BackendStatus]) -> Iterator[Metric]:
    gaps = CounterMetricFamily(
        "penstock_gaps",
        "Holes in what a partition delivered, ever, by cause.",
        labels=["backend", "partition", "cause"],
    )
    stale = GaugeMetricFamily(
        "penstock_partition_stale",
        "1 while a partition has lost changes and nobody said that it is mended.",
        labels=["backend", "partition"],
    )
    for backend in backends:
        for partition, row in backend.gaps.items():
            stale.add_metric([backend.name, partition], float(row["stale"]))
            for cause, count in row["counts"].items():
                gaps.add_metric([backend.name, partition, cause], count)
    yield gaps
    yield stale


def _latency(sinks: Sequence[SinkStatus]) -> Metric:
    made = GaugeMetricFamily(
        "penstock_latency_seconds",
        "From the commit at the source to the acknowledgement, of what was published lately.",
        labels=["sink", "quantile"],
    )
    for sink in sinks:
        for quantile, value in (("0.5", sink.latency_p50_ms), ("0.99", sink.latency_p99_ms)):
            if value is not None:
                made.add_metric([sink.name, quantile], value / 1000)
    return made


def _pressure(sinks: Sequence[SinkStatus]) -> Metric:
    made = CounterMetricFamily(
        "penstock_sink_pressure_events",
        "Times that back-pressure came to a level.",
        labels=["sink", "level"],
    )
    for sink in sinks:
        for level in ("normal", "slow", "critical") if sink.pressure is not None else ():
            made.add_metric([sink.name, level], sink.pressure_entered.get(level, 0))
    return made


class _Histogram(NamedTuple):
    """A histogram of a backend or sink; `key` is its name in `histograms`."""

    of: Literal["backend", "sink"]
    name: str
    help: str
    key: str


HISTOGRAMS: tuple[_Histogram, ...] = (
    _Histogram(
        "backend",
        "ingest_seconds",
        "From the commit at the source until a page of changes was decoded, of its last change.",
        "ingest",
    ),
    _Histogram("backend", "ingest_changes", "Changes in a page that was decoded.", "batch"),
    _Histogram("backend", "checkpoint_seconds", "What saving positions took.", "checkpoint"),
    _Histogram(
        "sink",
        "publish_seconds",
        "From the commit at the source to the acknowledgement.",
        "publish",
    ),
)


def _histogram(series: _Histogram, status: Status) -> Metric:
    made = HistogramMetricFamily(f"penstock_{series.name}", series.help, labels=[series.of])
    for owner in status.sinks if series.of == "sink" else status.backends:
        if (found := owner.histograms.get(series.key)) is not None:
            made.add_metric([owner.name], list(found["buckets"].items()), found["sum"])
    return made


def _dead_letters(sinks: Sequence[SinkStatus]) -> Metric:
    made = CounterMetricFamily(
        "penstock_dead_letters", "Changes set aside, by reason.", labels=["sink", "reason"]
    )
    for sink in sinks:
        for reason, count in sorted(sink.dead_letters.items()):
            made.add_metric([sink.name, reason], count)
    return made


def _suspended(status: Status) -> Metric:
    made = GaugeMetricFamily(
        "penstock_suspended_tables", "Tables that are not followed.", labels=["backend"]
    )
    for backend in status.backends:
        found = [table for table in status.tables if table.backend == backend.name]
        made.add_metric([backend.name], sum(table.state == "suspended" for table in found))
    return made
