"""Whether the changes after a bookmark are still there, and what to say when they are not."""

from collections.abc import Mapping

from penstock.feeds import Gap, GapPolicy
from penstock.position import Bookmark, Mark, Place
from penstock.wire.changestream.events import cursor_of, cursor_time
from penstock.wire.eras import era_of, next_era

# Cause of a gap -> what the operator can do.
HINTS: Mapping[str, str] = {
    "oplog_rolled_over": "make the oplog larger (replSetResizeOplog), and see"
    " docs/how-to/recover-from-a-gap.md",
    "token_unknown": "is it another cluster, or one restored from a backup? See"
    " docs/how-to/recover-from-a-gap.md",
    "token_invalid": "is it another cluster, or was the bookmark changed? See"
    " docs/how-to/recover-from-a-gap.md",
    "server_behind": "was the cluster restored from a backup? See"
    " docs/how-to/recover-from-a-gap.md",
}


def era_of_bookmark(place: Place | None, mark: Mark | None) -> str:
    """The era that a following goes on in."""
    said = str((mark or {}).get("era", ""))
    return max(said, "" if place is None else era_of(place.cursor))


def place_of_mark(bookmark: Bookmark) -> Place | None:
    """The place that a bookmark's mark is for. It is before the bookmark's own place where that was
    saved while the stream was not connected, and no newer token was known."""
    said = (bookmark.mark or {}).get("place", bookmark.place)
    return Place.parse(said) if isinstance(said, str) else said


def era_after(era: str, place: Place | None, time: int) -> str:
    """The era after a gap: the same one if new cluster times sort after `place`."""
    if place is None or cursor_time(place.cursor.removeprefix(era_of(place.cursor))) < time:
        return era
    return next_era(era)


def is_behind(place: Place | None, time: int) -> bool:
    """Whether the server's newest operation is before one that we have read."""
    if place is None or not time:
        return False
    return cursor_time(place.cursor.removeprefix(era_of(place.cursor))) > time


def gap_of(cause: str, place: Place | None, policy: GapPolicy, detail: str) -> Gap:
    """`detail` says it for people."""
    after = "" if place is None else str(place)
    return Gap(cause=cause, after=after, detail=detail, policy=policy)


def shown(time: int) -> str:
    """A cluster time, as the end of a gap."""
    return cursor_of(time)
