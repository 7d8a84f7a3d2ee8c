"""What becomes of lost history: whether the changes after a bookmark are still there, the gap with
its cause, and where following goes on after it.
"""

from collections.abc import Mapping, Sequence

from penstock.feeds import Gap, HistoryLost
from penstock.feeds.mongodb.cluster import identity, is_another, is_proven, lacks, reach
from penstock.feeds.mongodb.connect import Client, address
from penstock.feeds.mongodb.failures import cause_of, is_unsplit, translating
from penstock.feeds.mongodb.lag import time_of_mark
from penstock.feeds.mongodb.settings import MongoSettings
from penstock.feeds.shared import lost
from penstock.model.errors import PenstockError, PositionLost, Unavailable
from penstock.model.position import Bookmark, Mark, Place
from penstock.wire.changestream.events import cursor_of, cursor_time
from penstock.wire.eras import era_of, next_era

_OTHER = "other_cluster"
_SEE = "see docs/how-to/recover-from-a-gap.md"
# Cause of a gap -> what the operator can do.
HINTS: Mapping[str, str] = {
    "oplog_rolled_over": "make the oplog of every member larger (replSetResizeOplog), and " + _SEE,
    "token_unknown": _SEE,
    "token_invalid": "was the bookmark changed? Else " + _SEE,
    _OTHER: "correct `connection`, or, if a backup was restored, " + _SEE,
}
# What the server says of a token, where a time may be accepted.
_OF_TOKENS = ("token_unknown", "token_invalid")


def era_of_bookmark(place: Place | None, mark: Mark | None) -> str:
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
    is_other = any(gap.cause == _OTHER for gap in gaps)
    return next_era(era) if is_other or time < time_in_era(bookmark) else era


def _time_after(gaps: Sequence[Gap], bookmark: Bookmark, oldest: int) -> int:
    """From which cluster time to go on after these gaps; 0: from now on. `oldest`: of the oplog; 0
    where it may not be read. The last change's time is tried first: the server may refuse the token
    alone, and the oplogs behind a mongos cannot be asked. If it is refused as well, the oldest
    entry; and where a later event is refused (a lookup that finds two documents), now."""
    causes = [gap.cause for gap in gaps]
    if sum(cause in _OF_TOKENS for cause in causes) > 1:
        return 0
    known = 0 if _OTHER in causes else time_in_era(bookmark)
    return max(known, oldest) if known and len(causes) <= 1 else oldest


class Losses:
    """Losses of one backend. `unsplit`: the bookmark that is followed by its time, and not by its
    token, since that is of a part of an event that is whole by now."""

    def __init__(self, settings: MongoSettings) -> None:
        self._settings = settings
        self.unsplit: Bookmark | None = None

    def verified(self, client: Client, bookmark: Bookmark) -> str:
        """The identity of `client`'s cluster. Raises HistoryLost if it is not the one of the
        bookmark, or its history was replaced."""
        known, time = cluster_of(bookmark.mark), time_in_era(bookmark)
        with translating(f"asking {address(self._settings)}"):
            found = identity(client)
            is_replaced = bool(time) and not found.startswith("mongos/") and lacks(client, time)
        if is_another(known, found):
            raise self._other(bookmark, f"this is {found}, and the position is of {known}")
        if is_replaced:
            why = f"its oplog has no entry of {cursor_of(time)} any more: its files were restored"
            raise self._other(bookmark, why)
        return found

    def _other(self, bookmark: Bookmark, detail: str) -> HistoryLost:
        where = f"{self._settings.database} at {address(self._settings)}"
        return self._lost(_OTHER, bookmark, f"{where}: {detail}")

    def _lost(
        self, cause: str, bookmark: Bookmark, detail: str, *, gaps: Sequence[Gap] = ()
    ) -> HistoryLost:
        policy, hint = self._settings.on_gap, HINTS[cause]
        found = lost(cause, bookmark.place, detail, policy=policy, hint=hint)
        if policy == "fail":
            return found
        where = self.after((*gaps, found.gap), bookmark)[1]
        detail = f"{detail}; it goes on {where}"
        return lost(cause, bookmark.place, detail, policy=policy, hint=hint)

    def refused(
        self, error: PositionLost, bookmark: Bookmark, found: str, gaps: Sequence[Gap]
    ) -> PenstockError:
        """The server refuses what follows the bookmark, despite `gaps`. `found`: its identity.
        Unavailable where that is no loss: a member whose oplog is shorter may have answered."""
        is_token = "token" in (bookmark.mark or {}) and time_in_era(bookmark) > 0
        if is_token and is_unsplit(error):
            self.unsplit = bookmark
            return Unavailable(error.message, error.code, hint="it is followed by its time")
        cause = cause_of(error)
        if cause == "oplog_rolled_over" and not gaps:
            asked = time_of_mark(bookmark.mark) or time_in_era(bookmark)
            if 0 < reach(self._settings)[0] <= asked:
                hint = "the oplog seems to have the changes: does every member keep them?"
                return Unavailable(error.message, error.code, hint=hint)
        loss = self._lost(cause, bookmark, error.message, gaps=gaps)
        if cause == "token_unknown" and not is_proven(cluster_of(bookmark.mark), found):
            return HistoryLost(loss.gap, hint=f"is it another cluster? {loss.hint}")
        return loss

    def after(self, gaps: Sequence[Gap], bookmark: Bookmark) -> tuple[int, str]:
        """The cluster time to go on at after these gaps, 0 for now, and the same in words."""
        oldest, why = reach(self._settings)
        time = _time_after(gaps, bookmark, oldest)
        if not time:
            return 0, f"now: {why or 'the server refuses what comes before'}"
        named = "the oldest entry of the oplog" if time == oldest else "the last change"
        return time, f"at {cursor_of(time)}, {named}"
