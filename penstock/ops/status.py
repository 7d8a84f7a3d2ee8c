"""The status of a pipeline as one frozen value, made from the board's snapshot and a time; pure.

/health, /ready, /status, /metrics, the log and the dashboard read the same value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

from penstock.ops.board import Entry, Snapshot, rows_of
from penstock.ops.health import Complaint, Health, Thresholds, complaints, readiness, worst
from penstock.ops.partitions import SHOWN, PartitionStatus, at_risk, health_of, shown
from penstock.ops.reporter import APPLIED, COMMIT_SECONDS, COMMITS, LETTERS
from penstock.process.histograms import PREFIX, histograms


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatus:
    """A backend's last micro-batch; `timings` are Spark's phases in milliseconds."""

    id: int = -1
    rows: int = 0
    duration_ms: float = 0.0
    timings: Mapping[str, float] = field(default_factory=dict)
    age_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendStatus:
    """One source; None is "not known".

    `current`: its newest place, and `confirmed`: the place up to which it was acknowledged, as the
    source writes them. `lag`: what it has after that, by unit, of which `lag_bytes` is the bytes.
    `window_seconds`: how far its history reaches back, and `window_left_seconds`: how long what is
    durable stays in it, of the partition that leaves it first; `at_risk`: why that is little.
    `partitions`: those that need attention most, of `partition_count`. `gaps`: what was lost, by
    partition, see `leases.gaps`. `source_state`: what is wrong with the source as a whole
    ("disabled", "throttled"). `blocked`: why the backend stands still until the operator acts.
    `snapshots`: of its tables, see `SnapshotTotals`. `details`: in the source's own terms.
    """

    name: str
    begun: bool = False
    connected: bool = False
    current: str | None = None
    confirmed: str | None = None
    lag: Mapping[str, float] = field(default_factory=dict)
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    window_seconds: float | None = None
    window_left_seconds: float | None = None
    last_event_seconds: float | None = None
    events: int = 0
    pages: int = 0
    batches: int = 0
    buffered_events: int = 0
    buffered_bytes: int = 0
    reconnects: int = 0
    restarts: int = 0
    last_error: str = ""
    position: Mapping[str, str] = field(default_factory=dict)
    partition_count: int = 0
    partition_states: Mapping[str, int] = field(default_factory=dict)
    partitions: Sequence[PartitionStatus] = ()
    source_state: str = ""
    source_message: str = ""
    at_risk: str = ""
    gaps: Mapping[str, Any] = field(default_factory=dict)
    positions_error: str = ""
    saved: int = 0
    save_errors: int = 0
    blocked: str = ""
    stopped: bool = False
    age_seconds: float | None = None
    batch: BatchStatus | None = None
    histograms: Mapping[str, Any] = field(default_factory=dict)
    snapshots: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def source_ok(self) -> bool:
        """Whether nothing is wrong with the source as a whole."""
        return not self.source_state and not self.at_risk


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkStatus:
    """Where changes go; latencies in milliseconds, from the commit at the source to the
    acknowledgement, of what was published lately. `answer_ms` is the longest that the sink's server
    took for an answer lately; `pressure` and `breaker` are what the sink makes of it. `commits` and
    `commit_seconds`: of each worker of a sink of tables, since the start."""

    name: str
    connected: bool | None = None
    delivery: str | None = None
    published: int = 0
    acknowledged: int = 0
    duplicates: int = 0
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    errors: int = 0
    reconnects: int = 0
    last_error: str = ""
    latency_p50_ms: float | None = None
    latency_p99_ms: float | None = None
    answer_ms: float | None = None
    pressure: str | None = None
    pressure_transitions: int = 0
    pressure_entered: Mapping[str, int] = field(default_factory=dict)
    breaker: str | None = None
    breaker_transitions: int = 0
    commits: Mapping[str, float] = field(default_factory=dict)
    commit_seconds: Mapping[str, float] = field(default_factory=dict)
    age_seconds: float | None = None
    histograms: Mapping[str, Any] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """A table that is or was suspended, or any of a sink of tables, of the source `sid`: since when
    it is in its `state`, and why. `skipped` are missing in the sink, `held` wait there; the places
    are those of their ends. `applied`: changes by operation, `letters`: dead letters, since the
    start. `rows_loaded`, `rows_to_come` (about): of a load. `lag_seconds`: between the commits of
    its last change at the source and in the `target`. `ignored`: columns of the source that the
    target lacks. None: not known."""

    backend: str
    table: str
    state: str
    sid: str | None = None
    target: str | None = None
    reason: str | None = ""
    error: str | None = ""
    since: str | None = ""
    place: str | None = None
    lag_seconds: float | None = None
    ignored: Sequence[str] | None = None
    rows_loaded: int | None = None
    rows_to_come: int | None = None
    applied: Mapping[str, int] | None = None
    letters: int | None = None
    held: int | None = None
    skipped: int | None = None
    first_skipped: str | None = None
    last_skipped: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON of what is known."""
        return {key: found for key in _TABLE if (found := getattr(self, key)) is not None}


_TABLE = tuple(item.name for item in fields(TableStatus))
_OPERATIONS = {f"{APPLIED}{name}": name for name in ("insert", "update", "delete", "truncate")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The whole pipeline. `reasons` is empty exactly when `health` is ok. `standby`: the instance
    that owns the pipeline, while this one waits for it. `ready`: see `readiness`."""

    name: str
    version: str
    uptime_seconds: float
    health: Health
    reasons: Sequence[str]
    backends: Sequence[BackendStatus]
    sinks: Sequence[SinkStatus]
    last_batch: BatchStatus | None
    ready: bool = False
    unready: Sequence[str] = ()
    tables: Sequence[TableStatus] = ()
    standby: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        tables = [each.to_json() for each in self.tables]
        return asdict(replace(self, tables=())) | {"tables": tables}


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
        found = [Complaint("standby", standby)]
    else:
        found = complaints(snapshot, backends, started, now, limits)
    sinks = {key[1]: entry for key, entry in snapshot.items() if key[0] == "sink"}
    batches = [
        (entry.changed.get("id", entry.since), _batch(entry, now))
        for key, entry in snapshot.items()
        if key[0] == "batch" and "id" in entry.fields
    ]
    flow = readiness(snapshot, backends, standby)
    return Status(
        name=name,
        version=version,
        ready=flow.ready,
        unready=flow.reasons,
        uptime_seconds=round(now - started, 3),
        health=worst(found),
        reasons=tuple(each.reason for each in found),
        backends=tuple(
            _backend(backend, snapshot, now, partitions, limits) for backend in backends
        ),
        sinks=tuple(_sink(sink, entry, now) for sink, entry in sorted(sinks.items())),
        tables=_tables(snapshot),
        last_batch=max(batches, key=lambda pair: pair[0])[1] if batches else None,
        standby=standby,
    )


def _backend(
    name: str, snapshot: Snapshot, now: float, most: int | None, limits: Thresholds
) -> BackendStatus:
    batch = snapshot.get(("batch", name))
    is_shown = batch is not None and "id" in batch.fields
    partitions = shown(rows_of(snapshot, "partition", name), now, most)
    places = {row.partition: row.place for row in partitions if row.place is not None}
    gaps = {key: entry.fields for key, entry in rows_of(snapshot, "gap", name).items()}
    partitions = tuple(
        replace(
            row,
            health=health_of(
                row,
                stale=bool(gaps.get(row.partition, {}).get("stale")),
                lag_bytes=limits.lag_bytes,
                lag_seconds=limits.lag_seconds,
            ),
        )
        for row in partitions
    )
    more: dict[str, Any] = {"partitions": partitions, "gaps": gaps}
    more |= {"batch": _batch(batch, now)} if batch is not None and is_shown else {}
    entry, query = snapshot.get(("source", name)), snapshot.get(("query", name))
    reader = entry.fields if entry is not None else {}
    service = query.fields if query is not None else {}
    # The reader process's error is closer to the cause.
    error = reader.get("last_error") or service.get("last_error")
    measure = snapshot.get(("measure", name))
    measured = measure.fields if measure is not None else {}
    taken = snapshot.get(("snapshots", name))
    more |= {"histograms": histograms(measured), "snapshots": dict(taken.fields) if taken else {}}
    known = {"position": places, **reader, **service, "last_error": error}
    known |= {key: measured[key] for key in _MEASURED if key in measured}
    known["at_risk"] = at_risk(reader, limits.at_risk)
    if entry is not None and reader.get("events"):
        known["last_event_seconds"] = round(now - entry.changed["events"], 3)
    if entry is not None and query is not None and entry.at < query.changed["restarts"]:
        known["connected"] = False  # what reported has ended, and its successor has not reported
    return _shown(BackendStatus, name, known, _age(entry, now), more)


def _sink(name: str, entry: Entry, now: float) -> SinkStatus:
    more = {
        "dead_letters": _after(LETTERS, entry.fields),
        "pressure_entered": _after(_ENTERED, entry.fields),
        "commits": _after(COMMITS, entry.fields),
        "commit_seconds": _after(COMMIT_SECONDS, entry.fields),
        "histograms": histograms(entry.fields),
    }
    apart = (LETTERS, _ENTERED, COMMITS, COMMIT_SECONDS, PREFIX)
    rest = {key: v for key, v in entry.fields.items() if not key.startswith(apart)}
    return _shown(SinkStatus, name, rest, _age(entry, now), more)


def _after(prefix: str, known: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key.removeprefix(prefix): value for key, value in known.items() if key.startswith(prefix)
    }


def _tables(snapshot: Snapshot) -> tuple[TableStatus, ...]:
    entries = sorted((key[1], each.fields) for key, each in snapshot.items() if key[0] == "table")
    for name, known in entries:
        if name not in _made_of or _made_of[name][0] is not known:
            _made_of[name] = known, _table(known)
    return tuple(_made_of[name][1] for name, known in entries if "state" in known)


# Of a thousand tables few have changed since the last look.
_made_of: dict[str, tuple[Mapping[str, Any], TableStatus]] = {}


def _table(known: Mapping[str, Any]) -> TableStatus:
    own: dict[str, Any] = {"state": ""} | {key: known[key] for key in _TABLE if key in known}
    if "sid" in own:
        own["applied"] = {name: known[key] for key, name in _OPERATIONS.items() if key in known}
    return TableStatus(**own)


def _batch(entry: Entry, now: float) -> BatchStatus:
    known = entry.fields
    timings = known.get("timings") or {}
    return BatchStatus(
        id=known["id"],
        rows=known.get("rows", 0),
        duration_ms=known.get("duration", timings.get("triggerExecution", 0.0)),
        timings=timings,
        age_seconds=round(now - entry.changed.get("id", entry.since), 3),
    )


S = TypeVar("S", BackendStatus, SinkStatus)

# Fields that are made here, never copied from a report.
_MADE = (
    "batch", "commit_seconds", "commits", "dead_letters", "gaps", "histograms", "partitions",
    "pressure_entered",
)  # fmt: skip
# Of a backend's measurements, what its status shows.
_MEASURED = ("positions_error", "saved", "save_errors")
# Counters of a sink that end in a level of back-pressure.
_ENTERED = "pressure_entered:"


def _shown(
    kind: type[S],
    name: str,
    known: Mapping[str, Any],
    age: float | None,
    more: Mapping[str, Any],
) -> S:
    """A status of the fields that were reported; null is the default, the rest are details."""
    own = {
        item.name
        for item in fields(kind)
        if item.default is not MISSING or item.default_factory is not MISSING
    } - {"details", "age_seconds", *more, *_MADE}
    rest = {key: value for key, value in known.items() if key not in own | {"details"}}
    return kind(
        name=name,
        age_seconds=age,
        details={**rest, **(known.get("details") or {})},
        **{key: known[key] for key in own if known.get(key) is not None},
        **more,
    )


def _age(entry: Entry | None, now: float) -> float | None:
    return None if entry is None else round(now - entry.at, 3)
