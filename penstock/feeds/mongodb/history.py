"""Whether the changes after a bookmark are still there, and where to go on when they are not.

Pure: what the servers say is in `cluster` and `oplog`.
"""

from collections.abc import Mapping, Sequence

from penstock.feeds import Gap
from penstock.model.position import Bookmark, Mark, Place
from penstock.wire.changestream.events import cursor_time
from penstock.wire.eras import era_of, next_era

OTHER = "other_cluster"
_SEE = "see docs/how-to/recover-from-a-gap.md"
# Cause of a gap -> what the operator can do.
HINTS: Mapping[str, str] = {
    "oplog_rolled_over": "make the oplog of every member larger (replSetResizeOplog), and " + _SEE,
    "token_unknown": _SEE,
    "token_invalid": "was the bookmark changed? Else " + _SEE,
    OTHER: "correct `connection`, or, if a backup was restored, " + _SEE,
}
# What the server says of a token, where a time may be accepted.
_OF_TOKENS = ("token_unknown", "token_invalid")


def era_of_bookmark(place: Place | None, mark: Mark | None) -> str:
    """The era that a following goes on in."""
    marked = str((mark or {}).get("era", ""))
    return max(marked, "" if place is None else era_of(place.cursor))


def cluster_of(mark: Mark | None) -> str:
    """The cluster that a mark is of; empty in marks of before it was kept."""
    return str((mark or {}).get("cluster", ""))


def place_of_mark(bookmark: Bookmark) -> Place | None:
    """The place that a bookmark's mark is for. It is before the bookmark's own place where that was
    saved while the stream was not connected, and no newer token was known."""
    stored = (bookmark.mark or {}).get("place", bookmark.place)
    return Place.parse(stored) if isinstance(stored, str) else stored


def time_in_era(bookmark: Bookmark) -> int:
    """The cluster time of a bookmark's place; 0 where it has none, or one of an earlier history."""
    place = bookmark.place
    if place is None or era_of(place.cursor) != era_of_bookmark(place, bookmark.mark):
        return 0
    return cursor_time(place.cursor.removeprefix(era_of(place.cursor)))


def era_after(gaps: Sequence[Gap], bookmark: Bookmark, time: int) -> str:
    """The era after these gaps: the same one if it is the same history, and the cluster times from
    `time` on do not sort before the bookmark's."""
    era = era_of_bookmark(bookmark.place, bookmark.mark)
    is_other = any(gap.cause == OTHER for gap in gaps)
    return next_era(era) if is_other or time < time_in_era(bookmark) else era


def time_after(gaps: Sequence[Gap], bookmark: Bookmark, oldest: int) -> int:
    """From which cluster time to go on after these gaps; 0: from now on. `oldest`: of the oplog; 0
    where it may not be read.

    The time of the last change is within the same history: it is tried first, because the server
    may refuse the token alone, and the oplogs behind a mongos cannot be asked. If it is refused as
    well, the oldest entry there is; and where the server refuses an event that comes later (a
    lookup that finds two documents), now.
    """
    causes = [gap.cause for gap in gaps]
    refusals = sum(cause in _OF_TOKENS for cause in causes)
    if refusals > 1:
        return 0
    known = 0 if OTHER in causes else time_in_era(bookmark)
    if known and len(causes) <= 1:
        return max(known, oldest)
    return oldest
