"""The series of snapshots: totals of a backend, and how far the tables are that are being read."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from penstock.ops.status import BackendStatus


class SnapshotSeries(NamedTuple):
    """A series; `field` of a backend's `snapshots`, or of each entry of its `current`."""

    kind: str
    name: str
    help: str
    field: str


SNAPSHOT_SERIES: tuple[SnapshotSeries, ...] = (
    SnapshotSeries("counter", "snapshot_chunks", "Chunks of snapshots stored.", "chunks"),
    SnapshotSeries("counter", "snapshot_rows", "Rows of snapshots stored.", "rows"),
    SnapshotSeries("counter", "snapshot_bytes", "Bytes of chunks stored.", "bytes"),
    SnapshotSeries(
        "gauge", "snapshot_bytes_per_second", "How fast a table is read.", "bytes_per_second"
    ),
    SnapshotSeries(
        "gauge", "snapshot_seconds_left", "Until a table is read, at this speed.", "seconds_left"
    ),
)


def snapshot_metrics(backends: Sequence[BackendStatus]) -> Iterator[Metric]:
    """Of the backends that take snapshots."""
    runs = CounterMetricFamily(
        "penstock_snapshot_runs", "Runs that ended, by state.", labels=["backend", "state"]
    )
    for backend in backends:
        for state, count in sorted(backend.snapshots.get("runs", {}).items()):
            runs.add_metric([backend.name, state], count)
    yield runs
    for series in SNAPSHOT_SERIES:
        if series.kind == "counter":
            yield _total(series, backends)
        else:
            yield _current(series, backends)


def _total(series: SnapshotSeries, backends: Sequence[BackendStatus]) -> Metric:
    made = CounterMetricFamily(f"penstock_{series.name}", series.help, labels=["backend"])
    for backend in backends:
        if backend.snapshots:
            made.add_metric([backend.name], backend.snapshots[series.field])
    return made


def _current(series: SnapshotSeries, backends: Sequence[BackendStatus]) -> Metric:
    made = GaugeMetricFamily(f"penstock_{series.name}", series.help, labels=["backend", "table"])
    for backend in backends:
        for run in backend.snapshots.get("current", ()):
            if run[series.field] is not None:
                made.add_metric([backend.name, run["table"]], run[series.field])
    return made
