"""Bytes of the replication stream -> pages. Sans-IO: bytes and times come in, pages go out.

This is the reader process's hot loop: one pass that looks at the head of every message (walk.py),
and never at a row. `LogProgress` gets what may be acknowledged. Rows are decoded elsewhere.
"""

import struct

from penstock.feeds.postgres.collecting import BEGIN, ENDLESS, MESSAGE, Collector
from penstock.feeds.postgres.failures import backend_error, failure
from penstock.feeds.postgres.progress import LogProgress
from penstock.feeds.postgres.streams import Streams, TransactionDelivery
from penstock.feeds.postgres.walk import BETWEEN, PADDING, NativeWalk, Transaction, rows_ahead
from penstock.model.errors import Malformed, SettingsError
from penstock.model.page import Page
from penstock.wire.pgoutput import messages
from penstock.wire.pgoutput.context import HEARTBEAT_PREFIX
from penstock.wire.pgoutput.frames import from_pg_time
from penstock.wire.pgoutput.lsn import message_cursor

_LONGEST = 2**30 + 2**20  # PostgreSQL's own limit is 1 GiB
_BEGIN = struct.Struct(">QqI")
_COMMIT = struct.Struct(">xQQ")
_KEEPALIVE = struct.Struct(">QqB")


class Framer:
    """Frames one replication stream and cuts it into the pages of `collector`: `feed` takes bytes;
    `scan` returns the pages that they complete; `flush` cuts the rest when no more bytes wait."""

    def __init__(self, collector: Collector, *, progress: LogProgress, streams: Streams) -> None:
        self.transactions = 0
        self.collector = collector
        self._progress = progress
        self._streams = streams
        self._native = NativeWalk.create()
        self._walk_rows = rows_ahead if self._native is None else self._native.rows
        # A streamed transaction that is being given out; nothing is framed until it is done.
        self._delivery: TransactionDelivery | None = None
        self._streaming: int | None = None  # the xid of the Stream Start block that we are in
        # `_data` from `_position` to `_end` is not framed yet; after it come `_chunks`.
        self._data = PADDING
        self._position = self._end = 0
        self._chunks: list[bytes] = []
        self._lacking = 0  # bytes until the next message is whole
        self._waiting = False  # whole messages may be in `_data`

    @property
    def holds(self) -> bool:
        """Whether `flush` would return a page."""
        return self.collector.page.count > 0

    @property
    def between(self) -> bool:
        return self.collector.transaction is BETWEEN

    @property
    def busy(self) -> bool:
        """Whether `scan` has more to do without being fed: a large transaction comes in pieces."""
        return self._delivery is not None or self._waiting

    def feed(self, data: bytes) -> None:
        self._chunks.append(data)
        self._lacking -= len(data)

    def flush(self, now: float) -> list[Page]:
        """The page in the making, if it has a change; `now` in seconds since 1970."""
        return self.collector.flush(now)

    def scan(self, now: float) -> list[Page]:
        """The pages that are complete now (seconds since 1970); of a large transaction one piece.
        Raises Malformed, and what an ErrorResponse in the stream says."""
        if self._delivery is not None:
            return self._deliver(self._delivery, now)
        if self._chunks and (self._lacking <= 0 or self._waiting):
            self._join()
        elif not self._waiting:
            return []
        pages: list[Page] = []
        self._waiting = False
        while self._delivery is None:
            self._take_transactions()
            self._take_rows()
            # Not before something follows: a page with the Commit says that its transaction ends.
            if self.collector.full and (self.between or self._position < self._end):
                if commit := self._next_commit():
                    pages += self._take(commit, now)
                pages += self.flush(now)
                continue
            piece = self._next()
            if piece is None:
                break
            pages += self._take(piece, now)
        return pages

    def _join(self) -> None:
        tail = self._data[self._position : self._end]
        self._data = b"".join((tail, *self._chunks, PADDING))
        self._position, self._end = 0, len(self._data) - len(PADDING)
        self._chunks.clear()

    def _next(self) -> bytes | None:
        """The next message if it is whole; else notes how many bytes it lacks."""
        position, left = self._position, self._end - self._position
        if left < 5:
            self._lacking = 5 - left
            return None
        length = int.from_bytes(self._data[position + 1 : position + 5], "big")
        if not 4 <= length <= _LONGEST:
            raise Malformed(
                f"a message of the replication stream has the length {length}", "postgres"
            )
        if left <= length:
            self._lacking = 1 + length - left
            return None
        self._position = position + 1 + length
        return self._data[position : self._position]

    def _next_commit(self) -> bytes | None:
        """The next message, if it is a whole Commit."""
        at = self._position + MESSAGE
        is_commit = self._streaming is None and self._data[at : at + 1] == b"C"
        return self._next() if is_commit and at < self._end else None

    def _take_transactions(self) -> None:
        native, collector = self._native, self.collector
        if native is None or self._streaming is not None:
            return
        if not collector.is_past or collector.full:
            return
        page, limits, start = collector.page, collector.limits, self._position
        run = native.transactions(
            self._data,
            start,
            self._end,
            most=limits.rows - page.count,
            room=limits.size - page.size,
            fresh=not page.count,
            era=collector.era,
        )
        if run is None:
            return
        self._position = run.position
        if run.keepalives:
            self._progress.count_keepalives(run.keepalives, asked=run.asked, clock=run.clock)
        if run.before_lsn:
            self._progress.committed(None, run.before_lsn)
        if not run.rows:
            collector.keep(self._data[start : run.position])
            return
        self._progress.opened(run.first.committed_at)
        page.used |= native.tables()
        row = run.first_row
        first = start if page.count else row
        collector.run(run, self._data[first : run.position], self._data[row - BEGIN : row])
        self.transactions += run.count
        self._progress.committed(run.last, run.end_lsn, run.count, run.done)

    def _take_rows(self) -> None:
        collector, start = self.collector, self._position
        if self._streaming is not None:
            self._rows_ahead(ENDLESS, ENDLESS, set())
            self._streams.append(self._streaming, self._data[start : self._position])
            return
        if self.between:
            return
        if collector.behind:
            self._progress.opened(collector.transaction.committed_at)
            collector.ordinal += self._rows_ahead(collector.behind, ENDLESS, set())
            if collector.behind:
                return
            start = self._position
        page, limits = collector.page, collector.limits
        full = start + limits.size - page.size
        number = self._rows_ahead(limits.rows - page.count, full, page.used)
        if number:
            self._progress.opened(collector.transaction.committed_at)
            collector.changes(number, self._data[start : self._position])

    def _rows_ahead(self, most: int, full: int, used: set[bytes]) -> int:
        self._position, number = self._walk_rows(
            self._data, self._position, self._end, most, full, used
        )
        return number

    # What is not a row is rare, one-row transactions apart.

    def _take(self, piece: bytes, now: float) -> list[Page]:
        outer = piece[:1]
        if outer == b"d":
            kind = piece[5:6]
            if kind == b"w" and len(piece) > MESSAGE:
                return self._message(piece, now)
            if kind == b"k" and len(piece) == 6 + _KEEPALIVE.size:
                end, sent, asked = _KEEPALIVE.unpack_from(piece, 6)
                clock = from_pg_time(sent) / 1e6
                self._progress.keepalive(end, asked=bool(asked), clock=clock)
                self.collector.keep(piece)  # decoders skip it
                return []
            raise Malformed(
                f"a CopyData of {len(piece)} bytes is no replication message", "postgres"
            )
        if outer == b"E":
            raise backend_error(piece[5:], "the replication stream ended")
        if outer in (b"c", b"C", b"Z"):
            raise failure("57P01", "", "the server ended the replication stream")
        if outer not in (b"N", b"S", b"A"):
            raise Malformed(f"the server sent {outer!r} in a replication stream", "postgres")
        return []

    def _message(self, piece: bytes, now: float) -> list[Page]:
        tag = piece[MESSAGE : MESSAGE + 1]
        if self._streaming is not None and tag != b"E":
            self._streams.append(self._streaming, piece)
            if tag == b"R":
                self._streams.described(self._streaming, piece[MESSAGE + 5 : MESSAGE + 9])
        elif tag == b"B" and len(piece) == MESSAGE + 1 + _BEGIN.size:
            lsn, committed_at, xid = _BEGIN.unpack_from(piece, MESSAGE + 1)
            transaction = Transaction(lsn, from_pg_time(committed_at), xid)
            self.collector.start(transaction, transaction.cursor, piece)
        elif tag == b"C" and len(piece) == MESSAGE + 9 + _COMMIT.size:
            self._ended(_COMMIT.unpack_from(piece, MESSAGE + 1)[1])
            self.collector.keep(piece)
        else:
            return self._other(piece, now)
        return []

    def _ended(self, end: int) -> None:
        last = self.collector.end()
        self.transactions += last is not None
        self._progress.committed(last, end)

    def _other(self, piece: bytes, now: float) -> list[Page]:
        collector = self.collector
        # A name that is not UTF-8 is for the decoder to judge.
        match message := messages.decode_message(piece[MESSAGE:], lenient=True):
            case messages.Relation():
                self._streams.outdated(piece[MESSAGE + 1 : MESSAGE + 5])
                return collector.relation(piece[MESSAGE:], piece, now)
            case messages.Type():
                collector.type(message, piece)
            case messages.OriginMessage():
                collector.keep(piece)
            case messages.Truncate():
                self._progress.opened(collector.transaction.committed_at)
                collector.truncate(message, piece)
            case messages.LogicalMessage():
                self._logical(message, piece)
            case messages.StreamStart():
                self._streaming = message.xid
            case messages.StreamStop():
                self._streaming = None
            case messages.StreamAbort():
                self._streams.abort(message.xid, message.subxid)
            case messages.StreamCommit():
                pages = self.flush(now)
                self._stream_commit(message)
                return pages
            case messages.TwoPhase(name):
                raise SettingsError(
                    f"the slot sends transactions in two phases ({name})",
                    "postgres.slot-two-phase",
                    hint="drop it and let penstock make one, or make one with two_phase = false",
                )
            case _:
                raise Malformed(
                    f"{type(message).__name__} came outside of a transaction", "postgres"
                )
        return []

    def _logical(self, message: messages.LogicalMessage, piece: bytes) -> None:
        if message.transactional:
            self._progress.opened(self.collector.transaction.committed_at)
            self.collector.logical(message, piece)
        elif message.prefix == HEARTBEAT_PREFIX:
            self._progress.committed(None, message.lsn)
        else:
            self.collector.start(BETWEEN, message_cursor(message.lsn))
            self.collector.logical(message, piece)
            self._ended(message.lsn)

    def _stream_commit(self, message: messages.StreamCommit) -> None:
        collector = self.collector
        transaction = Transaction(message.commit_lsn, message.committed_at, message.xid, True)
        collector.start(transaction, transaction.cursor)
        stream = self._streams.take(message.xid)
        if collector.skip == ENDLESS:
            stream.close()
            # How many changes it had no longer matters: all are before `after`.
            collector.ordinal = ENDLESS
            self._ended(message.end_lsn)
        else:
            self._progress.opened(message.committed_at)
            self._delivery = TransactionDelivery(stream, collector, end=message.end_lsn)

    def _deliver(self, delivery: TransactionDelivery, now: float) -> list[Page]:
        pages = delivery.step(now)
        if delivery.done:
            self._delivery, self._waiting = None, True
            self._ended(delivery.end)
        return pages
