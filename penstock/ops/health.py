"""What is wrong with a pipeline, and how bad it is. Pure.

Health follows progress and not liveness: a pipeline that is behind and does not move is not
healthy, however connected it is; an idle one that has nothing to do is.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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
    SourceReport,
    TableStatus,
)

Health = Literal["ok", "degraded", "unhealthy", "standby"]
_ORDER: tuple[Health, ...] = ("ok", "standby", "degraded", "unhealthy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """When things count as wrong; seconds, and exactly at a threshold counts as above it.

    `stalled_after`: behind and not moving, or disconnected, for this long is unhealthy.
    `lag_bytes`: more unconfirmed log than this is "behind"; `lag_seconds`: so is an older change in
    flight. `at_risk`: less than this share of the source's history before us may soon be lost.
    `silent_after`: a reporter that has
    said nothing for this long is suspect. `unowned_after`: partitions without an owner for so long
    are unhealthy: that a host takes over takes less. `starting`: how long a first report may take.
    """

    stalled_after: float = 30.0
    lag_bytes: int = 64 * 2**20
    lag_seconds: float = 300.0
    at_risk: float = 0.25
    silent_after: float = 15.0
    unowned_after: float = 120.0
    # Spark alone takes 5 s, and 30 s on a busy machine.
    starting: float = 120.0

    @property
    def bounds(self) -> dict[str, float]:
        """What the board must know to tell since when a number is above its bound."""
        return {"lag_bytes": self.lag_bytes - 1}


class Complaint(NamedTuple):
    """One thing that is wrong; never ok."""

    health: Health
    reason: str


def worst(found: Sequence[Complaint]) -> Health:
    """The health that these complaints mean; ok without any."""
    return max((each.health for each in found), key=_ORDER.index, default="ok")


def complaints(
    snapshot: Snapshot, backends: Sequence[str], started: float, now: float, limits: Thresholds
) -> list[Complaint]:
    """Of a pipeline that runs, which `started` then; times are seconds of the board's clock."""
    sinks = snapshot.of(SinkReport)
    # A shared sink's progress is not evidence about one backend.
    alone = tuple(sinks.values()) if len(backends) == 1 else ()
    found = [
        complaint
        for backend in backends
        for complaint in _backend_complaints(
            _Backend(
                backend,
                source=snapshot.get(SourceReport, backend),
                query=snapshot.get(QueryReport, backend),
                partitions=snapshot.rows(PartitionReport, backend),
                gaps=snapshot.rows(GapReport, backend),
                measure=snapshot.get(MeasureReport, backend),
                sinks=alone,
            ),
            started=started,
            now=now,
            limits=limits,
        )
    ]
    for sink, entry in sinks.items():
        found += _sink_complaints(sink, entry, now, limits)
    found += _table_complaints(snapshot)
    return found


class _Backend(NamedTuple):
    """All reports of one backend; `sinks` are those that no other backend writes to."""

    name: str
    source: Entry[SourceReport] | None
    query: Entry[QueryReport] | None
    partitions: Mapping[str, Entry[PartitionReport]]
    gaps: Mapping[str, Entry[GapReport]]
    measure: Entry[MeasureReport] | None
    sinks: Sequence[Entry[SinkReport]]


def _backend_complaints(
    backend: _Backend, *, started: float, now: float, limits: Thresholds
) -> Iterator[Complaint]:
    name, entry, query = backend.name, backend.source, backend.query
    if query is not None and query.report.blocked:
        yield Complaint("unhealthy", f"backend {name}: stands still: {query.report.blocked}")
        return
    if query is not None and not query.report.begun:
        waited = now - query.changed.get("begun", query.since)
        why = query.report.last_error
        yield Complaint(
            "unhealthy" if why and waited >= limits.stalled_after else "degraded",
            f"backend {name}: has not begun for {waited:.0f} s" + (f": {why}" if why else ""),
        )
        return
    if entry is None:
        # It may have joined a pipeline that runs.
        waited = now - max(started, query.since if query is not None else started)
        yield Complaint(
            "unhealthy" if waited >= limits.starting else "degraded",
            f"backend {name}: has not reported for {waited:.0f} s since the start",
        )
        return
    if entry.report.stopped:
        yield Complaint("unhealthy", f"backend {name}: has stopped")
        return
    yield from _losses(backend, entry, limits)
    yield from _unowned(name, entry, now, limits)
    yield from _unsaved(backend, now)
    silent = now - entry.at
    if silent >= limits.silent_after:
        yield Complaint(
            "unhealthy" if silent >= limits.stalled_after else "degraded",
            f"backend {name}: has not reported for {silent:.0f} s",
        )
    if query is not None and (paused := query.report.paused):
        # Behind on purpose, and after a restart not connected.
        until = paused["until"] or "it is resumed"
        yield Complaint(
            "degraded",
            f"backend {name}: paused since {paused['since']} by {paused['by']}, until {until}",
        )
        return
    yield from _disconnected(f"backend {name}", entry, now, limits)
    yield from _partitions_disconnected(backend, now, limits)
    yield from _behind(backend, entry, now, limits)


def _losses(
    backend: _Backend, entry: Entry[SourceReport], limits: Thresholds
) -> Iterator[Complaint]:
    """What was lost and not mended, and what is about to be."""
    for partition, gap in backend.gaps.items():
        if gap.report.stale:
            causes = ", ".join(sorted(gap.report.counts))
            yield Complaint(
                "degraded", f"backend {backend.name}: partition {partition} is stale: it has lost"
                f" changes ({causes})",
            )  # fmt: skip
    if state := entry.report.source_state:
        why = entry.report.source_message or f"the source is {state}"
        yield Complaint("degraded", f"backend {backend.name}: {why}")
    if risk := at_risk(entry.report, limits.at_risk):
        yield Complaint("degraded", f"backend {backend.name}: {risk}")


def _unowned(
    name: str, entry: Entry[SourceReport], now: float, limits: Thresholds
) -> Iterator[Complaint]:
    """Partitions of a processor that no host which lives has the lease of."""
    if count := entry.report.unowned:
        since = now - entry.calm.get("unowned", entry.since)
        if since >= limits.stalled_after:
            yield Complaint(
                "unhealthy" if since >= limits.unowned_after else "degraded",
                f"backend {name}: {count} partitions have had no owner for {since:.0f} s",
            )


def _unsaved(backend: _Backend, now: float) -> Iterator[Complaint]:
    """Changes flow on: only the source keeps more than it need."""
    entry = backend.measure
    if entry is not None and (error := entry.report.positions_error):
        waited = now - entry.calm.get("positions_error", entry.since)
        yield Complaint(
            "degraded",
            f"backend {backend.name}: positions are not saved for {waited:.0f} s: {error}",
        )


def _partitions_disconnected(
    backend: _Backend, now: float, limits: Thresholds
) -> Iterator[Complaint]:
    """Of a backend with several: one that is alone has the backend's own complaint."""
    gone = {
        name: now - entry.changed["state"]
        for name, entry in backend.partitions.items()
        if entry.report.state == DISCONNECTED
    }
    if gone and len(backend.partitions) > 1:
        yield _of_partitions(backend, gone, "disconnected", limits)


def _of_partitions(
    backend: _Backend, since: Mapping[str, float], what: str, limits: Thresholds
) -> Complaint:
    """One complaint for all of them, however many: `since` is seconds."""
    worst = sorted(since, key=lambda name: -since[name])
    longest = since[worst[0]]
    error = backend.partitions[worst[0]].report.last_error
    return Complaint(
        "unhealthy" if longest >= limits.stalled_after else "degraded",
        f"backend {backend.name}: {len(since)} of {len(backend.partitions)} partitions {what} for"
        f" up to {longest:.0f} s ({', '.join(worst[:_NAMED])}{_more(len(worst))})"
        + (f": {error}" if error else ""),
    )


_NAMED = 10  # partitions, or tables of one backend, that are named


def _more(count: int) -> str:
    """How many are not named."""
    return f", and {count - _NAMED} more" if count > _NAMED else ""


def _sink_complaints(
    name: str, entry: Entry[SinkReport], now: float, limits: Thresholds
) -> Iterator[Complaint]:
    # A sink that is idle has nothing to report, so its silence means nothing.
    yield from _disconnected(f"sink {name}", entry, now, limits)
    sink = entry.report
    machines = (
        ("pressure", "back-pressure is", sink.pressure, sink.pressure_reason),
        ("breaker", "the circuit breaker is", sink.breaker, sink.breaker_reason),
    )
    for field, called, state, reason in machines:
        if state in _CALM or (state in _PASSING and now - entry.at >= limits.stalled_after):
            continue
        since = now - entry.changed.get(field, entry.since)
        lasting = state not in _MILD and since >= limits.stalled_after
        why = reason or sink.last_error
        yield Complaint(
            "unhealthy" if lasting else "degraded",
            f"sink {name}: {called} {state} for {since:.0f} s" + (f": {why}" if why else ""),
        )


# States of a sink's machines that are no complaint.
_CALM = (None, "normal", "closed")
_MILD = ("slow",)  # never unhealthy: changes flow
# States judged by answer times are stale once an idle sink gets no answers.
_PASSING = ("slow", "critical")


def _disconnected(
    who: str, entry: Entry[SourceReport] | Entry[SinkReport], now: float, limits: Thresholds
) -> Iterator[Complaint]:
    if _is_connected(entry.report):
        return
    gone = now - entry.changed.get("connected", entry.since)
    why = entry.report.last_error
    yield Complaint(
        "unhealthy" if gone >= limits.stalled_after else "degraded",
        f"{who}: disconnected for {gone:.0f} s" + (f": {why}" if why else ""),
    )


def _is_connected(report: SourceReport | SinkReport) -> bool:
    """Also what has not said yet whether it is."""
    return report.named.get("connected", True) is not False


# What changes when changes have become durable, or have been acknowledged at the source.
_MOVES = ("confirmed", "place", "acknowledged", "published")


def _behind(
    backend: _Backend, entry: Entry[SourceReport], now: float, limits: Thresholds
) -> Iterator[Complaint]:
    rows = backend.partitions
    alone = len(rows) <= 1
    excuses: list[Entry[Any]] = [entry, *backend.sinks] if alone else []
    stalls = {name: _stalled(row, [row, *excuses], now, limits) for name, row in rows.items()}
    stuck = {name: stall for name, stall in stalls.items() if stall >= limits.stalled_after}
    if stuck and not alone:
        yield _of_partitions(backend, stuck, "are behind, and have not moved", limits)
        return
    whole = _stalled(entry, [entry, *rows.values(), *backend.sinks], now, limits)
    longest = max(whole, *stuck.values()) if stuck else whole
    lag, age = entry.report.lag_bytes or 0, entry.report.lag_seconds or 0
    if longest >= limits.stalled_after:
        yield Complaint(
            "unhealthy", f"backend {backend.name}: behind, and has not moved for {longest:.0f} s"
        )
    elif lag >= limits.lag_bytes:
        yield Complaint("degraded", f"backend {backend.name}: {lag} bytes behind the source")
    elif age >= limits.lag_seconds:
        yield Complaint("degraded", f"backend {backend.name}: {age:.0f} s behind the source")


def _stalled(
    entry: Entry[Any], movers: Sequence[Entry[Any]], now: float, limits: Thresholds
) -> float:
    """For how long it has been behind without a move of any of `movers`; 0 if it is not behind."""
    known: ReadingReport = entry.report
    over = {
        "buffered_events": known.buffered_events > 0,
        "lag_bytes": (known.lag_bytes or 0) >= limits.lag_bytes,
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
    return now - max([min(behind), *moves])


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
            yield Complaint("degraded", f"{who}table {name} {does} since {table.since} ({why})")
    for (who, state), count in counts.items():
        if count > _NAMED:
            does = "are suspended" if state == "suspended" else "wait"
            yield Complaint("degraded", f"{who}{count - _NAMED} more tables {does}")


class Readiness(NamedTuple):
    """`reasons`: what keeps changes from flowing, of one backend or of all. One backend that
    fails after it has begun is a reason, but does not make the pipeline unready."""

    ready: bool
    reasons: Sequence[str]


def readiness(snapshot: Snapshot, backends: Sequence[str], standby: str | None) -> Readiness:
    """Whether changes can flow, as /ready answers: every backend has begun, its bookmark is saved,
    and what is written at a source from now on is delivered. It does not depend on how far behind a
    backend is. Of a pipeline of these backends, or of an instance on `standby`."""
    if standby is not None:
        return Readiness(ready=False, reasons=(standby,))
    waiting = {name: why for name in backends if (why := _not_begun(snapshot, name))}
    failed = {name: why for name in backends if (why := _cannot_read(snapshot, name))}
    sinks = tuple(_sinks_away(snapshot))
    reasons = [f"backend {name}: {why}" for name, why in (failed | waiting).items()]
    flows = (len(failed) < len(backends) or not backends) and not sinks
    return Readiness(ready=flows and not waiting, reasons=(*reasons, *sinks))


def _not_begun(snapshot: Snapshot, backend: str) -> str:
    query = snapshot.latest(QueryReport, backend)
    error = query.blocked or query.last_error
    return "" if query.begun else "has not begun" + (f": {error}" if error else "")


def _cannot_read(snapshot: Snapshot, backend: str) -> str:
    query = snapshot.latest(QueryReport, backend)
    source = snapshot.latest(SourceReport, backend)
    if query.blocked:
        return f"stands still: {query.blocked}"
    if source.stopped:
        return "has stopped"
    if not _is_connected(source) and not query.paused:  # it has begun, and its reader may start
        return "is disconnected" + (f": {source.last_error}" if source.last_error else "")
    return ""


def _sinks_away(snapshot: Snapshot) -> Iterator[str]:
    for name, entry in snapshot.of(SinkReport).items():
        if not _is_connected(entry.report):
            yield f"sink {name}: is disconnected"
        elif entry.report.breaker == "open":
            yield f"sink {name}: the circuit breaker is open"
