"""One key range, being read: pages, each by the continuation before; and lost changes, as gaps."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.feeds import HistoryLost
from penstock.feeds.cosmos.client import ContainerIdentity, CosmosContainer, FeedAnswer
from penstock.feeds.cosmos.failures import ContainerMissing, Refused, failure
from penstock.feeds.cosmos.ranges import FeedMark, KeyRange, PageBoundaries
from penstock.feeds.cosmos.settings import CosmosSettings
from penstock.feeds.shared import lost
from penstock.model.errors import PenstockError, Unavailable
from penstock.model.page import Page
from penstock.model.position import Bookmark, Place
from penstock.process.backoff import delays
from penstock.wire.cosmos.decoder import Document, DocumentContext, in_order, lsn_of

# For people; documented in docs/reference/operations.md.
CAUSES: Mapping[str, str] = {
    "container_gone": "the container {container} of {partition} is not there any more",
    "container_replaced": "{container} was deleted and made again: its changes begin anew",
    "retention": "changes of {partition} after {after} are older than the service keeps them",
}
_HINT = "on_gap: continue goes on with what there is; load the container anew to repair the rest"
# Its LSNs begin again, so that nothing can go on under the same names, whatever the policy is.
_REPLACED = "give the backend another `name`: places of another container cannot be compared"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRange:
    """One range; `passed` are the causes of gaps that it is followed despite."""

    settings: CosmosSettings
    client: CosmosContainer
    key_range: KeyRange
    passed: frozenset[str]

    def lost(self, cause: str, after: Place | None, said: str = "") -> HistoryLost:
        """The error for a gap after a place; `said` is what the service said."""
        settings = self.settings
        detail = CAUSES[cause].format(
            container=settings.path, partition=self.key_range.name, after=after or "its beginning"
        )
        detail += f" ({said})" if said else ""
        if cause == "container_replaced":
            return lost(cause, after, detail, policy="fail", hint=_REPLACED)
        return lost(cause, after, detail, policy=settings.on_gap, hint=_HINT)

    def error_of(
        self, refused: Refused, after: Place | None, identity: ContainerIdentity
    ) -> PenstockError:
        """What a refusal means for the changes of this container after a place."""
        cause, settings = "", self.settings
        subject = f"reading {self.key_range.name} of {settings.path}"
        # 400/1024: COLLECTION_RID_MISMATCH.
        if refused.status == 404 or (refused.status, refused.sub_status) == (400, 1024):
            cause = self._cause_of_missing(identity.rid)
            if not cause:
                code = "cosmos.container-missing" if refused.status == 404 else "cosmos"
                text = f"{subject}: {refused.message}"
                return Unavailable(text, code, hint="penstock retries by itself")
        elif refused.status == 400 and settings.every and not refused.is_too_large:
            # "If you attempt to process a change feed after more than the retention window an error
            # (Status Code 400) will be returned": .NET's ChangeFeedMode. Other tokens are refused
            # by it, too, where the mode or the account's backup is off.
            now = self._refusal_of_now()
            cause, refused = ("retention", refused) if now is None else ("", now)
        if cause == "container_gone" and cause in self.passed:
            return Unavailable(
                f"the container {settings.path} does not exist yet", "cosmos.container-missing"
            )
        if cause and cause not in self.passed:
            return self.lost(cause, after, refused.message)
        return failure(refused.status, refused.sub_status, refused.message, subject)

    def _refusal_of_now(self) -> Refused | None:
        try:
            self.client.page(self.key_range, None, 1)
        except Refused as refused:
            return refused
        return None

    def _cause_of_missing(self, rid: str) -> str:
        """What the container itself says; "" where it is there, and the same."""
        try:
            found = self.client.identity(again=True).rid
        except ContainerMissing:
            return "container_gone"
        return "" if found == rid else "container_replaced"


# Seconds for which a range may be gone while no children of it are listed.
GONE = 120.0
_LEAST_WAIT = 0.1  # seconds after a 429, whatever the service says: it may say 0
_STEADY = 16  # pages of a halved size, before it is doubled


class CosmosFollowing:
    """The implementation of `feeds.Following`."""

    def __init__(
        self, served: ServedRange, identity: ContainerIdentity, mark: FeedMark, place: Place | None
    ) -> None:
        self._served, self._identity = served, identity
        self._range = served.key_range
        self._walk = RangeWalk(mark, place)
        # Bookmarks of what was read, also for other threads.
        self._boundaries = PageBoundaries(place, mark)
        self._size = _PageSize(served.settings.page_items)
        self._pace = _Pace()
        # The newest LSN of the physical partition (0: not known), and whether all of it was read.
        self._newest, self._at_tip = 0, False
        self._acknowledged: Place | None = None
        # Whether the range has ended; whether this was closed.
        self._drained = self._closed = False
        self.begins = mark.etag or str(mark.to_json()["from"])

    def read(self, timeout: float) -> Sequence[Page]:
        """See `feeds.Following`. One page; a refusal that passes is waited for."""
        if self._closed:
            raise Unavailable(f"{self._range.name} was closed", "cosmos")
        deadline = time.monotonic() + timeout
        while not self._drained:
            now, due = time.monotonic(), self._pace.not_before
            time.sleep(max(0.0, min(due, deadline) - now))
            if due > deadline:
                break
            try:
                page = self._call()
            except ContainerMissing as error:  # the list of ranges says so first
                raise self._error(Refused(404, 0, error.message)) from error
            if page is not None:
                return [page]
            if time.monotonic() >= deadline:
                break
        return []

    @property
    def next_in(self) -> float | None:
        return None if self._pace.is_idle else max(0.0, self._pace.not_before - time.monotonic())

    def _call(self) -> Page | None:
        self._pace.is_idle = False
        try:
            answer = self._served.client.page(self._range, self._walk.mark, self._size.most)
        except Refused as refused:
            self._refused(refused)
            return None
        if answer.ranges != (self._range,):
            self._ended(self._range.cuts(answer.ranges))
            return None
        self._pace.answered()
        self._size.answered()
        return self._answered(answer)

    def _answered(self, answer: FeedAnswer) -> Page | None:
        self._newest = max(self._newest, answer.newest or 0)
        placed = in_order(answer.documents, self._identity.paths, every=self._served.settings.every)
        walk = self._walk
        # After a merge LSNs could begin again: places would go back. Halves have their own places.
        if placed and walk.last and not walk.skip and placed[0][0] <= walk.last:
            self._ended([self._range.middle])
            return None
        before, after = walk.mark, walk.mark.after(answer.etag, numbered=not placed)
        if placed and after.etag == before.etag:
            # They would come again and again, and no bookmark could be made after them.
            raise Unavailable(
                f"the service gave no new continuation of {self._range.name}", "cosmos"
            )
        skip = walk.take(placed, after)
        after = walk.mark
        if skip == len(placed):
            self._boundaries.renew(after)
            if not placed and not answer.is_cut_short(before.etag):
                self._at_tip = self._pace.is_idle = True
                self._pace.not_before = time.monotonic() + self._served.settings.poll
            return None
        walk.last = placed[-1][0]
        self._boundaries.note(walk.last, before, after, self._created(placed[-1][1]))
        self._at_tip = False
        return Page(
            partition=self._range.name,
            first=placed[skip][0],
            last=walk.last,
            count=len(placed) - skip,
            captured_at=int(time.time() * 1e6),
            context=self._context(before, after, skip),
            payload=answer.body,
        )

    def _context(self, before: FeedMark, after: FeedMark, skip: int) -> bytes:
        return DocumentContext(
            database=self._served.settings.database,
            container=self._served.settings.container,
            paths=self._identity.paths,
            every=self._served.settings.every,
            mark=before.inside().to_text(),
            end=after.to_text(),
            skip=skip,
        ).pack()

    def _created(self, document: Document) -> float:
        """When it was written: the service says so in whole seconds."""
        times = document["metadata"] if self._served.settings.every else document
        found = times.get("crts" if self._served.settings.every else "_ts")
        return float(found) if isinstance(found, int | float) else 0.0

    def _refused(self, refused: Refused) -> None:
        """Waits where that helps; raises what it is otherwise."""
        now = time.monotonic()
        if refused.status == 429:
            self._pace.is_throttled = True
            self._pace.not_before = now + max(_LEAST_WAIT, refused.wait)
        elif refused.is_too_large and self._size.most > 1:
            self._size.halve()
        elif refused.status == 410:
            self._gone(refused, now)
        else:
            raise self._error(refused) from refused

    def _error(self, refused: Refused) -> PenstockError:
        return self._served.error_of(refused, self._walk.last, self._identity)

    def _gone(self, refused: Refused, now: float) -> None:
        """A split, if there are children; a merge, or one of both that is not done yet."""
        if cuts := self._range.cuts(self._served.client.ranges()):
            self._ended(cuts)
        elif self._pace.gone(now) >= GONE:
            raise Unavailable(
                f"{self._range.name} is gone ({refused.status}/{refused.sub_status}) for"
                f" {GONE:.0f} s, and the service lists no children of it",
                "cosmos.range-gone",
            )

    def end(self, cuts: Sequence[str]) -> None:
        """The range was split at these boundaries before anything was read."""
        self.begins = ""
        self._ended(cuts)

    def _ended(self, cuts: Sequence[str]) -> None:
        """The page that showed it is not used: it is of one child, perhaps with foreign keys."""
        self._drained = True
        self._boundaries.end(cuts)

    @property
    def drained(self) -> bool:
        """See `feeds.Following`: a range that was split has ended."""
        return self._drained

    def keep_alive(self) -> Sequence[Page]:
        return ()

    def bookmark(self, place: Place | None) -> Bookmark | None:
        return self._boundaries.bookmark(place)

    def acknowledge(self, bookmark: Bookmark) -> None:
        """See `feeds.Following`: the service keeps its changes, whoever has read them."""
        self._acknowledged = bookmark.place or self._acknowledged

    def status(self) -> Mapping[str, Any]:
        """See `feeds.Following`. The lag counts transactions, which is all that LSNs tell."""
        last = self._walk.last
        stored = self._acknowledged or self._boundaries.asked
        created = self._boundaries.created(stored)
        age = round(max(0.0, time.time() - created), 3) if created else None
        is_done = self._at_tip and stored == last
        lag = None
        if self._newest and (stored is not None or is_done):
            lag = 0 if is_done else max(0, self._newest - lsn_of(stored)) if stored else None
        return {
            "connected": not self._closed,
            "current": None if last is None else str(last),
            "confirmed": None if self._acknowledged is None else str(self._acknowledged),
            "lag": lag,
            "lag_unit": "changes",
            "lag_seconds": 0.0 if is_done else age,
            "throttled": self._pace.is_throttled,
            "details": {
                "range": self._range.name,
                "newest_lsn": self._newest or None,
                "page_items": self._size.most,
                "tip_reached": self._at_tip,
            },
        }

    def close(self) -> None:
        self._closed = True
        self._boundaries.keep()


class RangeWalk:
    """How far a range was read, `last`; the next page is read from `mark`, and done up to
    `skip`."""

    def __init__(self, mark: FeedMark, place: Place | None) -> None:
        self.mark, self.last = mark, place
        self.skip = place if mark.within else mark.done

    def take(self, placed: Sequence[tuple[Place, Document]], after: FeedMark) -> int:
        """A page was read, up to the mark `after`; how many of its documents were done already."""
        before, skip = self.mark, 0
        while self.skip is not None and skip < len(placed) and placed[skip][0] <= self.skip:
            skip += 1
        if skip < len(placed) or (not placed and after.etag != before.etag):
            self.skip = None
        if self.skip is not None:  # pages are shorter now than the one that the place is in
            after = replace(after, within=before.within, done=before.done)
        self.mark = after
        return skip


class _Pace:
    """When the next page may be asked for, monotonic. `is_idle`: the last had nothing new."""

    def __init__(self) -> None:
        self.not_before, self.is_idle = 0.0, False
        self.answered()

    def answered(self) -> None:
        self.is_throttled, self._waits = False, delays()
        self._gone_since: float | None = None

    def gone(self, now: float) -> float:
        """The range is gone; returns for how long."""
        self._gone_since = now if self._gone_since is None else self._gone_since
        self.not_before = now + next(self._waits)
        return now - self._gone_since


class _PageSize:
    """How many items a page may have: halved where it is too large, doubled after some pages."""

    def __init__(self, items: int) -> None:
        self.most = self._items = items
        self._steady = 0  # pages of this size

    def answered(self) -> None:
        self._steady += 1
        if self._steady >= _STEADY and self.most < self._items:
            self.most, self._steady = min(2 * self.most, self._items), 0

    def halve(self) -> None:
        self.most, self._steady = self.most // 2, 0
