"""What becomes of lost history: the gap with its cause, and where following goes on after it."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.feeds import Gap, HistoryLost
from penstock.feeds.mongodb.cluster import identity, is_another, is_proven, lacks
from penstock.feeds.mongodb.connect import Client, address
from penstock.feeds.mongodb.failures import cause_of, translating
from penstock.feeds.mongodb.history import (
    HINTS,
    OTHER,
    cluster_of,
    time_after,
    time_in_era,
)
from penstock.feeds.mongodb.oplog import reach
from penstock.feeds.mongodb.settings import MongoSettings
from penstock.feeds.shared import lost
from penstock.model.errors import PositionLost
from penstock.model.position import Bookmark
from penstock.wire.changestream.events import cursor_of


@dataclass(frozen=True, slots=True)
class Losses:
    """Losses of one backend."""

    settings: MongoSettings

    def verified(self, client: Client, bookmark: Bookmark) -> str:
        """The identity of `client`'s cluster. Raises HistoryLost if it is not the one of the
        bookmark, or its history was replaced."""
        known, time = cluster_of(bookmark.mark), time_in_era(bookmark)
        with translating(f"asking {address(self.settings)}"):
            found = identity(client)
            is_replaced = bool(time) and not found.startswith("mongos/") and lacks(client, time)
        if is_another(known, found):
            raise self._other(bookmark, f"this is {found}, and the position is of {known}")
        if is_replaced:
            why = f"its oplog has no entry of {cursor_of(time)} any more: its files were restored"
            raise self._other(bookmark, why)
        return found

    def _other(self, bookmark: Bookmark, detail: str) -> HistoryLost:
        where = f"{self.settings.database} at {address(self.settings)}"
        return self._lost(OTHER, bookmark, f"{where}: {detail}")

    def _lost(
        self, cause: str, bookmark: Bookmark, detail: str, *, gaps: Sequence[Gap] = ()
    ) -> HistoryLost:
        """The gap after a bookmark, found despite `gaps`."""
        policy, hint = self.settings.on_gap, HINTS[cause]
        found = lost(cause, bookmark.place, detail, policy=policy, hint=hint)
        if policy == "fail":
            return found
        where = self.after((*gaps, found.gap), bookmark)[1]
        detail = f"{detail}; it goes on {where}"
        return lost(cause, bookmark.place, detail, policy=policy, hint=hint)

    def refused(
        self, error: PositionLost, bookmark: Bookmark, found: str, gaps: Sequence[Gap]
    ) -> HistoryLost:
        """The server does not give what comes after the bookmark. `found`: its identity."""
        cause = cause_of(error)
        loss = self._lost(cause, bookmark, error.message, gaps=gaps)
        if cause == "token_unknown" and not is_proven(cluster_of(bookmark.mark), found):
            return HistoryLost(loss.gap, hint=f"is it another cluster? {loss.hint}")
        return loss

    def after(self, gaps: Sequence[Gap], bookmark: Bookmark) -> tuple[int, str]:
        """The cluster time at which following goes on after these gaps, 0 for now, and the same in
        words."""
        oldest, why = reach(self.settings)
        time = time_after(gaps, bookmark, oldest)
        if not time:
            return 0, f"now: {why or 'the server refuses what comes before'}"
        named = "the oldest entry of the oplog" if time == oldest else "the last change"
        return time, f"at {cursor_of(time)}, {named}"
