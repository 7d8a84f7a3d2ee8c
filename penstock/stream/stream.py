"""The iterator itself: positions in, records out, and a token for what was handed out."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from threading import Event
from typing import Any, Self

from penstock.feeds import At, Feed, Gap
from penstock.model.change import OnError
from penstock.model.errors import InvalidPosition, InvalidStream, SettingsError, Unavailable
from penstock.model.position import Bookmarks
from penstock.process.backoff import Clock
from penstock.process.closing import Closes
from penstock.reading.keeper import Keeper
from penstock.stream.coordinator import BUFFER, Coordinator
from penstock.stream.models import Convert, converter
from penstock.stream.records import record_reader
from penstock.stream.side_by_side import NEVER
from penstock.stream.tokens import beginning_at, history_of, token_of

# Seconds: a connection that was closed by us may still hold the source.
_GRACE = 30.0
# Seconds between the heartbeats of `follow`; a feed decides itself whether one costs a call.
_HEARTBEAT = 5.0


class Stream(Closes):
    """An iterator over the records of a feed. Used by one thread, except for `stop`.

    Opening one pins the position: it does I/O, and raises as `Feed.begin` does. `at`:
    "trim_horizon", "latest" (in any case), a time with a zone, a token, or None for what the feed's
    settings say. `model`: images become instances of it. `on_error`: "stop" raises Malformed at a
    change that cannot be decoded, anything else hands it out with the event type `error`. `buffer`:
    bytes of what was fetched, after which no more is fetched. `clock` is monotonic seconds; `now`
    the time of day.
    """

    def __init__(
        self,
        feed: Feed,
        *,
        at: Any = None,
        model: Any = None,
        on_error: OnError = "stop",
        buffer: int = BUFFER,
        clock: Clock = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        if buffer < 1:
            raise SettingsError(f"buffer={buffer} holds nothing", hint="write a number of bytes")
        self._feed = feed
        self._buffer = buffer  # bytes, of each coordinator
        self._clock = clock
        self._now = now
        self._convert: Convert | None = None if model is None else converter(model)
        self._read = record_reader(feed, on_error)
        self._closed = False
        self._stopped = Event()  # `follow` ends
        self._coordinator = self._coordinate(self._begin(at))

    def __repr__(self) -> str:
        return f"<Stream of {self._feed.backend}>"

    def _begin(self, at: Any) -> Bookmarks:
        position: At = None
        if at is not None:
            position = beginning_at(at, self._feed.backend, self._now())
        history = history_of(at)
        if history:
            self._feed.verify(history)
        try:
            begun = self._feed.begin(position)
        except (InvalidPosition, InvalidStream):
            raise
        except SettingsError as error:
            if position in (None, "now") or isinstance(position, Mapping):
                raise
            raise InvalidPosition(error.message, hint=error.hint) from error
        self._history = history  # of the source, until its first listing
        return begun

    def _coordinate(self, bookmarks: Bookmarks, grace: float = 0.0) -> Coordinator:
        return Coordinator(
            self._feed,
            bookmarks,
            self._read,
            clock=self._clock,
            grace=grace,
            buffer=self._buffer,
        )

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> dict[str, Any] | None:
        """The next record; None when there is none now. StopIteration only after `close`.

        Raises Unavailable (call again), RecordsExpired, ShardIteratorExpired, Malformed,
        SettingsError. No error loses or repeats a record.
        """
        return self._next()

    def _next(self, wait: float = 0.0, stopped: Event = NEVER) -> dict[str, Any] | None:
        if self._closed:
            raise StopIteration
        coordinator = self._coordinator
        found = coordinator.head()
        if found is None:
            coordinator.poll(wait, stopped)
            found = coordinator.head()
            if found is None:
                return None
        record = found.record if self._convert is None else self._modelled(found.record)
        coordinator.pop()
        return record

    def _modelled(self, record: Mapping[str, Any]) -> dict[str, Any]:
        assert self._convert is not None
        made = dict(record)
        for name in ("new", "old"):
            if made[name] is not None:
                made[name] = self._convert(made[name])
        return made

    @property
    def token(self) -> dict[str, Any]:
        """Plain JSON: after the last record that was handed out, or where this began. `at=` and
        `move_to` take it."""
        feed = self._feed
        bookmarks = self._coordinator.bookmarks()
        return token_of(feed.backend, bookmarks, feed.history or self._history)

    @property
    def gaps(self) -> Sequence[Gap]:
        """What was lost at the source since the last move."""
        return tuple(self._coordinator.gaps)

    def move_to(self, position: Any) -> None:
        """Goes on at a position, as `at` has them; what was fetched is discarded. An error leaves
        everything as it was."""
        if position is None:
            raise InvalidPosition("None is not a position", hint='write "trim_horizon" or "latest"')
        bookmarks = self._begin(position)
        self._coordinator.close()
        self._coordinator = self._coordinate(bookmarks, self._clock() + _GRACE)

    def heartbeat(self) -> None:
        """Keeps connections and the source's iterators, while no record is asked for. Safe in a
        tight loop. Raises as `__next__` does."""
        if not self._closed:
            self._coordinator.heartbeat()

    def acknowledge(self, token: Mapping[str, Any] | None = None) -> None:
        """The source may discard everything up to a token that was saved; None: the present one. A
        replication slot keeps its log until then. Sent with the next read, heartbeat or close."""
        found = beginning_at(
            self.token if token is None else token, self._feed.backend, self._now()
        )
        if not isinstance(found, Mapping):
            raise InvalidPosition("only a token can be acknowledged")
        # The caller has saved it.
        Keeper(None, self._coordinator).save(found, 0)

    def follow(self, poll: float = 1.0) -> Iterator[dict[str, Any]]:
        """Every record, for ever. Where there is none, every partition is read once in `poll`
        seconds; a connection of its own is listened to for so long. Sends heartbeats between
        records, and tries again with back-off while the source is Unavailable. Ends after `stop` or
        `close`; other errors are raised."""
        kept = self._clock()
        while not self._stopped.is_set() and not self._closed:
            asked, pause = self._clock(), 0.0
            record = None
            try:
                if asked - kept >= _HEARTBEAT:
                    kept = asked
                    self.heartbeat()
                record = self._next(poll, self._stopped)
                if record is None and not self._coordinator.due:
                    pause = poll - (self._clock() - asked)
            except Unavailable:
                pause = self._coordinator.pause
            if record is not None:
                yield record
            elif pause > 0:
                self._stopped.wait(pause)
        self._stopped.clear()

    def stop(self) -> None:
        """Ends the running `follow`, or the next one, after its present record, within a second.
        From any thread, or a signal handler."""
        self._stopped.set()

    def close(self) -> None:
        """Closes all connections; `next` raises StopIteration from now on. May be called again."""
        self._closed = True
        self._coordinator.close()
