"""One key range, being read: a page after another, each by the continuation of the one before."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.feeds.cosmos.boundaries import PageBoundaries
from penstock.feeds.cosmos.client import ContainerIdentity, CosmosContainer, FeedAnswer
from penstock.feeds.cosmos.failures import ContainerMissing, Refused
from penstock.feeds.cosmos.marks import FeedMark, number_of
from penstock.feeds.cosmos.ranges import KeyRange
from penstock.feeds.cosmos.settings import CosmosSettings
from penstock.model.errors import PenstockError, Unavailable
from penstock.model.page import Page
from penstock.model.position import Bookmark, Place
from penstock.process.backoff import delays
from penstock.wire.cosmos.documents import Document, DocumentContext, in_order, lsn_of

# Seconds for which a range may be gone while no children of it are listed.
GONE = 120.0
_LEAST_WAIT = 0.1  # seconds after a 429, whatever the service says: it may say 0
_STEADY = 16  # pages of a halved size, before it is doubled


class CosmosFollowing:
    """The implementation of `feeds.Following`.

    `_mark` is where the next page is read from, and `_skip` the place up to which that page is done
    already. `_last` is the last place that was read. `_boundaries` gives bookmarks, also to other
    threads. `_most` is the size of a page now, `_steady` how many pages had it. `_is_idle`: the
    last call found nothing new. `error_of` makes the error of a refusal after a place: lost
    history, if it is that.
    """

    def __init__(
        self,
        client: CosmosContainer,
        settings: CosmosSettings,
        key_range: KeyRange,
        *,
        identity: ContainerIdentity,
        mark: FeedMark,
        place: Place | None,
        error_of: Callable[[Place | None, Refused], PenstockError],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._settings, self._range = client, settings, key_range
        self._identity, self._error_of, self._clock = identity, error_of, clock
        self._mark, self._skip, self._last = mark, place if mark.within else mark.done, place
        self._boundaries = PageBoundaries(place, mark)
        self._most, self._steady = settings.page_items, 0
        self._not_before = 0.0
        self._gone_since: float | None = None
        self._waits = delays()
        self._state = RangeState()
        self._drained = self._closed = self._is_idle = False
        self.begins = mark.etag or str(mark.to_json()["from"])

    def read(self, timeout: float) -> Sequence[Page]:
        """See `feeds.Following`. One page; a refusal that passes is waited for."""
        if self._closed:
            raise Unavailable(f"{self._range.name} was closed")
        deadline = self._clock() + timeout
        while not self._drained:
            now = self._clock()
            if self._not_before > deadline:
                time.sleep(max(0.0, deadline - now))
                break
            time.sleep(max(0.0, self._not_before - now))
            try:
                page = self._call()
            except ContainerMissing as error:  # the list of ranges says so first
                raise self._error_of(self._last, Refused(404, 0, error.message)) from error
            if page is not None:
                return [page]
            if self._clock() >= deadline:
                break
        return []

    @property
    def next_in(self) -> float | None:
        """See `feeds.PacesReads`."""
        return None if self._is_idle else max(0.0, self._not_before - self._clock())

    def _call(self) -> Page | None:
        """One read; the page, if there are changes for us."""
        self._is_idle = False
        try:
            answer = self._client.page(self._range, self._mark, self._most)
        except Refused as refused:
            self._refused(refused)
            return None
        if answer.ranges != (self._range,):
            self._ended(self._range.cuts(answer.ranges))
            return None
        self._state.throttled, self._gone_since, self._waits = False, None, delays()
        self._steady += 1
        if self._steady >= _STEADY and self._most < self._settings.page_items:
            self._most, self._steady = min(2 * self._most, self._settings.page_items), 0
        return self._answered(answer)

    def _answered(self, answer: FeedAnswer) -> Page | None:
        self._state.newest = max(self._state.newest, answer.newest or 0)
        placed = in_order(answer.documents, self._identity.paths, every=self._settings.every)
        # After a merge LSNs could begin again: places would go back. Halves have their own places.
        if placed and self._last and not self._skip and placed[0][0] <= self._last:
            self._ended([self._range.middle])
            return None
        before, after = self._mark, self._mark.after(answer.etag, numbered=not placed)
        if placed and after.etag == before.etag:
            # They would come again and again, and no bookmark could be made after them.
            raise Unavailable(f"the service gave no new continuation of {self._range.name}")
        skip = 0
        while self._skip is not None and skip < len(placed) and placed[skip][0] <= self._skip:
            skip += 1
        if skip < len(placed) or (not placed and after.etag != before.etag):
            self._skip = None
        if self._skip is not None:  # pages are shorter now than the one that the place is in
            after = replace(after, within=before.within, done=before.done)
        self._mark = after
        if skip == len(placed):
            self._boundaries.renew(after)
            if not placed and not self._has_more(before, answer):
                self._state.at_tip = self._is_idle = True
                self._not_before = self._clock() + self._settings.poll
            return None
        self._last = placed[-1][0]
        self._boundaries.note(self._last, before, after, self._created(placed[-1][1]))
        self._state.at_tip = False
        return Page(
            partition=self._range.name,
            first=placed[skip][0],
            last=self._last,
            count=len(placed) - skip,
            captured_at=int(time.time() * 1e6),
            context=self._context(before, after, skip),
            payload=answer.body,
        )

    def _has_more(self, before: FeedMark, answer: FeedAnswer) -> bool:
        """Whether an answer without documents is not the last: on a part of a merged partition the
        service may stop before its newest LSN, with a new continuation."""
        reached, newest = number_of(answer.etag), answer.newest
        if reached is None or newest is None or self._mark.etag == before.etag:
            return False
        return reached < newest

    def _context(self, before: FeedMark, after: FeedMark, skip: int) -> bytes:
        return DocumentContext(
            database=self._settings.database,
            container=self._settings.container,
            paths=self._identity.paths,
            every=self._settings.every,
            mark=before.inside().to_text(),
            end=after.to_text(),
            skip=skip,
        ).pack()

    def _created(self, document: Document) -> float:
        """When it was written: the service says so in whole seconds."""
        times = document["metadata"] if self._settings.every else document
        found = times.get("crts" if self._settings.every else "_ts")
        return float(found) if isinstance(found, int | float) else 0.0

    def _refused(self, refused: Refused) -> None:
        """Waits where that helps; raises what it is otherwise."""
        now = self._clock()
        if refused.status == 429:
            self._state.throttled = True
            self._not_before = now + max(_LEAST_WAIT, refused.wait)
        elif refused.is_too_large and self._most > 1:
            self._most, self._steady = self._most // 2, 0
        elif refused.status == 410:
            self._gone(refused, now)
        else:
            raise self._error_of(self._last, refused) from refused

    def _gone(self, refused: Refused, now: float) -> None:
        """A split, if there are children; a merge, or one of both that is not done yet."""
        cuts = self._range.cuts(self._client.ranges())
        if cuts:
            self._ended(cuts)
            return
        self._gone_since = now if self._gone_since is None else self._gone_since
        self._not_before = now + next(self._waits)
        if now - self._gone_since >= GONE:
            raise Unavailable(
                f"{self._range.name} is gone ({refused.status}/{refused.sub_status}) for"
                f" {GONE:.0f} s, and the service lists no children of it"
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
        """See `feeds.Following`: there is nothing to keep."""
        return ()

    def bookmark(self, place: Place | None) -> Bookmark | None:
        """See `feeds.Following`."""
        return self._boundaries.bookmark(place)

    def acknowledge(self, bookmark: Bookmark) -> None:
        """See `feeds.Following`: the service keeps its changes, whoever has read them."""
        self._state.acknowledged = bookmark.place or self._state.acknowledged

    def status(self) -> Mapping[str, Any]:
        """See `feeds.Following`. The lag counts transactions, which is all that LSNs tell."""
        state = self._state
        stored = state.acknowledged or self._boundaries.asked
        is_done = state.at_tip and stored == self._last
        lag = None
        if state.newest and (stored is not None or is_done):
            lag = 0 if is_done else max(0, state.newest - lsn_of(stored)) if stored else None
        return {
            "connected": not self._closed,
            "current": None if self._last is None else str(self._last),
            "confirmed": None if state.acknowledged is None else str(state.acknowledged),
            "lag": lag,
            "lag_unit": "changes",
            "lag_seconds": 0.0 if is_done else _age(self._boundaries.created(stored)),
            "throttled": state.throttled,
            "details": {
                "range": self._range.name,
                "newest_lsn": state.newest or None,
                "page_items": self._most,
                "tip_reached": state.at_tip,
            },
        }

    def close(self) -> None:
        """See `feeds.Following`: connections belong to the client."""
        self._closed = True
        self._boundaries.keep()


class RangeState:
    """What the status says of a range that is read: the newest LSN of its physical partition (0 for
    not known yet), and whether all of it was read."""

    def __init__(self) -> None:
        self.newest = 0
        self.throttled = self.at_tip = False
        self.acknowledged: Place | None = None


def _age(created: float) -> float | None:
    return round(max(0.0, time.time() - created), 3) if created else None
