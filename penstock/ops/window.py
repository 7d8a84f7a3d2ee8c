"""Whether the source is about to lose changes that are not durable yet. Pure.

A feed measures how far the source's history reaches back (`window_seconds`) and how long the
durable position stays in it (`window_left_seconds`); it is judged here, for every source.
"""

from collections.abc import Iterable, Mapping
from typing import Any

WINDOW, LEFT = "window_seconds", "window_left_seconds"
# Seconds: a history that is shorter has just begun, and loses nothing yet.
_BEGUN = 60.0


def shortest(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The window of the partition whose position leaves it first; None where nothing is known."""
    known = [row for row in rows if row.get(LEFT) is not None]
    if known:
        row = min(known, key=lambda row: row[LEFT])
        return {WINDOW: row.get(WINDOW), LEFT: row[LEFT]}
    windows = [row[WINDOW] for row in rows if row.get(WINDOW) is not None]
    return {WINDOW: min(windows, default=None), LEFT: None}


def at_risk(fields: Mapping[str, Any], share: float) -> str:
    """Why changes may soon be lost, and what to do; "" if they may not. The feed's own words, else
    less than `share` of the window is left."""
    if own := fields.get("at_risk"):
        return str(own)
    window, left = fields.get(WINDOW), fields.get(LEFT)
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
