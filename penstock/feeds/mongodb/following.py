"""One change stream, being read: replies become pages; tokens are kept until they are stored."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.feeds import Following
from penstock.feeds.mongodb.lag import Lag, OplogWindow, time_of_mark
from penstock.feeds.mongodb.losses import Losses
from penstock.feeds.mongodb.pages import StreamBeginning, StreamPages
from penstock.feeds.mongodb.settings import MongoSettings
from penstock.feeds.mongodb.stream import ChangeStream
from penstock.model.errors import PenstockError, PositionLost, Unavailable
from penstock.model.page import Page
from penstock.model.position import Bookmark, PartitionId, Place
from penstock.wire.changestream.events import cursor_of
from penstock.wire.changestream.tokens import hash_of

# A reply is small that has less than this part of what was asked for.
_SMALL = 4


class MongoFollowing(Following):
    """The implementation of `feeds.Following`; one thread reads, any may ask for tokens, lag and
    window. A cursor that the server gives up, after ten minutes, is opened again at its token."""

    def __init__(
        self,
        settings: MongoSettings,
        partition: PartitionId,
        stream: ChangeStream,
        beginning: StreamBeginning,
        losses: Losses,
    ) -> None:
        self._settings, self.stream = settings, stream
        self._beginning, self._losses = beginning, losses
        # What is made of replies.
        self._pages = StreamPages(settings, partition, beginning)
        # Until the first error, or `close`; never again.
        self._connected = True
        # The cursor ended. The stream is opened again by the next read: that may fail, and the
        # pages that were read have to be returned before.
        self._is_over = False
        self._confirmed: Place | None = beginning.bookmark.place
        # Cursors that an invalidation ended.
        self._invalidations = 0
        # When the next request may be sent, on the monotonic clock.
        self._not_before = 0.0
        at = self._pages.cluster_time(beginning.bookmark.place)
        self._lag = Lag(max(time_of_mark(beginning.bookmark.mark), at))
        self._window = OplogWindow(settings)

    def read(self, timeout: float) -> Sequence[Page]:
        if not self._connected:
            raise Unavailable(f"the following of {self._pages.partition} was closed", "mongodb")
        try:
            return self._read(timeout)
        except PenstockError as error:
            self._connected = False
            # What is refused after the position was accepted is found by following again.
            if isinstance(error, PositionLost) and not self.stream.is_accepted:
                begun = self._beginning
                raise self._losses.refused(
                    error, begun.bookmark, begun.identity, begun.gaps
                ) from error
            raise

    def _read(self, timeout: float) -> Sequence[Page]:
        stream, tokens = self.stream, self._pages.tokens
        self._window.open()
        if self._is_over:  # the stream goes on after the last event that was taken
            assert tokens.mark is not None
            stream.reopen(tokens.mark)
            self._pages.drop_fragments()
            self._is_over = False
        time.sleep(max(0.0, min(timeout, self._not_before - time.monotonic())))
        asked_at = time.monotonic()
        reply = stream.more(timeout)
        taken = self._pages.take(reply)
        if taken.events * _SMALL < stream.batch:
            self._not_before = asked_at + self._settings.page_wait
        self._lag.answered(
            stream.time,
            tokens.mark,
            is_empty=taken.is_empty,
            is_stored=self._is_stored(tokens.last),
        )
        stream.reply = reply._replace(payload=b"")
        self._is_over = taken.is_over or not reply.cursor
        self._invalidations += not taken.is_over and not reply.cursor
        return taken.pages

    def bookmark(self, place: Place | None) -> Bookmark | None:
        return self._pages.tokens.bookmark(place)

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
        tokens, confirmed = self._pages.tokens, self._confirmed
        last, at = tokens.last, self._pages.cluster_time(confirmed)
        lag = self._lag.seconds(at, is_stored=self._is_stored(last))
        return {
            "connected": self._connected,
            "current": None if last is None else str(last),
            "confirmed": None if confirmed is None else str(confirmed),
            "lag_seconds": lag,
            **self._lag.window(self._window.oldest, lag),
            # The clock first: a token is read before the clock of its reply is shown.
            "clock": self._lag.server_clock,
            "token": hash_of(str(tokens.mark).encode()),  # a token may hold a document's key
            "details": {
                "cluster_time": cursor_of(self.stream.time) if self.stream.time else None,
                "batch": self.stream.batch,
                "invalidations": self._invalidations,
                "window": self._window.unknown or None,
            },
        }

    def _is_stored(self, last: Place | None) -> bool:
        """Whether everything that was read, up to `last`, is durable and saved."""
        return last is None or (self._confirmed is not None and self._confirmed >= last)

    def close(self) -> None:
        self._connected = False
        self._window.close()
        self._pages.tokens.close()
        self.stream.close()
