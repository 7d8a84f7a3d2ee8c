"""The iterator itself: positions in, records out, and a token for what was handed out."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from threading import Event
from typing import Any, Generic, Self, TypedDict, TypeVar, Unpack

import pyarrow as pa

from penstock.feeds import Feed, Gap, NativeRecord, RecordReader
from penstock.model.change import OnError, schema
from penstock.model.errors import (
    InvalidPosition,
    InvalidStream,
    PenstockError,
    SettingsError,
    Unavailable,
)
from penstock.model.position import Bookmarks
from penstock.process.backoff import Clock
from penstock.process.closing import Closes
from penstock.process.notebook import Drawn
from penstock.stream.coordinator import BUFFER, Coordinator
from penstock.stream.models import Convert, IncludedImages, converter
from penstock.stream.record import ChangeRecord, Image
from penstock.stream.records import batch_of, record_reader, row_reader
from penstock.stream.side_by_side import NEVER
from penstock.stream.tokens import beginning_at, history_of, token_of
from penstock.stream.typed_rows import typed_reader, typed_rows
from penstock.typed import OnMisfit

# Seconds: a connection that was closed by us may still hold the source.
_GRACE = 30.0
# Seconds between the heartbeats of `follow`; a feed decides itself whether one costs a call.
_HEARTBEAT = 5.0
# Rows of a batch, at most.
_BATCH = 10_000

Item = TypeVar("Item")


class Typed(TypedDict, total=False):
    """Which columns rows have: see `Stream.batches`."""

    of: str
    schema: pa.Schema
    on_misfit: OnMisfit


class Stream(Drawn, Closes, Generic[Image]):
    """An iterator over the records of a feed. Used by one thread, except for `stop`; or by one
    task, with `async for`.

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
        model: type[Image] | None = None,
        on_error: OnError = "stop",
        buffer: int = BUFFER,
        clock: Clock = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        if buffer < 1:
            raise SettingsError(
                f"buffer={buffer} holds nothing", "stream", hint="write a number of bytes"
            )
        self._feed = feed
        self._buffer = buffer  # bytes, of each coordinator
        self._clock, self._now = clock, now
        self._convert: Convert | None = None if model is None else converter(model)
        self._included = IncludedImages(model)
        self._records = record_reader(feed, on_error)
        self._rows = row_reader(feed, on_error)
        self._on_error = on_error
        # Of typed rows: what was asked for, their schema, and what makes them.
        self._typed: tuple[Any, pa.Schema, RecordReader] | None = None
        self._read = self._records  # one of these: what the coordinator makes of pages
        self._count = 0  # records and rows that were handed out
        self._closed = False
        self._stopped = Event()  # `follow` ends
        self._coordinator = self._coordinate(self._begin(at))

    def __repr__(self) -> str:
        return f"<Stream of {self._feed.backend}>"

    def _begin(self, at: Any) -> Bookmarks:
        position = None if at is None else beginning_at(at, self._feed.backend, self._now())
        if history := history_of(at):
            self._feed.verify(history)
        try:
            begun = self._feed.begin(position)
        except (InvalidPosition, InvalidStream):
            raise
        except SettingsError as error:
            if position in (None, "now") or isinstance(position, Mapping):
                raise
            raise InvalidPosition(error.message, error.code, hint=error.hint) from error
        self._history = history  # of the source, until its first listing
        return begun

    def _coordinate(self, bookmarks: Bookmarks, grace: float = 0.0) -> Coordinator:
        return Coordinator(
            self._feed, bookmarks, self._read, clock=self._clock, grace=grace, buffer=self._buffer
        )

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ChangeRecord[Image] | None:
        """The next record; None when there is none now. StopIteration only after `close`.

        Raises Unavailable (call again), RecordsExpired, ShardIteratorExpired, Malformed,
        SettingsError. No error loses or repeats a record.
        """
        return self._next()

    def _next(self, wait: float = 0.0, stopped: Event = NEVER) -> ChangeRecord[Image] | None:
        if self._closed:
            raise StopIteration
        if (found := self._head(self._records, wait, stopped)) is None:
            return None
        record: Any = found.record if self._convert is None else self._modelled(found.record)
        self._coordinator.pop()
        self._count += 1
        made: ChangeRecord[Image] = record
        return made

    def _head(self, read: RecordReader, wait: float, stopped: Event) -> NativeRecord | None:
        """The next record that `read` makes; polls where nothing is fetched."""
        if read is not self._read:
            self._read = read
            self._restart(self._coordinator.bookmarks())
        if (found := self._coordinator.head()) is None:
            self._coordinator.poll(wait, stopped)
            found = self._coordinator.head()
        return found

    def _restart(self, bookmarks: Bookmarks) -> None:
        """Reads anew after the bookmarks; what was fetched is discarded."""
        before = self._coordinator
        before.close()
        grace = self._clock() + _GRACE if before.open_partitions else 0.0
        self._coordinator = self._coordinate(bookmarks, grace)
        self._coordinator.gaps = before.gaps

    def _batch(self, read: RecordReader, most: int, wait: float) -> pa.RecordBatch | None:
        """What is fetched, up to so many rows; None when there is none now."""
        if self._head(read, wait, self._stopped) is None:
            return None
        coordinator, found = self._coordinator, list[NativeRecord]()
        before = coordinator.bookmarks()
        try:
            while len(found) < most and (head := _readable(coordinator)) is not None:
                found.append(head)
                coordinator.pop()
            batch = batch_of(found)
        except BaseException:  # Ctrl-C
            self._restart(before)
            raise
        self._count += len(found)
        return batch

    def _modelled(self, record: Mapping[str, Any]) -> dict[str, Any]:
        assert self._convert is not None
        self._included.verify(record)
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
            raise InvalidPosition(
                "None is not a position", "stream", hint='write "trim_horizon" or "latest"'
            )
        self._restart(self._begin(position))
        self._coordinator.gaps = []

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
            raise InvalidPosition("only a token can be acknowledged", "stream")
        self._coordinator.acknowledge(found)

    def follow(self, poll: float = 1.0) -> Iterator[ChangeRecord[Image]]:
        """Every record, for ever. Where there is none, every partition is read once in `poll`
        seconds; a connection of its own is listened to for so long. Sends heartbeats between
        records, and tries again with back-off while the source is Unavailable. Ends after `stop` or
        `close`; other errors are raised."""
        return self._following(lambda wait: self._next(wait, self._stopped), poll, math.inf)

    async def __aiter__(self) -> AsyncIterator[ChangeRecord[Image]]:
        """`async for`: every record, as `follow` gives them. What was fetched comes at once; where
        there is nothing, one thread waits, while the loop goes on. Cancelling it loses no record:
        the stream goes on where it was."""
        waiting = self._following(self._fetched, 1.0, math.inf)
        with ThreadPoolExecutor(1, "penstock-stream") as thread:
            looked = -math.inf
            while not self._closed:
                if self._clock() - looked >= _HEARTBEAT or self._coordinator.head() is None:
                    looked = self._clock()
                    there = asyncio.get_running_loop().run_in_executor(thread, next, waiting, None)
                    try:
                        await asyncio.wait([there])
                    finally:
                        if not there.done():
                            self.stop()
                            await asyncio.wait([there])
                            self._stopped.clear()
                    if there.result() is None:
                        return
                if (record := self._next()) is not None:
                    yield record

    def _fetched(self, wait: float) -> NativeRecord | None:
        return self._head(self._records, wait, self._stopped)

    def batches(
        self, rows: int | None = None, seconds: float | None = None, **typed: Unpack[Typed]
    ) -> Iterator[pa.RecordBatch]:
        """What comes, as batches of `penstock.schema()`, images as JSON text, in the order of
        iterating. Ends after so many rows or seconds, whichever is first, as `follow` does
        otherwise; `seconds=0` gives what is there now. A batch has what was fetched, up to 10,000
        rows. `model` does not apply.

        `of`: rows with the own columns of this table (`public.orders`), without changes of others.
        `schema`: rows with these columns, which documents need; with `on_misfit` PERMISSIVE what
        does not fit is null, else it is an error. Which other columns there are, and the types, is
        in docs/reference/spark.md. Raises SettingsError for a value that does not fit.

        A batch is handed out, and `token` after its last row, when it is yielded: save the token
        after you have processed the batch. What was not yielded comes next, also from `next`,
        `follow` or `table`, and after Ctrl-C or an error. Changing between records and batches
        discards what was fetched, and connects again. Raises as `follow` does; and Unavailable if
        the source is so when the time is over and nothing came.
        """
        if rows is not None and rows < 1:
            raise SettingsError(
                f"rows={rows} asks for nothing", "stream", hint="write a number above 0"
            )
        _, read = self._typed_by(typed)
        left = math.inf if rows is None else rows
        until = math.inf if seconds is None else self._clock() + seconds

        def take(wait: float) -> pa.RecordBatch | None:
            return self._batch(read, int(min(left, _BATCH)), wait)

        for batch in self._following(take, 1.0, until):
            left -= batch.num_rows
            yield batch
            if not left:
                return

    def _typed_by(self, typed: Typed) -> tuple[pa.Schema, RecordReader]:
        """What makes rows, and their schema; the same as before for the same request."""
        if not typed:
            return schema(), self._rows
        key = tuple(sorted(typed.items()))
        if self._typed is None or self._typed[0] != key:
            of = typed.get("of")
            rows = typed_rows(
                self._feed, of, typed.get("schema"), typed.get("on_misfit", "FAILFAST")
            )
            read = typed_reader(self._feed, rows, of, self._on_error)
            self._typed = key, rows.schema, read
        return self._typed[1:]

    def table(
        self, rows: int | None = 1000, seconds: float | None = 5, **typed: Unpack[Typed]
    ) -> pa.Table:
        """The next changes as a table of `penstock.schema()`, or `typed`, for Polars, pandas or
        DuckDB: up to so many rows, those that come in so many seconds; see `batches`.

        Its rows are handed out when it returns. An error or Ctrl-C loses none: the stream is where
        it was before the call.
        """
        if rows is None and seconds is None:
            raise SettingsError("a table needs an end", "stream", hint="give rows or seconds")
        before, count = self._coordinator.bookmarks(), self._count
        try:
            columns, _ = self._typed_by(typed)
            return pa.Table.from_batches(self.batches(rows, seconds, **typed), columns)
        except BaseException:
            if self._count > count:
                self._restart(before)
                self._count = count
            raise

    def _following(
        self, take: Callable[[float], Item | None], poll: float, until: float
    ) -> Iterator[Item]:
        """What `take` gives, which waits for so many seconds, until that time of the clock."""
        kept, is_over, has_come = self._clock(), False, False
        while not is_over and not self._stopped.is_set() and not self._closed:
            asked, pause = self._clock(), 0.0
            wait = max(0.0, min(poll, until - asked))
            item = None
            try:
                if asked - kept >= _HEARTBEAT:
                    kept = asked
                    self.heartbeat()
                item = take(wait)
                if item is None and not self._coordinator.due:
                    pause = wait - (self._clock() - asked)
            except Unavailable:
                pause = self._coordinator.pause
                if self._clock() + pause >= until and not has_come:
                    raise
            if item is not None:
                has_come = True
                yield item
            elif pause > 0:
                self._stopped.wait(min(pause, until - self._clock()))
            is_over = self._clock() >= until
        self._stopped.clear()

    def stop(self) -> None:
        """Ends the running `follow`, `batches` or `table`, or the next one, after its present
        record or batch, within a second. From any thread, or a signal handler."""
        self._stopped.set()

    def close(self) -> None:
        """Closes all connections; `next` raises StopIteration from now on. May be called again."""
        self._closed = True
        self._coordinator.close()

    def facts(self) -> Mapping[str, Any]:
        """What Jupyter shows."""
        return {
            "state": "closed" if self._closed else "open",
            "handed out": self._count,
            "partitions": len(self._coordinator.open_partitions),
            "gaps": len(self._coordinator.gaps),
        }


def _readable(coordinator: Coordinator) -> NativeRecord | None:
    """The next record; None at one that cannot be decoded, which comes first in the next batch."""
    try:
        return coordinator.head()
    except PenstockError:
        return None
