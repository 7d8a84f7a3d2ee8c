"""Finds partitions that went silent: the source's clock moves on, and its stream does not.

A stream that is open gives events, or tokens that say that there are none. One that gives neither,
for `max_gap` of the source's own time, has lost something or its reader: a gap. How fast our own
clock runs, and whether we read at all, does not count.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock.feeds import Gap
from penstock.model.errors import PenstockError
from penstock.model.position import Bookmark, PartitionId, Place
from penstock.reading.gaps import GapLog

log = logging.getLogger("penstock")

# Of a partition's row, what is for `Silences` only.
CLOCKED = ("clock", "token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Of one partition: its newest event or idle token, since when (seconds of the source's clock)
    nothing came after it, and whether that was found to be a gap."""

    token: str
    since: float
    is_gap: bool = False


def observe(
    before: Silence | None, *, clock: float, token: str, max_gap: float
) -> tuple[Silence, bool]:
    """The state after a look at an open stream, and whether a gap is found now: once for each
    silence. `clock` is the source's, and may go back. Pure."""
    if before is None:
        return Silence(token=token, since=clock), False
    if token != before.token:
        return Silence(token=token, since=max(clock, before.since)), False
    found = not before.is_gap and clock - before.since >= max_gap
    return replace(before, is_gap=before.is_gap or found), found


class Silences:
    """A backend's partitions whose status has `clock` and `token`. `max_gap`: seconds or none."""

    def __init__(self, gaps: GapLog, max_gap: float | None) -> None:
        self._gaps, self._max_gap = gaps, max_gap
        self._seen: dict[str, Silence] = {}
        self._open: dict[str, Gap] = {}  # partitions that were silent, until their next event

    def checked(self, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Records the gaps of these rows; returns them without what is for this only."""
        for name, row in rows.items():
            if self._max_gap is None or row.get("clock") is None or not row.get("connected"):
                self._seen.pop(name, None)  # a stream that is opened again starts anew
                continue
            self._resumed(name, str(row.get("place") or ""))
            clock, token = float(row["clock"]), str(row.get("token"))
            before = self._seen.get(name)
            now, found = observe(before, clock=clock, token=token, max_gap=self._max_gap)
            if not found or self._record(name, row, clock - now.since):
                self._seen[name] = now
        return {
            name: {key: value for key, value in row.items() if key not in CLOCKED}
            for name, row in rows.items()
        }

    def _record(self, name: str, row: Mapping[str, Any], seconds: float) -> bool:
        place = str(row.get("place") or "")
        gap = Gap(
            cause="silent",
            after=place,
            detail=f"the source's clock moved {seconds:.0f} s on, and its open stream did not",
            policy="continue",
        )
        if is_noted := self._noted(name, gap):
            self._open[name] = gap
        return is_noted

    def _resumed(self, name: str, place: str) -> None:
        """The first event after a gap is its end, and is reported once."""
        gap = self._open.get(name)
        if gap is not None and place != gap.after and self._noted(name, gap, to=place):
            del self._open[name]
            log.info("%s goes on after a silence: %s is its first change", name, place)

    def _noted(self, name: str, gap: Gap, *, to: str = "") -> bool:
        bookmark = Bookmark(Place.parse(gap.after) if gap.after else None)
        try:
            self._gaps.lost(PartitionId(name), gap, bookmark, to=to)
        except PenstockError as error:  # it is tried again in a moment
            log.warning("a gap of %s could not be recorded yet: %s", name, error)
            return False
        return True
