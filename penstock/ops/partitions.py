"""The partitions of a backend in its status: a row for each that needs attention."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.ops.board import Entry
from penstock.ops.reports import PartitionReport, ReadingReport, told

# The states of a partition. `WAITING`: for its parents to end, or for its turn.
READING, DISCONNECTED, WAITING, ENDED = "reading", "disconnected", "waiting", "ended"

_BEGUN = 60.0  # a history of fewer seconds has just begun, and loses nothing yet

SHOWN = 20  # rows of the status page, unless it is asked for all


@dataclass(frozen=True, kw_only=True)
class PartitionStatus(PartitionReport):
    """One partition in the status. None is "not known"."""

    partition: str = told(..., "Its name.")
    health: str = told(
        "healthy",
        "healthy; lagging: disconnected, or at or above `ops.lag_limit` or `ops.lag_age`; stale: it"
        " lost changes.",
    )  # fmt: skip
    age_seconds: float | None = told(None, "The time since the last report.")


def most_urgent(
    partitions: Mapping[str, Entry[PartitionReport]], most: int | None = SHOWN
) -> Sequence[tuple[str, Entry[PartitionReport]]]:
    """The partitions that need attention most, at most `most` of them (None: all). Pure."""
    return sorted(partitions.items(), key=_urgency)[:most]


def _urgency(partition: tuple[str, Entry[PartitionReport]]) -> tuple[Any, ...]:
    name, row = partition[0], partition[1].report
    return (
        row.state != DISCONNECTED,
        not row.last_error,
        -(row.lag_seconds or 0),
        -(row.lag or 0),
        -row.buffered_bytes,
        name,
    )


def at_risk(report: ReadingReport, share: float) -> str:
    """Why changes may soon be lost, and what to do; "" if they may not. The feed's own words, else
    less than `share` of the window is left."""
    window, left = report.window_seconds, report.window_left_seconds
    if report.at_risk:
        return report.at_risk
    keeps, room = report.window_bytes, report.window_left_bytes
    if keeps is not None and room is not None and room < share * keeps:
        return (
            f"at_risk: the source gives our place up after {room >> 20} MiB more of its log (it"
            f" keeps {keeps >> 20} MiB): bring the sink or the pipeline up to speed, or let the"
            " source keep more"
        )
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
