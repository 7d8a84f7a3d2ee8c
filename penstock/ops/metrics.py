"""The status as Prometheus text, with HELP and TYPE.

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
    SummaryMetricFamily,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from penstock.ops.status import BackendStatus, SinkStatus, Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["counter", "gauge"]
MoreMetrics = Callable[[Status], Iterable[Metric]]


class _Series(NamedTuple):
    """One number of a backend, of its last batch or of a sink: the field that it shows (of the same
    name unless it says another), times `scale`."""

    of: Literal["backend", "sink", "batch"]
    kind: Kind
    name: str
    help: str
    field: str = ""
    scale: float = 1.0


# What has no value yet (a lag before the first connection) has no sample.
_SERIES: tuple[_Series, ...] = (
    _Series("backend", "gauge", "connected", "1 while the source is connected."),
    _Series("backend", "gauge", "source_ok",
            "0 while the source is disabled or throttled, or may soon lose changes."),
    _Series("backend", "gauge", "lag_bytes", "Log that is not confirmed yet."),
    _Series("backend", "gauge", "lag_seconds", "How far what is stored is behind the source."),
    _Series("backend", "gauge", "window_seconds", "How far the source's history reaches back."),
    _Series("backend", "gauge", "window_left_seconds",
            "How long what is durable stays in the source's history: alert when it falls."),
    _Series("backend", "counter", "events", "Changes read from the source."),
    _Series("backend", "counter", "pages", "Pages of changes read from the source."),
    _Series("backend", "counter", "batches", "Micro-batches planned."),
    _Series("backend", "gauge", "buffered_events", "Changes in the buffer."),
    _Series("backend", "gauge", "buffered_bytes", "Bytes in the buffer."),
    _Series("backend", "counter", "reconnects", "Connections made anew."),
    _Series("backend", "counter", "restarts", "Restarts of the backend's query."),
    _Series("backend", "gauge", "last_event_seconds", "Since changes were read from the source."),
    _Series("backend", "counter", "checkpoints", "Times that positions were saved.", "saved"),
    _Series("backend", "counter", "checkpoint_errors", "Times that positions could not be saved.",
            "save_errors"),
    _Series("batch", "gauge", "batch_rows", "Rows of the last micro-batch.", "rows"),
    _Series("batch", "gauge", "batch_duration_seconds", "Time that the last micro-batch took.",
            "duration_ms", 1e-3),
    _Series("sink", "gauge", "sink_connected", "1 while the sink is connected.", "connected"),
    _Series("sink", "counter", "published", "Changes sent to the sink."),
    _Series("sink", "counter", "acknowledged", "Changes the sink has stored."),
    _Series("sink", "counter", "duplicates", "Changes that were stored before."),
    _Series("sink", "counter", "sink_errors", "Refusals and failures of the sink.", "errors"),
    _Series("sink", "counter", "sink_reconnects", "Connections made anew.", "reconnects"),
    _Series("sink", "gauge", "sink_answer_seconds",
            "Longest that the sink's server took for an answer lately.", "answer_ms", 1e-3),
    _Series("sink", "counter", "sink_pressure_transitions",
            "Changes of the back-pressure's state.", "pressure_transitions"),
    _Series("sink", "counter", "sink_breaker_transitions",
            "Changes of the circuit breaker's state.", "breaker_transitions"),
)  # fmt: skip

_LEVELS = ("normal", "slow", "critical")
# A machine of a sink: its states have a sample each, 1 for the one that it is in.
_STATES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("pressure", "Back-pressure: 1 for the state it is in.", _LEVELS),
    ("breaker", "Circuit breaker: 1 for the state it is in.", ("closed", "open", "half-open")),
)
# Whose it is, its name, its help, and its key in `histograms`.
_HISTOGRAMS: tuple[tuple[Literal["backend", "sink"], str, str, str], ...] = (
    ("backend", "ingest_seconds",
     "From the commit at the source until a page of changes was decoded, of its last change.",
     "ingest"),
    ("backend", "ingest_changes", "Changes in a page that was decoded.", "batch"),
    ("backend", "checkpoint_seconds", "What saving positions took.", "checkpoint"),
    ("sink", "publish_seconds", "From the commit at the source to the acknowledgement.", "publish"),
)  # fmt: skip


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
        status = self.status
        yield from _pipeline(status)
        for series in _SERIES:
            yield _family(series, status)
        yield from _states(status.sinks)
        yield from _partitions(status.backends)
        yield from _sinks(status.sinks)
        for of, name, text, key in _HISTOGRAMS:
            made = HistogramMetricFamily(f"penstock_{name}", text, labels=[of])
            for owner in status.sinks if of == "sink" else status.backends:
                if (found := owner.histograms.get(key)) is not None:
                    made.add_metric([owner.name], list(found["buckets"].items()), found["sum"])
            yield made
        yield from _poison(status)
        yield from _tables(status)
        yield from _snapshots(status.backends)
        yield from self.more(status)


def _made(
    kind: Kind, name: str, text: str, labels: str, samples: Iterable[tuple[Any, ...]]
) -> Metric:
    """A sample is the values of the labels, and its own; None: there is none."""
    family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
    made = family(f"penstock_{name}", text, labels=labels.split())
    for *of, value in samples:
        if value is not None:
            made.add_metric(of, float(value))
    return made


def _pipeline(status: Status) -> Iterator[Metric]:
    about = [(status.name, status.version, 1)]
    states = ("ok", "degraded", "unhealthy", "standby")
    yield _made("gauge", "info", "Always 1.", "pipeline version", about)
    yield _made("gauge", "uptime_seconds", "Since the start.", "", [(status.uptime_seconds,)])
    health = [(state, status.health == state) for state in states]
    yield _made("gauge", "health", "1 for the state it is in.", "state", health)


def _family(series: _Series, status: Status) -> Metric:
    label = "sink" if series.of == "sink" else "backend"
    samples = []
    for owner in status.sinks if series.of == "sink" else status.backends:
        source: Any = getattr(owner, "batch", None) if series.of == "batch" else owner
        value = getattr(source, series.field or series.name, None)
        samples.append((owner.name, None if value is None else float(value) * series.scale))
    return _made(series.kind, series.name, series.help, label, samples)


def _states(sinks: Sequence[SinkStatus]) -> Iterator[Metric]:
    for machine, text, states in _STATES:
        current = {sink.name: getattr(sink, machine) for sink in sinks}
        samples = [
            (name, state, state == now)
            for name, now in current.items()
            for state in states
            if now is not None
        ]
        yield _made("gauge", f"sink_{machine}_state", text, "sink state", samples)


def _partitions(backends: Sequence[BackendStatus]) -> Iterator[Metric]:
    yield _made(
        "gauge", "partitions", "Partitions, by state.", "backend state",
        [(each.name, *item) for each in backends for item in each.partition_states.items()],
    )  # fmt: skip
    yield _made(
        "gauge", "lag", "What the source has that is not durable yet, in what it counts.",
        "backend unit", [(each.name, *item) for each in backends for item in each.lag.items()],
    )  # fmt: skip
    yield _made(
        "gauge", "partition_lag_seconds",
        "How old what is not durable yet is, of the partitions that need attention most.",
        "backend partition",
        [(each.name, row.partition, row.lag_seconds) for each in backends
         for row in each.partitions],
    )  # fmt: skip
    yield _made(
        "gauge", "backend_detail", "Numbers in the source's own terms.", "backend name",
        [(each.name, *item) for each in backends for item in sorted(each.details.items())
         if isinstance(item[1], int | float)],
    )  # fmt: skip
    gaps = [(each.name, name, row) for each in backends for name, row in each.gaps.items()]
    yield _made(
        "counter", "gaps", "Holes in what a partition delivered, ever, by cause.",
        "backend partition cause",
        [(*of, *item) for *of, row in gaps for item in row["counts"].items()],
    )  # fmt: skip
    yield _made(
        "gauge", "partition_stale",
        "1 while a partition has lost changes and nobody said that it is mended.",
        "backend partition", [(*of, row["stale"]) for *of, row in gaps],
    )  # fmt: skip


def _sinks(sinks: Sequence[SinkStatus]) -> Iterator[Metric]:
    quantiles = {"0.5": "latency_p50_ms", "0.99": "latency_p99_ms"}
    known = [(sink, quantile, getattr(sink, field)) for sink in sinks
             for quantile, field in quantiles.items()]  # fmt: skip
    yield _made(
        "gauge", "latency_seconds",
        "From the commit at the source to the acknowledgement, of what was published lately.",
        "sink quantile",
        [(sink.name, quantile, ms / 1000) for sink, quantile, ms in known if ms is not None],
    )  # fmt: skip
    yield _made(
        "counter", "sink_pressure_events", "Times that back-pressure came to a level.",
        "sink level",
        [(sink.name, level, sink.pressure_entered.get(level, 0)) for sink in sinks
         for level in _LEVELS if sink.pressure is not None],
    )  # fmt: skip


def _poison(status: Status) -> Iterator[Metric]:
    yield _made(
        "counter", "dead_letters", "Changes set aside, by reason.", "sink reason",
        [(sink.name, *item) for sink in status.sinks for item in sorted(sink.dead_letters.items())],
    )  # fmt: skip
    suspended = [table.backend for table in status.tables if table.state == "suspended"]
    yield _made(
        "gauge", "suspended_tables", "Tables that are not followed.", "backend",
        [(each.name, suspended.count(each.name)) for each in status.backends],
    )  # fmt: skip


# What a table of a sink of tables has, by what the status calls it.
_OF_TABLES: tuple[tuple[Kind, str, str, str], ...] = (
    ("gauge", "table_rows_loaded", "Rows that its load has read.", "rows_loaded"),
    ("gauge", "table_rows_to_come", "Rows that its load has still to read, about.", "rows_to_come"),
    ("gauge", "table_held", "Changes that wait in the ledger.", "held"),
    ("gauge", "table_lag_seconds",
     "Between the commits of its last change at the source and in the target.", "lag_seconds"),
    ("counter", "table_dead_letters", "Rows and changes set aside.", "letters"),
)  # fmt: skip


def _tables(status: Status) -> Iterator[Metric]:
    """Of a sink of tables: its tables of each source, and its workers."""
    known = [
        ((each.backend, each.sid, each.table), each)
        for each in status.tables if each.sid is not None
    ]  # fmt: skip
    labels = "backend sid table"
    yield _made(
        "gauge", "table_state", "1 for the state that a table is in.", f"{labels} state",
        [(*of, each.state, 1) for of, each in known],
    )  # fmt: skip
    for kind, name, text, field in _OF_TABLES:
        yield _made(kind, name, text, labels, [(*of, getattr(each, field)) for of, each in known])
    yield _made(
        "counter", "table_changes", "Changes applied.", f"{labels} operation",
        [(*of, *item) for of, each in known for item in sorted((each.applied or {}).items())],
    )  # fmt: skip
    yield _made(
        "counter", "sink_commits", "Transactions that a worker committed.", "sink worker",
        [(sink.name, *item) for sink in status.sinks for item in sorted(sink.commits.items())],
    )  # fmt: skip
    took = SummaryMetricFamily(
        "penstock_sink_commit_seconds", "What a worker's commits took.", labels=["sink", "worker"]
    )
    for sink in status.sinks:
        for worker, seconds in sorted(sink.commit_seconds.items()):
            took.add_metric([sink.name, worker], int(sink.commits.get(worker, 0)), seconds)
    yield took


def _snapshots(backends: Sequence[BackendStatus]) -> Iterator[Metric]:
    """Totals of the backends that take snapshots, and how far the tables are that are read."""
    taken = [(each.name, each.snapshots) for each in backends if each.snapshots]
    yield _made(
        "counter", "snapshot_runs", "Runs that ended, by state.", "backend state",
        [(name, *item) for name, known in taken for item in sorted(known.get("runs", {}).items())],
    )  # fmt: skip
    for total, text in (
        ("chunks", "Chunks of snapshots stored."),
        ("rows", "Rows of snapshots stored."),
        ("bytes", "Bytes of chunks stored."),
    ):
        samples = [(name, known[total]) for name, known in taken]
        yield _made("counter", f"snapshot_{total}", text, "backend", samples)
    runs = [(name, run) for name, known in taken for run in known.get("current", ())]
    for field, text in (
        ("bytes_per_second", "How fast a table is read."),
        ("seconds_left", "Until a table is read, at this speed."),
    ):
        current = [(name, run["table"], run[field]) for name, run in runs]
        yield _made("gauge", f"snapshot_{field}", text, "backend table", current)
