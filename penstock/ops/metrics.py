"""The status as Prometheus text, with HELP and TYPE."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from prometheus_client import core
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from penstock.ops.reports import GapReport, SnapshotsReport, TableStatus, described
from penstock.ops.status import BackendStatus, BatchStatus, SinkStatus, Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["counter", "gauge"]
MoreMetrics = Callable[[Status], Iterable[core.Metric]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Additions:
    """What the users of another program have in hand: its series, its fields of /status, and its
    line on stdout, which is printed with each METRICS line."""

    metrics: MoreMetrics
    status: Callable[[Status], Mapping[str, Any]] | None = None
    line: Callable[[Status], str] | None = None


# Whose it is, its name, its help, and its key in `histograms`.
_HISTOGRAMS: tuple[tuple[Literal["backend", "sink"], str, str, str], ...] = (
    ("backend", "ingest_seconds",
     "Time from the commit of a page's last change until the page was decoded.",
     "ingest"),
    ("backend", "ingest_changes", "Changes in a page that was decoded.", "batch"),
    ("backend", "checkpoint_seconds", "The time that saving positions took.", "checkpoint"),
    ("sink", "publish_changes", "Changes in a batch that was published.", "published"),
    ("sink", "publish_seconds", "Time from the commit at the source to the acknowledgement.",
     "publish"),
)  # fmt: skip


def metrics_text(status: Status, more: MoreMetrics | None = None) -> bytes:
    """The exposition of a status; the series of `more` follow."""
    return generate_latest(_Metrics([*families(status), *(more(status) if more else ())]))


class _Metrics(Collector):
    """What `generate_latest` wants: something to collect from."""

    def __init__(self, found: Sequence[core.Metric]) -> None:
        self._found = found

    def collect(self) -> Sequence[core.Metric]:
        return self._found


def families(status: Status) -> Iterator[core.Metric]:
    """Penstock's own series, also those without a sample."""
    backends = status.backends
    sinks = [((each.name,), each) for each in status.sinks]
    tables = [
        ((each.backend, each.sid or "", each.table), each) for each in status.tables
    ]  # fmt: skip
    instance = [(status.name, status.version, 1)]
    yield _made("gauge", "info", "Always 1.", "pipeline version", instance)
    yield from _series(Status, "", [((), status)])
    yield from _series(BackendStatus, "backend", [((each.name,), each) for each in backends])
    yield from _series(
        BatchStatus, "backend",
        [((each.name,), each.batch) for each in backends if each.batch is not None],
    )  # fmt: skip
    yield from _series(SinkStatus, "sink", sinks)
    yield from _series(TableStatus, "backend sid table", tables)
    yield from _series(
        GapReport, "backend partition",
        [((each.name, name), gap) for each in backends for name, gap in each.gaps.items()],
    )  # fmt: skip
    yield from _backends(backends)
    yield from _snapshots(backends)
    yield from _sinks(status)
    for of, name, text, key in _HISTOGRAMS:
        made = core.HistogramMetricFamily(f"penstock_{name}", text, labels=[of])
        for owner in status.sinks if of == "sink" else status.backends:
            if (found := owner.histograms.get(key)) is not None:
                made.add_metric([owner.name], list(found["buckets"].items()), found["sum"])
        yield made


def _made(
    kind: Kind, name: str, text: str, labels: str, samples: Iterable[tuple[Any, ...]]
) -> core.Metric:
    """A sample is the values of the labels, and its own; None: there is none."""
    family = core.CounterMetricFamily if kind == "counter" else core.GaugeMetricFamily
    made = family(f"penstock_{name}", text, labels=labels.split())
    for *of, value in samples:
        if value is not None:
            made.add_metric(of, float(value))
    return made


def _series(
    kind: type[Any], labels: str, owners: Sequence[tuple[tuple[str | None, ...], Any]]
) -> Iterator[core.Metric]:
    """The series of the fields of a type, of these owners and what they are labelled with."""
    for name, about in described(kind).items():
        if about.series:
            samples: list[tuple[Any, ...]] = []
            for of, owner in owners:
                value = getattr(owner, name)
                if about.states and isinstance(value, str):
                    samples += [(*of, state, state == value) for state in about.states]
                elif about.label and isinstance(value, str):
                    samples.append((*of, value, 1))
                elif isinstance(value, Mapping):
                    samples += [(*of, *item) for item in value.items()]
                elif value is not None and not about.label:
                    samples.append((*of, value / 1000 if name.endswith("_ms") else value))
            of_all = f"{labels} {about.label}"
            yield _made("counter" if about.counter else "gauge", about.series, about.what, of_all,
                        samples)  # fmt: skip


def _backends(backends: Sequence[BackendStatus]) -> Iterator[core.Metric]:
    yield _made(
        "gauge", "source_ok",
        "0 while the source is disabled or throttled, or may soon lose changes.", "backend",
        [(each.name, each.source_ok) for each in backends],
    )  # fmt: skip
    yield _made(
        "gauge", "backend_detail", "Numbers in the source's own terms.", "backend name",
        [(each.name, name, each.details[name]) for each in backends
         for name in sorted(each.detail_series) if name in each.details],
    )  # fmt: skip
    yield _made(
        "gauge", "partition_lag_seconds",
        "The lag of the partitions that need attention most.",
        "backend partition",
        [(each.name, row.partition, row.lag_seconds) for each in backends
         for row in each.partitions],
    )  # fmt: skip


def _snapshots(backends: Sequence[BackendStatus]) -> Iterator[core.Metric]:
    """Totals of the backends that take snapshots, and how far the tables are that are read."""
    taken = [((each.name,), each.snapshots) for each in backends if each.snapshots.named]
    yield from _series(SnapshotsReport, "backend", taken)
    for field, text in (
        ("bytes_per_second", "How fast a table is read."),
        ("seconds_left", "Time until a table is read, at this speed."),
    ):
        current = [(*of, run["table"], run[field]) for of, known in taken for run in known.current]
        yield _made("gauge", f"snapshot_{field}", text, "backend table", current)


def _sinks(status: Status) -> Iterator[core.Metric]:
    quantiles = {"0.5": "latency_p50_ms", "0.99": "latency_p99_ms"}
    known = [(sink, quantile, getattr(sink, field)) for sink in status.sinks
             for quantile, field in quantiles.items()]  # fmt: skip
    yield _made(
        "gauge", "latency_seconds",
        "Time from the commit at the source to the acknowledgement, of the latest changes.",
        "sink quantile",
        [(sink.name, quantile, ms / 1000) for sink, quantile, ms in known if ms is not None],
    )  # fmt: skip
    suspended = [table.backend for table in status.tables if table.state == "suspended"]
    yield _made(
        "gauge", "suspended_tables", "Tables that are suspended.", "backend",
        [(each.name, suspended.count(each.name)) for each in status.backends],
    )  # fmt: skip
    took = core.SummaryMetricFamily(
        "penstock_sink_commit_seconds",
        "The time that a worker's commits took.",
        labels=["sink", "worker"],
    )
    for sink in status.sinks:
        for worker, seconds in sorted(sink.commit_seconds.items()):
            took.add_metric([sink.name, worker], sink.commits.get(worker, 0), seconds)
    yield took
