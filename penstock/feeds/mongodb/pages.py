"""Replies of a change stream -> pages: each event's place, what is passed over, and the tokens."""

import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.feeds import Gap
from penstock.feeds.mongodb.filters import Replay
from penstock.feeds.mongodb.losses import place_of_mark
from penstock.feeds.mongodb.settings import MongoSettings
from penstock.model.page import Page
from penstock.model.position import Bookmark, Mark, PartitionId, Place
from penstock.wire.changestream.events import (
    ChangeEvent,
    Placer,
    Reply,
    cursor_of,
    cursor_time,
    events,
)
from penstock.wire.changestream.tokens import mark_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBeginning:
    """Where a following begins: the bookmark of its stream, the era of its new cursors, the cluster
    for its marks, the identity of the server, a cluster time for people, and the gaps before it."""

    bookmark: Bookmark
    era: str
    cluster: str
    identity: str
    begins: str
    gaps: tuple[Gap, ...] = ()


class Taken(NamedTuple):
    """What became of a reply. `is_over`: a part of a stretch that is read again ended, and the
    stream goes on after that with another filter."""

    pages: list[Page]
    events: int
    is_empty: bool
    is_over: bool


class _Read(NamedTuple):
    """What one page had: its events' (time, ordinal), in order, and their tokens (BSON)."""

    places: Sequence[tuple[int, int]]
    tokens: Sequence[bytes]
    also: Mark


class ReadTokens:
    """Bookmarks for places between the one that a following began after and the last one read. The
    token after an empty reply is the mark of the last place read, so that an idle or filtered
    stream advances. A mark says which place it is for, as a place may be saved with an older one.
    `at`: of `begun`. `also`: what each mark has besides, from the next page on. Thread-safe."""

    def __init__(
        self, begun: Bookmark, era: str, cluster: str, *, at: Place | None, also: Mark
    ) -> None:
        self.also = also
        self._lock = threading.Lock()
        self._begun, self._era, self._cluster = begun, era, cluster
        # What was read and is not stored.
        self._pages: deque[_Read] = deque()
        # The last place that was read; the newest mark after it, and the place that this is for.
        self.last = begun.place
        self.mark: Mark | None = begun.mark
        self._at = at
        self._closed = False

    def read(self, places: Sequence[tuple[int, int]], tokens: Sequence[bytes], last: Place) -> None:
        with self._lock:
            self._pages.append(_Read(places, tokens, self.also))
            self.last = self._at = last
            if tokens[-1]:  # the event is not so broken that it has none
                self.mark = self._mark(tokens[-1], last, self.also)

    def passed(self, at: Place, token: bytes) -> None:
        """A change was passed over that is stored already."""
        with self._lock:
            self._at = at
            if token:
                self.mark = self._mark(token, at, self.also)

    def idle(self, token: bytes) -> None:
        """A reply ended with this token, and every event before it was read."""
        with self._lock:
            self.mark = self._mark(token, self._at, self.also)

    def bookmark(self, place: Place | None) -> Bookmark | None:
        """See `feeds.Following`. Places before this one are forgotten, unless it is closed."""
        with self._lock:
            if place == self.last:
                if not self._closed:
                    self._pages.clear()
                return Bookmark(place, self.mark)
            if place == self._begun.place:
                return self._begun
            found = None if place is None else self._token(self.time_of(place))
        return Bookmark(place, self._mark(found[0], place, found[1])) if found else None

    def time_of(self, place: Place) -> tuple[int, int]:
        """Cluster time and ordinal of a place; before this era, one before everything read here."""
        era = place.cursor[: -len("00000000/00000000")]
        if era != self._era:
            return -1, place.ordinal
        return cursor_time(place.cursor.removeprefix(era)), place.ordinal

    def close(self) -> None:
        """Nothing more is read: from now on nothing is forgotten."""
        with self._lock:
            self._closed = True

    def _mark(self, token: bytes, place: Place | None, also: Mark) -> Mark:
        shown = None if place is None else str(place)
        return {**mark_of(token, self._era, self._cluster), **also, "place": shown}

    def _token(self, wanted: tuple[int, int]) -> tuple[bytes, Mark] | None:
        pages = self._pages
        while pages and pages[0].places[-1] < wanted and not self._closed:
            pages.popleft()
        page = next((each for each in pages if each.places[-1] >= wanted), None)
        if page is None:
            return None
        found = bisect_right(page.places, wanted) - 1
        if found < 0 or page.places[found] != wanted or not page.tokens[found]:
            return None
        return page.tokens[found], page.also


class StreamPages:
    """The events of one change stream. One thread takes replies; any thread may ask `tokens`."""

    def __init__(
        self, settings: MongoSettings, partition: PartitionId, beginning: StreamBeginning
    ) -> None:
        bookmark = beginning.bookmark
        self.partition = partition
        self._settings = settings
        self._era = beginning.era
        self._context = f"{beginning.cluster}\n{settings.only}".encode()
        # Fragments of an event whose others are in the next reply.
        self._held = b""
        # A stretch that is read again since the filter was another one: places go on after it.
        self._replay = Replay.of(settings, bookmark.mark)
        at = bookmark.place if self._replay.stored else place_of_mark(bookmark)
        # Up to where what the stream gives again is passed over; None once that is over.
        self._stored = None if at == bookmark.place else bookmark.place
        # Counts on from the last place given.
        self._placer = _placer_after(at, beginning.era)
        # Which token belongs to which place.
        self.tokens = ReadTokens(
            bookmark, beginning.era, beginning.cluster, at=at, also=self._replay.mark()
        )

    def drop_fragments(self) -> None:
        """The stream was opened again after the last event that was taken."""
        self._held = b""

    def take(self, reply: Reply) -> Taken:
        payload = self._held + reply.payload
        run = events(payload)
        self._held = payload[run.end :]
        if self._replay.stored:
            pages, is_over = self._reread(payload, run.events)
        else:
            first, is_over = self._pass_stored(run.events), False
            pages = self._pages(payload[: run.end], run.events, first)
        if reply.token and not self._held and not is_over:
            self.tokens.idle(reply.token)
        return Taken(pages, len(run.events), not payload, is_over)

    def cluster_time(self, place: Place | None) -> int:
        """The cluster time of a place of this era; else 0."""
        return 0 if place is None else max(0, self.tokens.time_of(place)[0])

    def _reread(self, payload: bytes, found: Sequence[ChangeEvent]) -> tuple[list[Page], bool]:
        """The pages of what was not let through when this was read before; whether a part of the
        stretch ended, so that the stream goes on after that with another filter."""
        again = self._replay.read(payload, found)
        pages = self._pages(again.payload, events(again.payload).events, 0)
        if again.rest is None:
            return pages, False
        placer, self._replay = self._placer, again.rest
        self.tokens.also = self._replay.mark()
        at = Place(self._era + cursor_of(placer.time), placer.ordinal)
        self.tokens.passed(at, again.token)
        return pages, True

    def _pass_stored(self, found: Sequence[ChangeEvent]) -> int:
        """How many of these are up to the bookmark's place, to which its token does not reach."""
        for number, event in enumerate(found if self._stored else ()):
            before = self._placer.time, self._placer.ordinal
            time, ordinal = self._placer.next(event.time)
            at = Place(self._era + cursor_of(time), ordinal)
            if self._stored is None or at > self._stored:
                self._stored = None
                self._placer = Placer(*before)
                return number
            self.tokens.passed(at, event.token)
        return len(found) if self._stored else 0

    def _pages(self, payload: bytes, found: Sequence[ChangeEvent], first: int) -> list[Page]:
        pages, captured_at = [], time.time_ns() // 1000
        for number, event in enumerate(found[first:], start=first + 1):
            begin = found[first - 1].documents[-1][1] if first else 0
            end = event.documents[-1][1]
            is_full = (
                end - begin >= self._settings.page_size
                or number - first >= self._settings.page_rows
            )
            if is_full or number == len(found):
                pages.append(self._page(payload[begin:end], found[first:number], captured_at))
                first = number
        return pages

    def _page(self, payload: bytes, found: Sequence[ChangeEvent], captured_at: int) -> Page:
        places = [self._placer.next(event.time) for event in found]
        first, last = (
            Place(self._era + cursor_of(time), ordinal) for time, ordinal in (places[0], places[-1])
        )
        self.tokens.read(places, [event.token for event in found], last)
        return Page(
            partition=self.partition,
            first=first,
            last=last,
            count=len(found),
            captured_at=captured_at,
            context=self._context,
            payload=payload,
        )


def _placer_after(place: Place | None, era: str) -> Placer:
    if place is None or not place.cursor.startswith(era) or len(place.cursor) != len(era) + 17:
        return Placer(0, -1)
    return Placer(cursor_time(place.cursor.removeprefix(era)), place.ordinal)
