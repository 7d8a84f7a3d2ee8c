"""What is wrong with a pipeline, and how bad it is. Pure.

Health follows progress and not liveness: a pipeline that is behind and does not move is not
healthy, however connected it is; an idle one that has nothing to do is.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from penstock.ops.board import Entry, Snapshot
from penstock.ops.partitions import DISCONNECTED, at_risk
from penstock.ops.reports import (
    GapReport,
    MeasureReport,
    PartitionReport,
    QueryReport,
    ReadingReport,
    SinkReport,
    SnapshotsReport,
    SourceReport,
    TableStatus,
)
from penstock.ops.thresholds import Thresholds

Health = Literal["ok", "degraded", "unhealthy", "standby"]
_ORDER: tuple[Health, ...] = ("ok", "standby", "degraded", "unhealthy")
_Entries = Sequence[Entry[Any]]

_NAMED = 10  # partitions, or tables of one backend, that are named
# States of a sink's machines that are no complaint.
_CALM = (None, "normal", "closed")
_MILD = ("slow",)  # never unhealthy: changes flow
# States judged by answer times are stale once an idle sink gets no answers.
_PASSING = ("slow", "critical")
# What changes when changes have become durable, or have been acknowledged at the source.
_MOVES = ("confirmed", "place", "acknowledged", "published")
# Seconds. A reporter that has said nothing for this long is suspect.
_SILENT_AFTER = 15.0
# Partitions without an owner for so long are unhealthy: that a host takes over takes less.
_UNOWNED_AFTER = 120.0
# How long a first report may take. Spark alone takes 5 s, and 30 s on a busy machine.
_STARTING = 120.0


class Remedy(NamedTuple):
    """What to do, the page of the documentation with more of it, and the action that does it."""

    do: str
    see: str
    action: str = ""


STAND_BY = Remedy(
    "This instance takes over by itself. To end the other one: penstock shutdown.",
    "reference/operations/#two-instances",
)
_STANDS = Remedy(
    "Remove the cause. The backend goes on by itself, or at once with: penstock retry.",
    "reference/operations/#a-backend-that-fails", "retry",
)  # fmt: skip
_AWAY = Remedy("Verify its server and the network; retries are automatic.", _STANDS.see)
_STARTS = Remedy("The pipeline continues by itself; if not, see the log.", _STANDS.see)
# Of a start that takes no longer than starts do.
STARTING = Remedy(f"The start may take {_STARTING:.0f} s.", _STANDS.see)
_PAUSED = Remedy("To go on: penstock resume.", "reference/operations/#actions", "resume")
_STALE = Remedy(
    "Load its tables anew, then: penstock gaps mend.", "how-to/recover-from-a-gap/", "mend"
)
_RISK = Remedy(
    "Make the sink faster, or let the source keep more.",
    "reference/operations/#the-window-of-history",
)
_UNOWNED = Remedy("Start more hosts, or raise their max_partitions.", "how-to/process/")
_UNSAVED = Remedy(
    "Repair the store of positions; changes flow on.", "reference/pipeline/#positions-stores"
)
_SLOW = Remedy(
    "Verify the sink's server: its disk, its replicas.", "explanation/delivery/#back-pressure"
)
_BEHIND = Remedy("See back-pressure and the CPU.", "reference/operations/#lag")
_REFUSED = Remedy(
    "Let the stream keep changes for longer, or lower snapshot.max_age.",
    "how-to/snapshots/#how-long-changes-are-kept",
)
_TABLE = Remedy(
    "Remove the cause, then: penstock tables resume.",
    "how-to/dead-letters/#a-suspended-table", "resume-table",
)  # fmt: skip


class Complaint(NamedTuple):
    """One thing that is wrong; never ok. `about`: the arguments of the remedy's action."""

    health: Health
    reason: str
    remedy: Remedy
    about: Mapping[str, str] = MappingProxyType({})


def worst(found: Sequence[Complaint]) -> Health:
    """The health that these complaints mean; ok without any."""
    return max((each.health for each in found), key=_ORDER.index, default="ok")


def _lasting(
    seconds: float, patience: float, remedy: Remedy, reason: str, why: str = ""
) -> Complaint:
    """Degraded, and unhealthy once it has lasted for `patience` seconds."""
    health: Health = "unhealthy" if seconds >= patience else "degraded"
    return Complaint(health, _because(reason, why), remedy)


def _because(what: str, why: str) -> str:
    return f"{what}: {why}" if why else what


def complaints(
    snapshot: Snapshot, backends: Sequence[str], started: float, now: float, limits: Thresholds
) -> list[Complaint]:
    """Of a pipeline that runs, which `started` then; times are seconds of the board's clock."""
    sinks = snapshot.of(SinkReport)
    # A shared sink's progress is not evidence about one backend.
    alone = tuple(sinks.values()) if len(backends) == 1 else ()
    found = [
        each._replace(
            reason=f"backend {name}: {each.reason}", about={"backend": name, **each.about}
        )
        for name in backends
        for each in _Backend(name, snapshot, alone, now, limits).complaints(started)
    ]
    found += [
        each._replace(reason=f"sink {name}: {each.reason}")
        for name, entry in sinks.items()
        for each in _sink_complaints(entry, now, limits)
    ]
    return [*found, *_table_complaints(snapshot)]


class _Backend:
    """All reports of one backend; `sinks` are those that no other backend writes to."""

    def __init__(
        self, name: str, snapshot: Snapshot, sinks: _Entries, now: float, limits: Thresholds
    ) -> None:
        self._source, self._query = (
            snapshot.get(SourceReport, name),
            snapshot.get(QueryReport, name),
        )
        self._partitions = snapshot.rows(PartitionReport, name)
        self._gaps = snapshot.rows(GapReport, name)
        self._measure = snapshot.get(MeasureReport, name)
        self._refusal = snapshot.latest(SnapshotsReport, name).refusal
        self._sinks, self._now, self._limits = sinks, now, limits

    def complaints(self, started: float) -> Iterator[Complaint]:
        """What is wrong, of a pipeline that `started` then."""
        entry, query, limits = self._source, self._query, self._limits
        if query is not None and query.report.blocked:
            yield Complaint("unhealthy", f"stands still: {query.report.blocked}", _STANDS)
        elif query is not None and not query.report.begun:
            waited = self._now - query.changed.get("begun", query.since)
            why = query.report.last_error
            patience = limits.stalled_after if why else inf
            remedy = _AWAY if why else STARTING
            yield _lasting(waited, patience, remedy, f"has not begun for {waited:.0f} s", why)
        elif entry is None:
            # It may have joined a pipeline that runs.
            waited = self._now - max(started, query.since if query is not None else started)
            reason = f"has not reported for {waited:.0f} s since the start"
            remedy = STARTING if waited < _STARTING else _STARTS
            yield _lasting(waited, _STARTING, remedy, reason)
        elif entry.report.stopped:
            yield Complaint("unhealthy", "has stopped", _STARTS)
        else:
            yield from self._of_running(entry)

    def _of_running(self, entry: Entry[SourceReport]) -> Iterator[Complaint]:
        limits = self._limits
        yield from self._losses(entry.report)
        if self._refusal:
            yield Complaint("degraded", f"snapshots are refused: {self._refusal}", _REFUSED)
        yield from self._unowned(entry)
        yield from self._unsaved()
        if (silent := self._now - entry.at) >= _SILENT_AFTER:
            reason = f"has not reported for {silent:.0f} s"
            yield _lasting(silent, limits.stalled_after, _STARTS, reason)
        if self._query is not None and (paused := self._query.report.paused):
            # Behind on purpose, and after a restart not connected.
            until = paused["until"] or "it is resumed"
            reason = f"paused since {paused['since']} by {paused['by']}, until {until}"
            yield Complaint("degraded", reason, _PAUSED)
            return
        yield from _disconnected(entry, self._now, limits)
        # One that is alone has the backend's own complaint.
        gone = {
            name: self._now - row.changed["state"]
            for name, row in self._partitions.items()
            if row.report.state == DISCONNECTED and len(self._partitions) > 1
        }
        if gone:
            yield self._of_partitions(gone, "disconnected", _AWAY)
        yield from self._behind(entry)

    def _losses(self, source: SourceReport) -> Iterator[Complaint]:
        """What was lost and not mended, and what is about to be."""
        for partition, gap in self._gaps.items():
            if gap.report.stale:
                causes = ", ".join(sorted(gap.report.counts))
                reason = f"partition {partition} is stale: it has lost changes ({causes})"
                yield Complaint("degraded", reason, _STALE, {"partition": partition})
        if state := source.source_state:
            reason = source.source_message or f"the source is {state}"
            yield Complaint("degraded", reason, _RISK)
        if risk := at_risk(source, self._limits.at_risk):
            yield Complaint("degraded", risk, _RISK)

    def _unowned(self, entry: Entry[SourceReport]) -> Iterator[Complaint]:
        """Partitions of a processor that no host which lives has the lease of."""
        since = self._now - entry.calm.get("unowned", entry.since)
        if entry.report.unowned and since >= self._limits.stalled_after:
            reason = f"{entry.report.unowned} partitions have had no owner for {since:.0f} s"
            yield _lasting(since, _UNOWNED_AFTER, _UNOWNED, reason)

    def _unsaved(self) -> Iterator[Complaint]:
        """Changes flow on: only the source keeps more than it need."""
        entry = self._measure
        if entry is not None and (error := entry.report.positions_error):
            waited = self._now - entry.calm.get("positions_error", entry.since)
            reason = f"positions are not saved for {waited:.0f} s: {error}"
            yield Complaint("degraded", reason, _UNSAVED)

    def _of_partitions(self, since: Mapping[str, float], what: str, remedy: Remedy) -> Complaint:
        """One complaint for all of them, however many: `since` is seconds."""
        order = sorted(since, key=lambda name: -since[name])
        longest = since[order[0]]
        more = f", and {len(order) - _NAMED} more" if len(order) > _NAMED else ""
        return _lasting(
            longest,
            self._limits.stalled_after,
            remedy,
            f"{len(since)} of {len(self._partitions)} partitions {what} for up to {longest:.0f} s"
            f" ({', '.join(order[:_NAMED])}{more})",
            self._partitions[order[0]].report.last_error,
        )

    def _behind(self, entry: Entry[SourceReport]) -> Iterator[Complaint]:
        rows, limits = self._partitions, self._limits
        alone = len(rows) <= 1
        excuses: _Entries = [entry, *self._sinks] if alone else []
        stalls = {name: self._stalled(row, [row, *excuses]) for name, row in rows.items()}
        stuck = {name: stall for name, stall in stalls.items() if stall >= limits.stalled_after}
        if stuck and not alone:
            yield self._of_partitions(stuck, "are behind, and have not moved", _BEHIND)
            return
        whole = self._stalled(entry, [entry, *rows.values(), *self._sinks])
        longest = max(whole, *stuck.values()) if stuck else whole
        lag, age = entry.report.lag_bytes or 0, entry.report.lag_seconds or 0
        if longest >= limits.stalled_after:
            yield Complaint("unhealthy", f"behind, and has not moved for {longest:.0f} s", _BEHIND)
        elif lag >= limits.lag_limit:
            yield Complaint("degraded", f"{lag} bytes behind the source", _BEHIND)
        elif age >= limits.lag_age:
            yield Complaint("degraded", f"{age:.0f} s behind the source", _BEHIND)

    def _stalled(self, entry: Entry[Any], movers: _Entries) -> float:
        """For how long it has been behind without a move of any of `movers`; 0 if it is not."""
        known: ReadingReport = entry.report
        over = {
            "buffered_events": known.buffered_events > 0,
            "lag_bytes": (known.lag_bytes or 0) >= self._limits.lag_limit,
            # A log has bytes that are no changes of ours; anything else that is counted is.
            "lag": isinstance(known, PartitionReport)
            and known.lag_unit not in (None, "bytes")
            and (known.lag or 0) > 0,
        }
        behind = [entry.calm.get(key, entry.since) for key, is_over in over.items() if is_over]
        if not behind:
            return 0.0
        moves = [each.changed[key] for each in movers for key in _MOVES if key in each.changed]
        # An idle pipeline has not moved for hours; its time starts when it fell behind.
        return self._now - max([min(behind), *moves])


def _sink_complaints(
    entry: Entry[SinkReport], now: float, limits: Thresholds
) -> Iterator[Complaint]:
    # A sink that is idle has nothing to report, so its silence means nothing.
    yield from _disconnected(entry, now, limits)
    sink = entry.report
    machines = (
        ("pressure", "back-pressure is", sink.pressure, sink.pressure_reason),
        ("breaker", "the circuit breaker is", sink.breaker, sink.breaker_reason),
    )
    for field, called, state, reason in machines:
        if state in _CALM or (state in _PASSING and now - entry.at >= limits.stalled_after):
            continue
        since = now - entry.changed.get(field, entry.since)
        patience = inf if state in _MILD else limits.stalled_after
        text = f"{called} {state} for {since:.0f} s"
        yield _lasting(since, patience, _SLOW, text, reason or sink.last_error)


def _disconnected(
    entry: Entry[SourceReport] | Entry[SinkReport], now: float, limits: Thresholds
) -> Iterator[Complaint]:
    if not _is_connected(entry.report):
        since, why = entry.changed.get("connected", entry.since), entry.report.last_error
        reason = f"disconnected for {now - since:.0f} s"
        remedy = STARTING if since == entry.since and not why else _AWAY
        yield _lasting(now - since, limits.stalled_after, remedy, reason, why)


def _is_connected(report: SourceReport | SinkReport) -> bool:
    """Also what has not said yet whether it is."""
    return report.named.get("connected", True) is not False


def _table_complaints(snapshot: Snapshot) -> Iterator[Complaint]:
    """Of tables that do not go on until somebody acts; each backend's first ones by name."""
    counts: Counter[tuple[str, str]] = Counter()
    for _, entry in sorted(snapshot.of(TableStatus).items()):
        table, state = entry.report, entry.report.state
        if state not in ("suspended", "waiting"):
            continue
        who = f"backend {table.backend}: "
        counts[who, state] += 1
        if counts[who, state] <= _NAMED:
            name = f"{table.table} of {table.sid}" if table.sid else table.table
            does = "is suspended" if state == "suspended" else "waits"
            why = table.error if state == "waiting" else table.reason
            reason = f"{who}table {name} {does} since {table.since} ({why})"
            about = {"backend": table.backend, "table": table.table}
            yield Complaint("degraded", reason, _TABLE, about)
    for (who, state), count in counts.items():
        if count > _NAMED:
            does = "are suspended" if state == "suspended" else "wait"
            remedy = _TABLE._replace(action="")
            yield Complaint("degraded", f"{who}{count - _NAMED} more tables {does}", remedy)


def partition_health(row: PartitionReport, limits: Thresholds, *, is_stale: bool) -> str:
    """See `PartitionStatus`."""
    if is_stale:
        return "stale"
    much = row.lag_unit == "bytes" and (row.lag or 0) >= limits.lag_limit
    late = (row.lag_seconds or 0) >= limits.lag_age
    return "lagging" if much or late or row.state == DISCONNECTED else "healthy"


def readiness(
    snapshot: Snapshot, backends: Sequence[str], standby: str | None
) -> tuple[bool, Sequence[str]]:
    """Whether changes can flow, as /ready answers, and what keeps them from it: every backend has
    begun, its bookmark is saved, and what is written at a source from now on is delivered, however
    far behind. One backend that fails later is a reason, but does not make the pipeline unready."""
    if standby is not None:
        return False, (standby,)
    waiting = {name: why for name in backends if (why := _not_begun(snapshot, name))}
    failed = {name: why for name in backends if (why := _cannot_read(snapshot, name))}
    sinks = tuple(_sinks_away(snapshot))
    reasons = [f"backend {name}: {why}" for name, why in (failed | waiting).items()]
    flows = (len(failed) < len(backends) or not backends) and not sinks
    return flows and not waiting, (*reasons, *sinks)


def _not_begun(snapshot: Snapshot, backend: str) -> str:
    query = snapshot.latest(QueryReport, backend)
    return "" if query.begun else _because("has not begun", query.blocked or query.last_error)


def _cannot_read(snapshot: Snapshot, backend: str) -> str:
    query = snapshot.latest(QueryReport, backend)
    source = snapshot.latest(SourceReport, backend)
    if query.blocked:
        return f"stands still: {query.blocked}"
    if source.stopped:
        return "has stopped"
    if not _is_connected(source) and not query.paused:  # it has begun, and its reader may start
        return _because("is disconnected", source.last_error)
    return ""


def _sinks_away(snapshot: Snapshot) -> Iterator[str]:
    for name, entry in snapshot.of(SinkReport).items():
        if not _is_connected(entry.report):
            yield f"sink {name}: is disconnected"
        elif entry.report.breaker == "open":
            yield f"sink {name}: the circuit breaker is open"
