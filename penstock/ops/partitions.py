"""The partitions of a backend in its status: a row for each, and their sums.

The reader process reports the sums under the kind "source", and a row for each partition under the
kind "partition". A thousand rows do not fit into one report: `PartitionReports` sends those that
changed, and each of the others every few seconds, at a bounded rate.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from penstock.ops.board import COUNTERS, Entry
from penstock.ops.reporter import Reporter

# The states of a partition. `WAITING`: for its parents to end, or for its turn.
READING, DISCONNECTED, WAITING, ENDED = "reading", "disconnected", "waiting", "ended"
# What a partition's delivery is worth. `LAGGING`: disconnected, or further from the newest change
# than the pipeline's limits. `STALE`: it has lost changes, and nobody said that it is mended.
HEALTHY, LAGGING, STALE = "healthy", "lagging", "stale"

# The state of a source that refuses some of our calls because they are too many.
THROTTLED = "throttled"

# What a reader reports of one partition: the fields of `PartitionStatus`, and what only a backend
# with one partition shows of itself (`_OF_ONE`).
Row = Mapping[str, Any]

_SUMS = ("buffered_events", "buffered_bytes")
_OF_ONE = ("current", "confirmed", "reader", "details")

# How far the source's history reaches back, and how long what is durable stays in it, as feeds
# measure it; a history of fewer seconds than `_BEGUN` has just begun, and loses nothing yet.
_WINDOW, _LEFT, _BEGUN = "window_seconds", "window_left_seconds", 60.0

# Rows in one round of reports: enough for each to be sent in this many rounds.
_LEAST, _ROUNDS = 250, 10
# Rows of the status page, unless it is asked for all.
SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """One partition. `place`: what is durable. `lag`: what the source has after that, in
    `lag_unit` ("bytes", "changes"). `window_seconds`: how far the source's history reaches back,
    and `window_left_seconds`: how long `place` stays in it. None is "not known". `details`: in the
    source's own terms."""

    partition: str
    state: str = READING
    health: str = HEALTHY
    place: str | None = None
    lag: float | None = None
    lag_unit: str | None = None
    lag_seconds: float | None = None
    window_seconds: float | None = None
    window_left_seconds: float | None = None
    buffered_events: int = 0
    buffered_bytes: int = 0
    last_error: str = ""
    age_seconds: float | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


def summed(rows: Mapping[str, Row]) -> dict[str, Any]:
    """The report of a backend whose partitions have these rows. Pure.

    `lag_seconds` is the longest, the window is that of the partition that leaves it first, `lag`
    has a sum for each unit, and `lag_bytes` is the one in bytes. What was counted, such as events,
    is not here: partitions leave, and counters only grow. A backend is disconnected when none of
    its partitions is read.
    """
    states = Counter(row.get("state", READING) for row in rows.values())
    lag: Counter[str] = Counter()
    for row in rows.values():
        if row.get("lag") is not None:
            lag[row.get("lag_unit") or "changes"] += row["lag"]
    errors = [f"{name}: {row['last_error']}" for name, row in rows.items() if row.get("last_error")]
    seconds = [row["lag_seconds"] for row in rows.values() if row.get("lag_seconds") is not None]
    found: dict[str, Any] = {
        "connected": bool(rows) and (states[READING] > 0 or states[DISCONNECTED] == 0),
        "partition_count": len(rows),
        "partition_states": dict(states),
        **{name: sum(row.get(name) or 0 for row in rows.values()) for name in _SUMS},
        "lag": dict(lag),
        "lag_bytes": lag.get("bytes"),
        "lag_seconds": max(seconds, default=None),
        **_shortest(rows.values()),
        "last_error": errors[0] if errors else "",
        "source_state": THROTTLED if any(row.get("throttled") for row in rows.values()) else "",
        "at_risk": next((row["at_risk"] for row in rows.values() if row.get("at_risk")), ""),
    }
    if len(rows) == 1:
        (row,) = rows.values()
        found |= {name: row[name] for name in _OF_ONE if name in row}
        found["last_error"] = row.get("last_error", "")
    return found


def with_source(report: Mapping[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """The report of a backend with the status of its feed (see `feeds.Feed.status`). Pure."""
    return {
        **report,
        "source_state": source.get("state") or report["source_state"],
        "source_message": source.get("message", ""),
        "at_risk": source.get("at_risk") or report["at_risk"],
    }


class PartitionReports:
    """Sends the rows of one backend's partitions to the board. Not thread-safe."""

    def __init__(self, board: Reporter, backend: str) -> None:
        self._board = board
        self._backend = backend
        # Partition -> its row as it was sent; those sent longest ago come first.
        self._sent: dict[str, Row] = {}

    def send(self, rows: Mapping[str, Row]) -> None:
        """Call it a few times a second: sends a tenth of the rows, at least 250. New rows come
        first, then those that changed; a quarter is left for those that were sent longest ago."""
        self._sent = {name: row for name, row in self._sent.items() if name in rows}
        kept = {name: _without_counters(row) for name, row in rows.items()}
        fresh = [name for name in kept if name not in self._sent]
        changed = [name for name, row in self._sent.items() if row != kept[name]]
        most = max(_LEAST, -(-len(rows) // _ROUNDS))
        order = dict.fromkeys([*fresh, *changed[: most * 3 // 4], *self._sent])
        chosen = {name: kept[name] for name in list(order)[:most]}
        self._board.report_rows("partition", self._backend, chosen)
        for name, row in chosen.items():
            self._sent.pop(name, None)
            self._sent[name] = row


def _without_counters(row: Row) -> Row:
    """The board adds up counters of processes; those of partitions are in the sums."""
    return {name: value for name, value in row.items() if name not in COUNTERS}


def shown(
    partitions: Mapping[str, Entry], now: float, most: int | None = SHOWN
) -> Sequence[PartitionStatus]:
    """The partitions that need attention most, at most `most` of them (None: all). Pure."""
    own = {item.name for item in fields(PartitionStatus)} - {"partition", "age_seconds", "health"}
    found = [
        PartitionStatus(
            partition=name,
            age_seconds=round(now - entry.at, 3),
            **{key: entry.fields[key] for key in own if entry.fields.get(key) is not None},
        )
        for name, entry in partitions.items()
    ]
    return tuple(sorted(found, key=_urgency)[:most])


def health_of(row: PartitionStatus, *, stale: bool, lag_bytes: int, lag_seconds: float) -> str:
    """HEALTHY, LAGGING or STALE; exactly at a limit counts as above it. Pure."""
    if stale:
        return STALE
    much = row.lag_unit == "bytes" and (row.lag or 0) >= lag_bytes
    late = (row.lag_seconds or 0) >= lag_seconds
    return LAGGING if much or late or row.state == DISCONNECTED else HEALTHY


def _urgency(row: PartitionStatus) -> tuple[Any, ...]:
    return (
        row.state != DISCONNECTED,
        not row.last_error,
        -(row.lag_seconds or 0),
        -(row.lag or 0),
        -row.buffered_bytes,
        row.partition,
    )


def _shortest(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The window of the partition whose position leaves it first; None where nothing is known."""
    known = [row for row in rows if row.get(_LEFT) is not None]
    if known:
        row = min(known, key=lambda row: row[_LEFT])
        return {_WINDOW: row.get(_WINDOW), _LEFT: row[_LEFT]}
    windows = [row[_WINDOW] for row in rows if row.get(_WINDOW) is not None]
    return {_WINDOW: min(windows, default=None), _LEFT: None}


def at_risk(fields: Mapping[str, Any], share: float) -> str:
    """Why changes may soon be lost, and what to do; "" if they may not. The feed's own words, else
    less than `share` of the window is left."""
    if own := fields.get("at_risk"):
        return str(own)
    window, left = fields.get(_WINDOW), fields.get(_LEFT)
    if window is None or left is None or window < _BEGUN or left >= share * window:
        return ""
    return (
        f"at_risk: the changes after the stored position leave the source's history in"
        f" {_span(left)} (it reaches back {_span(window)}): bring the sink or the pipeline up to"
        " speed, or let the source keep more"
    )


def _span(seconds: float) -> str:
    """`90 s`, `12 min`, `5.5 h`."""
    if seconds < 120:
        return f"{max(0.0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
