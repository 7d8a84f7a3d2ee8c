"""What is wrong with a pipeline, and how bad it is. Pure.

Health follows progress and not liveness: a pipeline that is behind and does not move is not
healthy, however connected it is; an idle one that has nothing to do is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from penstock.ops.board import Entry, Snapshot

__all__ = ["Complaint", "Health", "Thresholds", "complaints", "worst"]

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


class Complaint(NamedTuple):
    """One thing that is wrong; never ok."""

    health: Health
    reason: str


def worst(found: Sequence[Complaint]) -> Health:
    """The health of whoever has these complaints; ok without any."""
    return max((each.health for each in found), key=_ORDER.index, default="ok")


def complaints(
    snapshot: Snapshot, backends: Sequence[str], started: float, now: float, limits: Thresholds
) -> list[Complaint]:
    """Of a pipeline that runs, which `started` then; times are seconds of the board's clock."""
    sinks = {key[1]: entry for key, entry in snapshot.items() if key[0] == "sink"}
    found = [
        complaint
        for backend in backends
        for complaint in _backend_complaints(
            backend,
            snapshot.get(("source", backend)),
            snapshot.get(("query", backend)),
            # What a shared sink takes says nothing of one backend.
            tuple(sinks.values()) if len(backends) == 1 else (),
            started=started,
            now=now,
            limits=limits,
        )
    ]
    for sink, entry in sinks.items():
        found += _sink_complaints(sink, entry, now, limits)
    found += _table_complaints(snapshot)
    return found


def _backend_complaints(
    name: str,
    entry: Entry | None,
    query: Entry | None,
    sinks: Sequence[Entry],
    *,
    started: float,
    now: float,
    limits: Thresholds,
) -> Iterator[Complaint]:
    service = query.fields if query is not None else {}
    if blocked := service.get("blocked"):
        yield Complaint("unhealthy", f"backend {name}: stands still: {blocked}")
        return
    if query is not None and not service["begun"]:
        waited = now - query.changed["begun"]
        why = service["last_error"]
        yield Complaint(
            "unhealthy" if why and waited >= limits.stalled_after else "degraded",
            f"backend {name}: has not begun for {waited:.0f} s" + (f": {why}" if why else ""),
        )
        return
    if entry is None:
        waited = now - started
        yield Complaint(
            "unhealthy" if waited >= limits.starting else "degraded",
            f"backend {name}: has not reported for {waited:.0f} s since the start",
        )
        return
    if entry.fields.get("stopped"):
        yield Complaint("unhealthy", f"backend {name}: has stopped")
        return
    yield from _losses(name, entry)
    silent = now - entry.at
    if silent >= limits.silent_after:
        yield Complaint(
            "unhealthy" if silent >= limits.stalled_after else "degraded",
            f"backend {name}: has not reported for {silent:.0f} s",
        )
    yield from _disconnected(f"backend {name}", entry, now, limits)
    yield from _behind(name, entry, sinks, now, limits)


def _losses(name: str, entry: Entry) -> Iterator[Complaint]:
    """What was lost and not mended, and what is about to be."""
    for partition, row in (entry.fields.get("gaps") or {}).items():
        if row["stale"]:
            causes = ", ".join(sorted(row["counts"]))
            yield Complaint(
                "degraded", f"backend {name}: partition {partition} is stale: it has lost changes"
                f" ({causes})",
            )  # fmt: skip
    if entry.fields.get("wal_status") == "unreserved":
        yield Complaint(
            "degraded", f"backend {name}: so far behind that the server may give its slot up"
        )


def _sink_complaints(
    name: str, entry: Entry, now: float, limits: Thresholds
) -> Iterator[Complaint]:
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
        yield Complaint(
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


def _disconnected(who: str, entry: Entry, now: float, limits: Thresholds) -> Iterator[Complaint]:
    if entry.fields.get("connected", True):
        return
    gone = now - entry.changed.get("connected", entry.since)
    why = entry.fields.get("last_error") or entry.fields.get("error")
    yield Complaint(
        "unhealthy" if gone >= limits.stalled_after else "degraded",
        f"{who}: disconnected for {gone:.0f} s" + (f": {why}" if why else ""),
    )


# What changes when changes have become durable and the source has been told.
_MOVES = ("confirmed_lsn", "position")
_SINK_MOVES = ("acknowledged", "published", "position")


def _behind(
    name: str, entry: Entry, sinks: Sequence[Entry], now: float, limits: Thresholds
) -> Iterator[Complaint]:
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
        yield Complaint(
            "unhealthy", f"backend {name}: behind, and has not moved for {stalled:.0f} s"
        )
    elif over["lag_bytes"]:
        yield Complaint("degraded", f"backend {name}: {lag} bytes behind the source")


def _table_complaints(snapshot: Snapshot) -> Iterator[Complaint]:
    for (kind, _), entry in sorted(snapshot.items()):
        table = entry.fields
        if kind == "table" and table["state"] == "suspended":
            yield Complaint(
                "degraded",
                f"backend {table['backend']}: table {table['table']} is suspended since"
                f" {table.get('since', '')} ({table.get('reason', '')})",
            )
