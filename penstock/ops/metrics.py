"""The status as Prometheus text, with HELP and TYPE. Tables, so that the manual can be held to
them.

Under `--bridge-metrics` also the series of the CDC bridge that its users have dashboards for:
same names and units, our numbers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from penstock.ops.status import BackendStatus, SinkStatus, Status

__all__ = ["BRIDGE_SERIES", "CONTENT_TYPE", "SERIES", "STATES", "metrics_text"]

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
    _Series("backend", "gauge", "lag_bytes", "Log that is not confirmed yet.", "lag_bytes"),
    _Series(
        "backend", "gauge", "lag_seconds", "Age of the oldest change in flight.", "lag_seconds"
    ),
    _Series("backend", "counter", "events", "Changes read from the source.", "events"),
    _Series("backend", "counter", "pages", "Pages of changes read from the source.", "pages"),
    _Series("backend", "counter", "batches", "Micro-batches planned.", "batches"),
    _Series("backend", "gauge", "buffered_events", "Changes in the buffer.", "buffered_events"),
    _Series("backend", "gauge", "buffered_bytes", "Bytes in the buffer.", "buffered_bytes"),
    _Series("backend", "counter", "reconnects", "Connections made anew.", "reconnects"),
    _Series("backend", "counter", "restarts", "Restarts of the backend's query.", "restarts"),
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


def metrics_text(status: Status, *, bridge: bool = False) -> bytes:
    """The exposition of a status; with `bridge`, the bridge's series follow."""
    return generate_latest(_Metrics(status, bridge=bridge))


@dataclass(frozen=True, slots=True)
class _Metrics(Collector):
    """What `generate_latest` wants: something to collect from."""

    status: Status
    bridge: bool

    def collect(self) -> Iterator[Metric]:
        yield from _pipeline(self.status)
        for series in SERIES:
            yield _family(series, self.status)
        for states in STATES:
            yield _state_set(states, self.status.sinks)
        yield from _partitions(self.status.backends)
        yield from _losses(self.status.backends)
        yield _latency(self.status.sinks)
        yield _dead_letters(self.status.sinks)
        yield _suspended(self.status)
        if self.bridge:
            yield from _bridge(self.status)


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
    details = GaugeMetricFamily(
        "penstock_backend_detail", "Numbers in the source's own terms.", labels=["backend", "name"]
    )
    for backend in backends:
        for state, count in backend.partition_states.items():
            states.add_metric([backend.name, state], count)
        for unit, value in backend.lag.items():
            lag.add_metric([backend.name, unit], value)
        for name, value in sorted(backend.details.items()):
            if isinstance(value, int | float):
                details.add_metric([backend.name, name], float(value))
    yield states
    yield lag
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


# The bridge serves one slot and no labels. Its later versions renamed one series and replaced
# another (`queue_usage_percent` for `last_processing_time_us`): both old names are served too.
BRIDGE_SERIES: tuple[tuple[str, Literal["counter", "gauge"], str], ...] = (
    ("bridge_uptime_seconds", "gauge", "Seconds since the start."),
    ("bridge_wal_messages_received_total", "counter", "Changes read from the log."),
    ("bridge_cdc_events_published_total", "counter", "Changes acknowledged by JetStream."),
    ("bridge_last_ack_lsn", "gauge", "Confirmed LSN, as a number."),
    ("bridge_connected", "gauge", "1 while PostgreSQL is connected."),
    ("bridge_pg_reconnects_total", "counter", "Connections to PostgreSQL made again."),
    ("bridge_nats_reconnects_total", "counter", "Connections to NATS made again."),
    ("bridge_slot_active", "gauge", "1 while we read the slot."),
    ("bridge_wal_lag_bytes", "gauge", "Log between its end and the confirmed LSN, in bytes."),
    ("bridge_queue_usage_percent", "gauge", "How full the buffer is, 0 to 100."),
    ("bridge_reconnects_total", "counter", "Connections to PostgreSQL made again."),
    (
        "bridge_last_processing_time_us",
        "gauge",
        "Median latency of the last batch, in microseconds.",
    ),
)


def _bridge(status: Status) -> Iterator[Metric]:
    values = _bridge_values(status.backends, status)
    for name, kind, text in BRIDGE_SERIES:
        family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
        yield family(name, text, value=values[name])


def _bridge_values(backends: Sequence[BackendStatus], status: Status) -> dict[str, float]:
    connected = bool(backends) and all(backend.connected for backend in backends)
    reconnects = sum(backend.reconnects for backend in backends)
    latency = max((sink.latency_p50_ms or 0.0 for sink in status.sinks), default=0.0)
    confirmed = [float(backend.details.get("confirmed_lsn") or 0) for backend in backends]
    used = [float(backend.details.get("buffer_percent", 0.0)) for backend in backends]
    return {
        "bridge_uptime_seconds": int(status.uptime_seconds),
        "bridge_wal_messages_received_total": sum(backend.events for backend in backends),
        "bridge_cdc_events_published_total": sum(sink.acknowledged for sink in status.sinks),
        "bridge_last_ack_lsn": min(confirmed, default=0.0),
        "bridge_connected": connected,
        "bridge_pg_reconnects_total": reconnects,
        "bridge_reconnects_total": reconnects,
        "bridge_nats_reconnects_total": sum(sink.reconnects for sink in status.sinks),
        "bridge_slot_active": connected,
        "bridge_wal_lag_bytes": sum(backend.lag_bytes or 0 for backend in backends),
        "bridge_queue_usage_percent": max(used, default=0.0),
        "bridge_last_processing_time_us": latency * 1000,
    }
