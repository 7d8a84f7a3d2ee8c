"""Replies of a change stream -> pages: which place each event has, and what is passed over."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.feeds import Gap
from penstock.feeds.mongodb.filters import Replay
from penstock.feeds.mongodb.history import place_of_mark
from penstock.feeds.mongodb.read_tokens import ReadTokens
from penstock.feeds.mongodb.settings import MongoSettings
from penstock.model.page import Page
from penstock.model.position import Bookmark, PartitionId, Place
from penstock.wire.changestream.events import ChangeEvent, Placer, cursor_of, cursor_time, events
from penstock.wire.changestream.reply import Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBeginning:
    """Where a following begins: the bookmark at which its stream was opened, the era of its new
    cursors, the cluster for its marks, the identity of the server, a cluster time for people, and
    the gaps before it."""

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


class StreamPages:
    """The events of one change stream. One thread takes replies; any thread may ask `tokens`."""

    def __init__(
        self, settings: MongoSettings, partition: PartitionId, beginning: StreamBeginning
    ) -> None:
        bookmark = beginning.bookmark
        self.partition = partition
        self._settings = settings
        self._era = beginning.era
        self._context = beginning.cluster.encode()
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
            bookmark,
            beginning.era,
            beginning.cluster,
            at=at,
            time_of=self._time_of,
            also=self._replay.mark(),
        )

    def drop_fragments(self) -> None:
        """The stream was opened again after the last event that was taken."""
        self._held = b""

    def take(self, reply: Reply) -> Taken:
        """The pages of a reply."""
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
        return 0 if place is None else max(0, self._time_of(place)[0])

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
            begin = _begin(payload, found, first)
            is_full = (
                event.documents[-1][1] - begin >= self._settings.page_size
                or number - first >= self._settings.page_rows
            )
            if is_full or number == len(found):
                end = event.documents[-1][1]
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

    def _time_of(self, place: Place) -> tuple[int, int]:
        era = place.cursor[: -len("00000000/00000000")]
        if era != self._era:  # before this era: before everything read here
            return -1, place.ordinal
        return cursor_time(place.cursor.removeprefix(era)), place.ordinal


def _placer_after(place: Place | None, era: str) -> Placer:
    if place is None or not place.cursor.startswith(era) or len(place.cursor) != len(era) + 17:
        return Placer(0, -1)
    return Placer(cursor_time(place.cursor.removeprefix(era)), place.ordinal)


def _begin(payload: bytes, found: Sequence[ChangeEvent], number: int) -> int:
    """Where the elements of an event begin: after those of the one before."""
    return found[number - 1].documents[-1][1] if number else 0
