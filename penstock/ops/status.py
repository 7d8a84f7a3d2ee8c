"""The status of a pipeline as one frozen value, made from the board's snapshot and a time; pure.

/health, /ready, /status, /metrics, the log and the dashboard read the same value.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from penstock.model.version import DOCS
from penstock.ops.board import Entry, Snapshot, is_idle
from penstock.ops.health import (
    STAND_BY,
    STARTING,
    Complaint,
    Health,
    complaints,
    partition_health,
    readiness,
    worst,
)
from penstock.ops.partitions import SHOWN, PartitionStatus, at_risk, most_urgent
from penstock.ops.reports import (
    LEVELS,
    BatchReport,
    GapReport,
    MeasureReport,
    PartitionReport,
    ProcessReport,
    QueryReport,
    SinkReport,
    SnapshotsReport,
    SourceReport,
    TableStatus,
    described,
    together,
    told,
)
from penstock.ops.thresholds import Thresholds
from penstock.process.histograms import histograms
from penstock.process.table_counts import NAMED, OTHER


@dataclass(frozen=True, kw_only=True)
class BatchStatus(BatchReport):
    """A backend's last micro-batch."""

    duration_ms: float = told(
        0.0, "Time that the last micro-batch took.", series="batch_duration_seconds"
    )
    age_seconds: float = told(0.0, "The time since the micro-batch ended.")


@dataclass(frozen=True, kw_only=True)
class BackendStatus(SourceReport, QueryReport, MeasureReport):
    """One source; None is "not known"."""

    name: str = told(..., "Its name.")
    last_event_seconds: float | None = told(
        None, "The time since changes were read from the source.", series="last_event_seconds"
    )
    rate: float | None = told(None, "Changes read a second, lately.")
    position: Mapping[str, str] = told(dict, "The place of each partition shown.")
    partitions: Sequence[PartitionStatus] = told(
        tuple, "The partitions that need attention most, at most 20: first those that are"
        " disconnected or failing, then by lag.",
    )  # fmt: skip
    gaps: Mapping[str, GapReport] = told(dict, "The lost history, by partition.")
    age_seconds: float | None = told(None, "The time since the last report.")
    batch: BatchStatus | None = told(None, "The last micro-batch.")
    snapshots: SnapshotsReport = told(SnapshotsReport, "Snapshots of its tables, since the start.")

    @property
    def source_ok(self) -> bool:
        """Whether nothing is wrong with the source as a whole."""
        return not self.source_state and not self.at_risk


@dataclass(frozen=True, kw_only=True)
class SinkStatus(SinkReport):
    """Where changes go."""

    name: str = told(..., "Its name.")
    rate: float | None = told(None, "Changes stored a second, lately.")
    age_seconds: float | None = told(None, "The time since the last report.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The whole pipeline."""

    name: str = told(..., "The pipeline's name.")
    version: str = told(..., "The version of penstock.")
    uptime_seconds: float = told(..., "The time since the start.", series="uptime_seconds")
    health: Health = told(
        ..., "ok, degraded, unhealthy, standby. The series is 1 for the current state.",
        series="health", label="state",
        states=("ok", "degraded", "unhealthy", "standby"),
    )  # fmt: skip
    reasons: Sequence[str] = told(..., "Why health is not ok; empty if it is.")
    backends: Sequence[BackendStatus] = told(..., "The sources.")
    sinks: Sequence[SinkStatus] = told(..., "The targets of the changes.")
    last_batch: BatchStatus | None = told(..., "The latest micro-batch of all backends.")
    remedies: Sequence[Mapping[str, Any]] = told(
        (), "For each reason: what to `do`, a link to more (`see`), and the `action` that helps,"
        " with its `arguments`; empty without one.",
    )  # fmt: skip
    ready: bool = told(False, "What `/ready` answers.")
    unready: Sequence[str] = told((), "Why the pipeline is not ready.")
    starting: bool = told(False, "Whether the start is the only reason.")
    warming_up: bool = told(
        False, "Whether the pipeline is ready but no task has run: first changes take some seconds."
    )
    tables: Sequence[TableStatus] = told(
        (), "Tables that are or were suspended; with a sink of tables every table of each source."
        " Unknown values are left out.",
    )  # fmt: skip
    standby: str | None = told(
        None, "The instance that owns the pipeline, while this instance waits for it."
    )
    notifications: Mapping[str, int] = told(
        dict, "Posts to the webhooks of `ops.notify`: sent, failed (each try), dropped.",
        series="notifications", counter=True, label="outcome",
    )  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        tables = [each.to_json() for each in self.tables]
        return asdict(replace(self, tables=())) | {"tables": tables}


# What a status consists of.
STATUS_TYPES: tuple[type[Any], ...] = (
    Status, BackendStatus, PartitionStatus, GapReport, BatchStatus, SnapshotsReport, SinkStatus,
    TableStatus,
)  # fmt: skip


@cache
def status_schema() -> dict[str, Any]:
    schema: dict[str, Any] = TypeAdapter(Status).json_schema(mode="serialization")
    for kind in STATUS_TYPES:
        found = schema["$defs"].get(kind.__name__, schema)
        for name, about in described(kind).items():
            found["properties"][name]["description"] = about.what
    return schema


def assess(
    snapshot: Snapshot,
    *,
    name: str,
    version: str,
    backends: Sequence[str],
    started: float,
    now: float,
    thresholds: Thresholds | None = None,
    standby: str | None = None,
    partitions: int | None = SHOWN,
) -> Status:
    """The status at `now`; times are seconds of the board's clock. `backends` should report,
    unless this instance is on `standby`, whose reason that is. Of each backend at most so many
    `partitions` are shown (None: all)."""
    limits = thresholds or Thresholds()
    if standby is not None:
        found = [Complaint("standby", standby, STAND_BY)]
    else:
        found = complaints(snapshot, backends, started, now, limits)
    batches = [_batch(entry, now) for entry in snapshot.of(BatchReport).values()]
    ready, unready = readiness(snapshot, backends, standby)
    return Status(
        name=name,
        version=version,
        ready=ready,
        unready=unready,
        starting=worst(found) == "degraded" and all(each.remedy is STARTING for each in found),
        warming_up=ready
        and not snapshot.of(SinkReport)
        and not any(
            snapshot.latest(SourceReport, backend).host
            for backend in backends  # a processor
        ),
        uptime_seconds=round(now - started, 3),
        health=worst(found),
        reasons=tuple(each.reason for each in found),
        remedies=tuple(map(_remedy, found)),
        backends=tuple(
            _backend(backend, snapshot, now, partitions, limits) for backend in backends
        ),
        sinks=tuple(
            _sink(sink, entry, now) for sink, entry in sorted(snapshot.of(SinkReport).items())
        ),
        tables=_tables(snapshot, now),
        last_batch=min(filter(None, batches), key=lambda batch: batch.age_seconds, default=None),
        standby=standby,
        notifications=snapshot.latest(ProcessReport, "").notifications,
    )


def _remedy(found: Complaint) -> dict[str, Any]:
    """An error has its own page, which its code names."""
    code = re.search(r"\[([a-z]+\.[a-z-]+)\]$", found.reason)
    page = f"reference/errors/#{code[1].replace('.', '')}" if code else found.remedy.see
    action, arguments = found.remedy.action, found.about if found.remedy.action else {}
    return {
        "do": found.remedy.do, "see": f"{DOCS}/{page}", "action": action, "arguments": arguments,
    }  # fmt: skip


def _backend(
    name: str, snapshot: Snapshot, now: float, most: int | None, limits: Thresholds
) -> BackendStatus:
    source, query = snapshot.get(SourceReport, name), snapshot.get(QueryReport, name)
    reader, service = snapshot.latest(SourceReport, name), snapshot.latest(QueryReport, name)
    measure, batch = snapshot.latest(MeasureReport, name), snapshot.get(BatchReport, name)
    gaps = {key: entry.report for key, entry in snapshot.rows(GapReport, name).items()}
    stale = {key for key, gap in gaps.items() if gap.stale}
    # The details of one that is alone are the backend's.
    without: dict[str, Any] = {"details": {}} if reader.partition_count == 1 else {}
    partitions = tuple(
        PartitionStatus(
            partition=key,
            age_seconds=_age(row, now),
            health=partition_health(row.report, limits, is_stale=key in stale),
            **{**row.report.named, **without},
        )
        for key, row in most_urgent(snapshot.rows(PartitionReport, name), most)
    )
    known: dict[str, Any] = {
        **reader.named,
        **service.named,
        **measure.named,
        # The reader process's error is closer to the cause.
        "last_error": reader.last_error or service.last_error,
        "at_risk": at_risk(reader, limits.at_risk),
        "position": {row.partition: row.place for row in partitions if row.place is not None},
        "partitions": partitions,
        "gaps": gaps,
        "batch": None if batch is None else _batch(batch, now),
        "histograms": histograms(measure.histograms),
        "snapshots": snapshot.latest(SnapshotsReport, name),
    }
    if source is not None and reader.events:
        known["last_event_seconds"] = round(now - source.changed["events"], 3)
    if source is not None:
        known["rate"] = round(source.rate(now), 3)
    if source is not None and query is not None and source.at < query.changed.get("restarts", 0.0):
        known["connected"] = False  # what reported has ended, and its successor has not reported
    return BackendStatus(name=name, age_seconds=_age(source, now), **known)


def _sink(name: str, entry: Entry[SinkReport], now: float) -> SinkStatus:
    sink = entry.report
    # Each level from the start: an alert compares it with what it was before.
    levels = {level: sink.pressure_entered.get(level, 0) for level in LEVELS if sink.pressure}
    made: dict[str, Any] = {
        "histograms": histograms(sink.histograms), "pressure_entered": levels,
        "rate": round(entry.rate(now), 3),
    }  # fmt: skip
    if is_idle(entry, now):
        made |= {"latency_p50_ms": None, "latency_p99_ms": None}
    return SinkStatus(name=name, age_seconds=_age(entry, now), **{**sink.named, **made})


def _tables(snapshot: Snapshot, now: float) -> tuple[TableStatus, ...]:
    """Those that have a state, and the busiest of the others."""
    found: dict[str, TableStatus] = {}
    counted: defaultdict[str, list[TableStatus]] = defaultdict(list)
    for name, entry in snapshot.of(TableStatus).items():
        table = entry.report
        if table.applied:
            since = round(now - entry.changed.get("applied", entry.since), 3)
            rate, state = round(entry.rate(now), 3), table.state or "following"
            lately = {"rate": rate, "last_change_seconds": since, "state": state}
            table = TableStatus(**{**table.named, **lately})
        if entry.report.state:
            found[name] = table
        elif table.applied and table.sid is None:
            counted[table.backend].append(table)
    for backend, tables in counted.items():
        tables.sort(key=lambda table: (table.table != OTHER, sum((table.applied or {}).values())))
        named, rest = tables[-NAMED:], tables[:-NAMED]
        found |= {table.name: table for table in named}
        if rest:
            found[f"{backend}/{OTHER}"] = _together(rest)
    return tuple(found[name] for name in sorted(found))


def _together(tables: Sequence[TableStatus]) -> TableStatus:
    applied = sum((Counter(table.applied or {}) for table in tables), Counter())
    return TableStatus(
        backend=tables[0].backend,
        table=OTHER,
        state=tables[0].state,
        applied=applied,
        rate=together("sum", [table.rate for table in tables]),
        last_change_seconds=min(table.last_change_seconds or 0.0 for table in tables),
    )


def _batch(entry: Entry[BatchReport], now: float) -> BatchStatus | None:
    """None if it was not planned yet."""
    if entry.report.id < 0:
        return None
    return BatchStatus(
        duration_ms=entry.report.timings.get("triggerExecution", 0.0),
        age_seconds=round(now - entry.changed.get("id", entry.since), 3),
        **entry.report.named,
    )


def _age(entry: Entry[Any] | None, now: float) -> float | None:
    return None if entry is None else round(now - entry.at, 3)
