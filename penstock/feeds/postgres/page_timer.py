"""When the page in the making is cut. Pure: `now` is monotonic seconds."""

import math

_REST = 0.005  # seconds that a page waits for the rest of its transaction


class PageTimer:
    """A page is cut when its transactions are over, but at least `spacing` seconds after the one
    before it, so that a trickle of single rows does not make a page of each; and when the rest of
    a transaction keeps us waiting. (A wal sender sends row by row: a page of what is there would
    be a row, and a page of the others later.)"""

    def __init__(self, spacing: float, now: float) -> None:
        self._spacing = spacing
        self._cut_at = self._empty_at = now

    def cut(self, now: float) -> None:
        """A page was cut, for whatever reason."""
        self._cut_at = self._empty_at = now

    def due_in(self, now: float, *, holds: bool, between: bool) -> float:
        """Seconds until it is to be cut, 0 or less for now; endless while there is no change in it
        (not `holds`). `between`: the last transaction that began is over."""
        if not holds:
            self._empty_at = now
            return math.inf
        spaced = self._cut_at + self._spacing - now
        return spaced if between else max(spaced, self._empty_at + _REST - now)
