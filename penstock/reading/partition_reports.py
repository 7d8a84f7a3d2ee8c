"""What a reader reports of the partitions that it reads: a row for each, and their sums.

A thousand rows do not fit into one report: `PartitionReports` sends those that changed, and each of
the others every few seconds, at a bounded rate.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from penstock.ops.partitions import DISCONNECTED, READING
from penstock.ops.reporter import Reporter
from penstock.ops.reports import PartitionReport, SourceReport, described, together

# The state of a source that refuses some of our calls because they are too many.
THROTTLED = "throttled"

# What only a backend with one partition shows of itself.
_OF_ONE = ("current", "confirmed", "reader", "details")

# Rows in one round of reports: enough for each to be sent in this many rounds.
_LEAST, _ROUNDS = 250, 10


def summed(
    rows: Mapping[Any, PartitionReport], source: Mapping[str, Any], **more: Any
) -> SourceReport:
    """The report of a backend whose partitions have these rows and whose feed has this status (see
    `feeds.Feed.status`), with `more` fields. Pure.

    The window is that of the partition that leaves it first, `lag` has a sum for each unit. What
    was counted, such as events, is not here: partitions leave, and counters only grow. A backend is
    disconnected when none of its partitions is read.
    """
    states = Counter(row.state for row in rows.values())
    lag: Counter[str] = Counter()
    for row in rows.values():
        if row.lag is not None:
            lag[row.lag_unit or "changes"] += row.lag  # type: ignore[assignment]
    errors = [f"{name}: {row.last_error}" for name, row in rows.items() if row.last_error]
    throttled = any(row.throttled for row in rows.values())
    found: dict[str, Any] = {
        "connected": bool(rows) and (states[READING] > 0 or states[DISCONNECTED] == 0),
        "partition_count": len(rows),
        "partition_states": dict(states),
        **{
            name: together(about.over, (getattr(row, name) for row in rows.values()))
            for name, about in described(PartitionReport).items()
            if about.over
        },
        "lag": dict(lag),
        "lag_bytes": lag.get("bytes"),
        **_shortest(rows.values(), "seconds"),
        **_shortest(rows.values(), "bytes"),
        "last_error": errors[0] if errors else "",
        "source_state": source.get("state") or (THROTTLED if throttled else ""),
        "source_message": source.get("message", ""),
        "at_risk": source.get("at_risk")
        or next(filter(None, (row.at_risk for row in rows.values())), ""),
        **dict.fromkeys(_OF_ONE),
        "details": {},
    }
    if len(rows) == 1:
        (row,) = rows.values()
        found |= {name: getattr(row, name) for name in _OF_ONE} | {"last_error": row.last_error}
    return SourceReport(**found | more)


class PartitionReports:
    """Sends the rows of one backend's partitions to the board. Not thread-safe."""

    def __init__(self, board: Reporter, backend: str) -> None:
        self._board, self._backend = board, backend
        # Partition -> its row as it was sent; those sent longest ago come first.
        self._sent: dict[str, PartitionReport] = {}

    def send(self, rows: Mapping[str, PartitionReport]) -> None:
        """Call it a few times a second: sends a tenth of the rows, at least 250. New rows come
        first, then those that changed; a quarter is left for those that were sent longest ago."""
        self._sent = {name: row for name, row in self._sent.items() if name in rows}
        fresh = [name for name in rows if name not in self._sent]
        changed = [name for name, row in self._sent.items() if row != rows[name]]
        most = max(_LEAST, -(-len(rows) // _ROUNDS))
        order = dict.fromkeys([*fresh, *changed[: most * 3 // 4], *self._sent])
        chosen = {name: rows[name] for name in list(order)[:most]}
        self._board.report_rows(self._backend, chosen)
        for name, row in chosen.items():
            self._sent.pop(name, None)
            self._sent[name] = row


def _shortest(rows: Collection[PartitionReport], unit: str) -> dict[str, Any]:
    """The window of the partition whose position leaves it first; None where nothing is known."""
    whole, rest = f"window_{unit}", f"window_left_{unit}"
    windows = [(getattr(row, rest), getattr(row, whole)) for row in rows]
    known = [window for _, window in windows if window is not None]
    measured = [(left, window) for left, window in windows if left is not None]
    left, window = min(measured, key=lambda each: each[0], default=(None, min(known, default=None)))
    return {whole: window, rest: left}
