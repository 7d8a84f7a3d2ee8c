"""One frozen value that says how a pipeline is: /health, /status, /metrics, the log and the
dashboard read the same one. Made from the board's snapshot and a time; pure.

Health follows progress and not liveness: a pipeline that is behind and does not move is not
healthy, however connected it is; an idle one that has nothing to do is.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple, TypeVar

from penstock.ops.board import Entry, Snapshot
from penstock.ops.set_aside import LETTERS

__all__ = [
    "BackendStatus",
    "BatchStatus",
    "Health",
    "SinkStatus",
    "Status",
    "TableStatus",
    "Thresholds",
    "assess",
]

Health = Literal["ok", "degraded", "unhealthy", "standby"]
_ORDER: tuple[Health, ...] = ("ok", "standby", "degraded", "unhealthy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """When things count as wrong; seconds, and exactly at a threshold counts as above it.

    `stalled_after`: behind and not moving, or disconnected, for this long is unhealthy.
    `lag_bytes`: more unconfirmed log than this is "behind". `silent_after`: a reporter that has
    said nothing for this long is suspect. `starting`: how long a first report may take.
    """

    stalled_after: float = 30.0
    lag_bytes: int = 64 * 2**20
    silent_after: float = 15.0
    # Spark alone takes 5 s, and 30 s on a busy machine.
    starting: float = 120.0

    @property
    def bounds(self) -> dict[str, float]:
        """What the board must know to tell since when a number is above its bound."""
        return {"lag_bytes": self.lag_bytes - 1}


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
    """One source. LSNs as PostgreSQL prints them; None is "not known". `gaps`: what was lost, by
    partition, see `leases.gaps`; `blocked`: why it stands still until somebody acts. `details` is
    what else the feed reports."""

    name: str
    connected: bool = False
    slot: str | None = None
    current_lsn: str | None = None
    confirmed_lsn: str | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    events: int = 0
    pages: int = 0
    batches: int = 0
    buffered_events: int = 0
    buffered_bytes: int = 0
    reconnects: int = 0
    last_error: str = ""
    position: Mapping[str, str] = field(default_factory=dict)
    gaps: Mapping[str, Any] = field(default_factory=dict)
    blocked: str = ""
    stopped: bool = False
    age_seconds: float | None = None
    batch: BatchStatus | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkStatus:
    """Where changes go; latencies in milliseconds, from the commit at the source to the
    acknowledgement, over the last micro-batch. `answer_ms` is the longest that the sink's server
    took for an answer lately; `pressure` and `breaker` are what the sink makes of it."""

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
    breaker: str | None = None
    breaker_transitions: int = 0
    age_seconds: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """A table that is or was suspended: since when it is in its `state`, and why it was; how many
    of its changes are missing in the sink, and the places of the last hole's ends."""

    backend: str
    table: str
    state: str
    reason: str = ""
    error: str = ""
    since: str = ""
    skipped: int = 0
    first_skipped: str | None = None
    last_skipped: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The whole pipeline. `reasons` is empty exactly when `health` is ok. `standby` says whom it
    waits for while another instance owns the pipeline."""

    name: str
    version: str
    uptime_seconds: float
    health: Health
    reasons: Sequence[str]
    backends: Sequence[BackendStatus]
    sinks: Sequence[SinkStatus]
    last_batch: BatchStatus | None
    tables: Sequence[TableStatus] = ()
    standby: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


class _Complaint(NamedTuple):
    health: Health
    reason: str


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
) -> Status:
    """The status at `now`; times are seconds of the board's clock. `backends` should report,
    unless this instance is on `standby`, whose reason that is."""
    if standby is not None:
        complaints: list[_Complaint] = [_Complaint("standby", standby)]
    else:
        complaints = _complaints(snapshot, backends, started, now, thresholds or Thresholds())
    sinks = {key[1]: entry for key, entry in snapshot.items() if key[0] == "sink"}
    batches = [
        (entry.changed.get("id", entry.since), _batch(entry, now))
        for key, entry in snapshot.items()
        if key[0] == "batch" and "id" in entry.fields
    ]
    return Status(
        name=name,
        version=version,
        uptime_seconds=round(now - started, 3),
        health=max((c.health for c in complaints), key=_ORDER.index, default="ok"),
        reasons=tuple(c.reason for c in complaints),
        backends=tuple(_backend(backend, snapshot, now) for backend in backends),
        sinks=tuple(_sink(sink, entry, now) for sink, entry in sorted(sinks.items())),
        tables=_tables(snapshot),
        last_batch=max(batches, key=lambda pair: pair[0])[1] if batches else None,
        standby=standby,
    )


def _complaints(
    snapshot: Snapshot, backends: Sequence[str], started: float, now: float, limits: Thresholds
) -> list[_Complaint]:
    sinks = {key[1]: entry for key, entry in snapshot.items() if key[0] == "sink"}
    complaints = [
        complaint
        for backend in backends
        for complaint in _backend_complaints(
            backend,
            snapshot.get(("source", backend)),
            # What a shared sink takes says nothing of one backend.
            tuple(sinks.values()) if len(backends) == 1 else (),
            started=started,
            now=now,
            limits=limits,
        )
    ]
    for sink, entry in sinks.items():
        complaints += _sink_complaints(sink, entry, now, limits)
    complaints += _table_complaints(_tables(snapshot))
    return complaints


def _backend(name: str, snapshot: Snapshot, now: float) -> BackendStatus:
    batch = snapshot.get(("batch", name))
    shown = batch is not None and "id" in batch.fields
    more = {"batch": _batch(batch, now)} if batch is not None and shown else {}
    return _shown(BackendStatus, name, snapshot.get(("source", name)), now, more)


def _sink(name: str, entry: Entry, now: float) -> SinkStatus:
    letters = {
        key.removeprefix(LETTERS): value
        for key, value in entry.fields.items()
        if key.startswith(LETTERS)
    }
    rest = {key: v for key, v in entry.fields.items() if not key.startswith(LETTERS)}
    return _shown(SinkStatus, name, replace(entry, fields=rest), now, {"dead_letters": letters})


def _tables(snapshot: Snapshot) -> tuple[TableStatus, ...]:
    own = {item.name for item in fields(TableStatus)}
    return tuple(
        TableStatus(**{key: value for key, value in entry.fields.items() if key in own})
        for (kind, _), entry in sorted(snapshot.items())
        if kind == "table"
    )


def _table_complaints(tables: Sequence[TableStatus]) -> Iterator[_Complaint]:
    for table in tables:
        if table.state == "suspended":
            yield _Complaint(
                "degraded",
                f"backend {table.backend}: table {table.table} is suspended since {table.since}"
                f" ({table.reason})",
            )


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


def _shown(
    kind: type[S], name: str, entry: Entry | None, now: float, more: Mapping[str, Any] | None = None
) -> S:
    """A status of the fields that were reported; null is the default, the rest are details."""
    if entry is None:
        return kind(name=name, **(more or {}))
    own = {
        item.name
        for item in fields(kind)
        if item.default is not MISSING or item.default_factory is not MISSING
    } - {"details", "batch", "age_seconds", "dead_letters"}
    return kind(
        name=name,
        age_seconds=round(now - entry.at, 3),
        details={key: value for key, value in entry.fields.items() if key not in own},
        **{key: entry.fields[key] for key in own if entry.fields.get(key) is not None},
        **(more or {}),
    )


def _backend_complaints(
    name: str,
    entry: Entry | None,
    sinks: Sequence[Entry],
    *,
    started: float,
    now: float,
    limits: Thresholds,
) -> Iterator[_Complaint]:
    if entry is None:
        waited = now - started
        yield _Complaint(
            "unhealthy" if waited >= limits.starting else "degraded",
            f"backend {name}: has not reported for {waited:.0f} s since the start",
        )
        return
    if entry.fields.get("stopped"):
        yield _Complaint("unhealthy", f"backend {name}: has stopped")
        return
    if blocked := entry.fields.get("blocked"):
        yield _Complaint("unhealthy", f"backend {name}: stands still: {blocked}")
        return
    yield from _losses(name, entry)
    silent = now - entry.at
    if silent >= limits.silent_after:
        yield _Complaint(
            "unhealthy" if silent >= limits.stalled_after else "degraded",
            f"backend {name}: has not reported for {silent:.0f} s",
        )
    yield from _disconnected(f"backend {name}", entry, now, limits)
    yield from _behind(name, entry, sinks, now, limits)


def _losses(name: str, entry: Entry) -> Iterator[_Complaint]:
    """What was lost and not mended, and what is about to be."""
    for partition, row in (entry.fields.get("gaps") or {}).items():
        if row["stale"]:
            causes = ", ".join(sorted(row["counts"]))
            yield _Complaint(
                "degraded", f"backend {name}: partition {partition} is stale: it has lost changes"
                f" ({causes})",
            )  # fmt: skip
    if entry.fields.get("wal_status") == "unreserved":
        yield _Complaint(
            "degraded", f"backend {name}: so far behind that the server may give its slot up"
        )


def _sink_complaints(
    name: str, entry: Entry, now: float, limits: Thresholds
) -> Iterator[_Complaint]:
    # A sink that is idle has nothing to report, so its silence means nothing.
    yield from _disconnected(f"sink {name}", entry, now, limits)
    for field_name, state in _STRAINED:
        if entry.fields.get(field_name) != state:
            continue
        if state in _PASSING and now - entry.at >= limits.stalled_after:
            continue
        since = now - entry.changed.get(field_name, entry.since)
        lasting = state not in _MILD and since >= limits.stalled_after
        why = entry.fields.get(f"{field_name}_reason") or entry.fields.get("last_error")
        yield _Complaint(
            "unhealthy" if lasting else "degraded",
            f"sink {name}: {_SAID[field_name]} {state} for {since:.0f} s"
            + (f": {why}" if why else ""),
        )


# States of a sink's machines that are a complaint, and how it is called.
_STRAINED = (
    ("pressure", "slow"), ("pressure", "critical"), ("breaker", "open"), ("breaker", "half-open"),
)  # fmt: skip
_SAID = {"pressure": "back-pressure is", "breaker": "the circuit breaker is"}
_MILD = ("slow",)  # never unhealthy: changes flow
# What is judged by answers says nothing once the sink, with nothing to do, gets none.
_PASSING = ("slow", "critical")


def _disconnected(who: str, entry: Entry, now: float, limits: Thresholds) -> Iterator[_Complaint]:
    if entry.fields.get("connected", True):
        return
    gone = now - entry.changed.get("connected", entry.since)
    why = entry.fields.get("last_error") or entry.fields.get("error")
    yield _Complaint(
        "unhealthy" if gone >= limits.stalled_after else "degraded",
        f"{who}: disconnected for {gone:.0f} s" + (f": {why}" if why else ""),
    )


# What changes when changes have become durable and the source has been told.
_MOVES = ("confirmed_lsn", "position")
_SINK_MOVES = ("acknowledged", "published", "position")


def _behind(
    name: str, entry: Entry, sinks: Sequence[Entry], now: float, limits: Thresholds
) -> Iterator[_Complaint]:
    lag = entry.fields.get("lag_bytes") or 0
    over = {
        "buffered_events": (entry.fields.get("buffered_events") or 0) > 0,
        "lag_bytes": lag >= limits.lag_bytes,
    }
    behind = [entry.calm.get(key, entry.since) for key, is_over in over.items() if is_over]
    if not behind:
        return
    moves = [entry.changed[key] for key in _MOVES if key in entry.changed]
    moves += [sink.changed[key] for sink in sinks for key in _SINK_MOVES if key in sink.changed]
    # An idle pipeline has not moved for hours; its time starts when it fell behind.
    stalled = now - max([min(behind), *moves])
    if stalled >= limits.stalled_after:
        yield _Complaint(
            "unhealthy", f"backend {name}: behind, and has not moved for {stalled:.0f} s"
        )
    elif over["lag_bytes"]:
        yield _Complaint("degraded", f"backend {name}: {lag} bytes behind the source")
