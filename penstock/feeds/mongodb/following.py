"""One change stream, being read: replies become pages; tokens are kept until they are stored."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from penstock.feeds.mongodb.filters import Replay
from penstock.feeds.mongodb.history import place_of_mark
from penstock.feeds.mongodb.lag import Lag, durable_time
from penstock.feeds.mongodb.read_tokens import ReadTokens
from penstock.feeds.mongodb.settings import MongoSettings
from penstock.feeds.mongodb.stream import ChangeStream
from penstock.feeds.mongodb.window import OplogWindow
from penstock.model.errors import PenstockError, PositionLost, Unavailable
from penstock.model.page import Page
from penstock.model.position import Bookmark, PartitionId, Place
from penstock.wire.changestream.events import ChangeEvent, Placer, cursor_of, cursor_time, events
from penstock.wire.changestream.tokens import hash_of

# A reply is small that has less than this part of what was asked for.
_SMALL = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBeginning:
    """Where a following begins: the bookmark at which its stream was opened, the era of its new
    cursors, the cluster for its marks, and a cluster time for people."""

    bookmark: Bookmark
    era: str
    cluster: str
    begins: str


class MongoFollowing:
    """The implementation of `feeds.Following`; one thread reads.

    `lost` makes the error of a position that the server refuses. The reading thread alone owns
    `_stream`, `_is_over`, `_held` (fragments of an event whose others are in the next reply),
    `_placer` (the last place given), `_replay` and `_stored` (up to where what the stream gives
    again is passed over, None once that is over); `_tokens`, `_lag` and `_window` may be asked by
    any thread.
    """

    def __init__(
        self,
        settings: MongoSettings,
        partition: PartitionId,
        stream: ChangeStream,
        beginning: StreamBeginning,
        *,
        lost: Callable[[PositionLost], PenstockError],
        on_failure: Callable[[PenstockError], None] = lambda _: None,
    ) -> None:
        bookmark, era = beginning.bookmark, beginning.era
        self._settings = settings
        self._partition = partition
        self._stream = stream
        self._era = era
        self._beginning = beginning
        self._context = beginning.cluster.encode()
        self._lost = lost
        self._on_failure = on_failure
        self._connected = True
        # The cursor ended. The stream is opened again by the next read: that may fail, and the
        # pages that were read have to be returned before.
        self._is_over = False
        self._held = b""
        self._confirmed: Place | None = bookmark.place
        self._invalidations = 0
        self._clock: int | None = None  # the server's, in seconds, after its last reply
        self._not_before = 0.0  # when the next request may be sent, on the monotonic clock
        # A stretch that is read again since the filter was another one: places go on after it.
        self._replay = Replay.of(settings, bookmark.mark)
        at = bookmark.place if self._replay.stored else place_of_mark(bookmark)
        self._stored = None if at == bookmark.place else bookmark.place
        self._placer = _placer_after(at, era)
        self._tokens = ReadTokens(
            bookmark,
            era,
            beginning.cluster,
            at=at,
            time_of=self._time_of,
            also=self._replay.mark(),
        )
        self._lag = Lag(durable_time(bookmark, self._cluster_time(bookmark.place)))
        self._window = OplogWindow(settings)

    def read(self, timeout: float) -> Sequence[Page]:
        """See `feeds.Following`."""
        if not self._connected:
            raise Unavailable(f"the following of {self._partition} was closed")
        try:
            return self._read(timeout)
        except PenstockError as error:
            self._connected = False
            self._on_failure(error)
            # What is refused after the position was accepted is found by following again.
            if isinstance(error, PositionLost) and not self._stream.is_accepted:
                raise self._lost(error) from error
            raise

    def _read(self, timeout: float) -> Sequence[Page]:
        stream = self._stream
        self._window.open()
        if self._is_over:  # the stream goes on after the last event that was taken
            assert self._tokens.mark is not None
            stream.reopen(self._tokens.mark)
            self._held, self._is_over = b"", False
        time.sleep(max(0.0, min(timeout, self._not_before - time.monotonic())))
        asked_at = time.monotonic()
        reply = stream.more(timeout)
        payload = self._held + reply.payload
        run = events(payload)
        self._held = payload[run.end :]
        if len(run.events) * _SMALL < stream.batch:
            self._not_before = asked_at + self._settings.page_wait
        if self._replay.stored:
            pages, is_over = self._reread(payload, run.events)
        else:
            first, is_over = self._pass_stored(run.events), False
            pages = self._pages(payload[: run.end], run.events, first)
        if reply.token and not self._held and not is_over:
            self._tokens.idle(reply.token)
        self._clock = stream.time >> 32 if stream.time else None
        self._lag.answered(
            stream.time,
            self._tokens.mark,
            is_empty=not payload,
            is_stored=self._is_stored(self._tokens.last),
        )
        stream.reply = reply._replace(payload=b"")
        self._is_over = is_over or not reply.cursor
        self._invalidations += not is_over and not reply.cursor
        return pages

    def _reread(self, payload: bytes, found: Sequence[ChangeEvent]) -> tuple[list[Page], bool]:
        """The pages of what was not let through when this was read before; whether a part of the
        stretch ended, so that the stream goes on after that with another filter."""
        again = self._replay.read(payload, found)
        pages = self._pages(again.payload, events(again.payload).events, 0)
        if again.rest is None:
            return pages, False
        placer, self._replay = self._placer, again.rest
        self._tokens.also = self._replay.mark()
        at = Place(self._era + cursor_of(placer.time), placer.ordinal)
        self._tokens.passed(at, again.token)
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
            self._tokens.passed(at, event.token)
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
        self._tokens.read(places, [event.token for event in found], last)
        return Page(
            partition=self._partition,
            first=first,
            last=last,
            count=len(found),
            captured_at=captured_at,
            context=self._context,
            payload=payload,
        )

    @property
    def is_accepted(self) -> bool:
        """Whether the server has the changes after the bookmark, as far as it was read."""
        return self._stream.is_accepted

    @property
    def drained(self) -> bool:
        """See `feeds.Following`: a change stream has no end."""
        return False

    def keep_alive(self) -> Sequence[Page]:
        """See `feeds.Following`: only reading would keep a cursor. One that the server gives up
        after ten minutes is opened again at its token."""
        return ()

    def bookmark(self, place: Place | None) -> Bookmark | None:
        """See `feeds.Following`."""
        return self._tokens.bookmark(place)

    def acknowledge(self, bookmark: Bookmark) -> None:
        """See `feeds.Following`: nothing is kept at the server for us."""
        place, confirmed = bookmark.place, self._confirmed
        if place is not None and (confirmed is None or place > confirmed):
            self._confirmed = place

    @property
    def begins(self) -> str:
        """See `feeds.Following`: a cluster time."""
        return self._beginning.begins

    def status(self) -> Mapping[str, Any]:
        """See `feeds.Following`."""
        last, confirmed = self._tokens.last, self._confirmed
        lag = self._lag.seconds(self._cluster_time(confirmed), is_stored=self._is_stored(last))
        return {
            "connected": self._connected,
            "current": None if last is None else str(last),
            "confirmed": None if confirmed is None else str(confirmed),
            "lag_seconds": lag,
            **self._lag.window(self._window.oldest, lag),
            # The clock first: a token is read before the clock of its reply is shown.
            "clock": self._clock,
            "token": hash_of(str(self._tokens.mark).encode()),  # a token may hold a document's key
            "details": {
                "cluster_time": cursor_of(self._stream.time) if self._stream.time else None,
                "batch": self._stream.batch,
                "invalidations": self._invalidations,
                "window": self._window.unknown or None,
            },
        }

    def _is_stored(self, last: Place | None) -> bool:
        """Whether everything that was read, up to `last`, is durable and saved."""
        return last is None or (self._confirmed is not None and self._confirmed >= last)

    def _cluster_time(self, place: Place | None) -> int:
        return 0 if place is None else max(0, self._time_of(place)[0])

    def _time_of(self, place: Place) -> tuple[int, int]:
        era = place.cursor[: -len("00000000/00000000")]
        if era != self._era:  # before this era: before everything read here
            return -1, place.ordinal
        return cursor_time(place.cursor.removeprefix(era)), place.ordinal

    def close(self) -> None:
        """See `feeds.Following`."""
        self._connected = False
        self._window.close()
        self._tokens.close()
        self._stream.close()


def _placer_after(place: Place | None, era: str) -> Placer:
    if place is None or not place.cursor.startswith(era) or len(place.cursor) != len(era) + 17:
        return Placer(0, -1)
    return Placer(cursor_time(place.cursor.removeprefix(era)), place.ordinal)


def _begin(payload: bytes, found: Sequence[ChangeEvent], number: int) -> int:
    """Where the elements of an event begin: after those of the one before."""
    return found[number - 1].documents[-1][1] if number else 0
