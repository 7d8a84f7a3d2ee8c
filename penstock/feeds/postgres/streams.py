"""Transactions that are still in progress, collected per top-level xid until they end; then
delivered piece by piece.

Held in bounded memory; what is more goes to files without a name, which are gone with the process.
An aborted transaction vanishes, an aborted subtransaction's rows are left out at the end.
"""

import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.feeds.postgres.collecting import MESSAGE, Collector
from penstock.model.errors import Malformed, Unavailable
from penstock.model.page import Page
from penstock.wire.pgoutput.messages import LogicalMessage, Truncate, Type, decode_message

_PIECE = 2**20
# The length, the message's tag, the xid, and a row's relation OID.
_HEAD = struct.Struct(">xI25xB4s4s")
_PADDING = bytes(_HEAD.size)


class StreamedTransaction:
    """One transaction's messages as they came, oldest first: in memory, or after `spill` in a file.
    `aborted` are the raw xids of subtransactions that were rolled back; `current` the raw OIDs of
    relations whose latest description came in this stream; `held` the bytes in memory."""

    __slots__ = ("_file", "_is_spilled", "aborted", "current", "held")

    def __init__(self, folder: Path | None) -> None:
        # Not a context manager: it lives as long as the transaction.
        where = None if folder is None else str(folder)
        self._file = tempfile.SpooledTemporaryFile(dir=where)  # noqa: SIM115
        self._is_spilled = False
        self.held = 0
        self.aborted: set[bytes] = set()
        self.current: set[bytes] = set()

    def append(self, piece: bytes) -> int:
        """Takes whole messages; returns how many bytes went to the file. Raises Unavailable."""
        with _writing():
            self._file.write(piece)
        self.held += 0 if self._is_spilled else len(piece)
        return len(piece) if self._is_spilled else 0

    def spill(self) -> int:
        """Moves what is held to the file; returns its bytes. Raises Unavailable."""
        with _writing():
            self._file.rollover()
        moved, self.held, self._is_spilled = self.held, 0, True
        return moved

    def rewind(self) -> None:
        """Before the first `read`; nothing is appended any more."""
        with _writing():
            self._file.seek(0)

    def read(self, least: int) -> bytes:
        """The next bytes, some `least` or more unless the stream ends; cut anywhere. b"" = end."""
        data = self._file.read(max(least, _PIECE))
        if not data:
            self.close()
        return data

    def close(self) -> None:
        self._file.close()
        self.held = 0


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"cannot write an in-progress transaction to a file: {error.strerror}",
            "postgres",
            hint="make room in the folder of `spill`, or raise `memory`",
        ) from error


class Streams:
    """All transactions in progress: about `memory` bytes at most, and `spilled` ever in files."""

    def __init__(self, *, memory: int, folder: Path | None = None) -> None:
        self._memory, self._folder = memory, folder
        self._streams: dict[int, StreamedTransaction] = {}
        self.held = self.spilled = 0

    def __len__(self) -> int:
        return len(self._streams)

    def append(self, xid: int, piece: bytes) -> None:
        """Whole messages of the transaction `xid`, rows of its subtransactions among them."""
        if not piece:
            return
        stream = self._streams.get(xid)
        if stream is None:
            stream = self._streams[xid] = StreamedTransaction(self._folder)
        written = stream.append(piece)
        self.spilled += written
        self.held += len(piece) - written
        while self.held > self._memory:
            largest = max(self._streams.values(), key=lambda each: each.held)
            moved = largest.spill()
            self.held -= moved
            self.spilled += moved

    def described(self, xid: int, oid: bytes) -> None:
        """The stream of `xid` now has the latest description of this relation."""
        if xid in self._streams:
            self._streams[xid].current.add(oid)

    def outdated(self, oid: bytes) -> None:
        """A description of this relation came outside of all streams."""
        for stream in self._streams.values():
            stream.current.discard(oid)

    def abort(self, xid: int, subxid: int) -> None:
        """A transaction (both equal) or one of its subtransactions was rolled back."""
        if xid == subxid:
            self.take(xid).close()
        elif xid in self._streams:
            self._streams[xid].aborted.add(subxid.to_bytes(4, "big"))

    def take(self, xid: int) -> StreamedTransaction:
        """The transaction `xid`, which is no longer in progress; empty if nothing of it came."""
        stream = self._streams.pop(xid, None) or StreamedTransaction(self._folder)
        self.held -= stream.held
        stream.rewind()
        return stream

    def close(self) -> None:
        for xid in list(self._streams):
            self.take(xid).close()


class TransactionDelivery:
    """Reads one stream into the collector's pages; `done` when nothing is left. `end` is the
    transaction's end LSN. Rows with the xid of an aborted subtransaction are left out, and take no
    ordinals. Relations hold from where they stand in the transaction, and for others after it."""

    def __init__(self, stream: StreamedTransaction, collector: Collector, *, end: int) -> None:
        self.end = end
        self.done = False
        self._stream = stream
        self._collector = collector
        # Subtransactions that were rolled back.
        self._aborted = stream.aborted
        # The relations that hold when it is over, with those that it announced last.
        self._outside = collector.relations
        # `_data` from `_position` to `_end` is not framed yet.
        self._data, self._position, self._end = _PADDING, 0, 0
        self._lacking = 0  # bytes until the next message is whole
        collector.relations = dict(collector.relations)

    def step(self, now: float) -> list[Page]:
        """The pages of the next piece (about 1 MiB); the last one too when the stream ends."""
        more = self._stream.read(self._lacking)
        tail = self._data[self._position : self._end]
        self._data = b"".join((tail, more, _PADDING))
        self._position, self._end = 0, len(tail) + len(more)
        pages: list[Page] = []
        while True:
            # Not before something follows: the last page says that the transaction ends with it.
            if self._collector.full and self._position < self._end:
                pages += self._collector.flush(now)
            self._take_rows()
            if self._collector.full and self._position < self._end:
                continue
            piece = self._next()
            if piece is None:
                break
            pages += self._take(piece, now)
        if not more:
            if tail:
                raise Malformed("an in-progress transaction ended inside a message", "postgres")
            pages += self._collector.flush(now, ends=True)
            self._finish()
        return pages

    def _finish(self) -> None:
        self.done = True
        inside, self._collector.relations = self._collector.relations, self._outside
        for oid in self._stream.current:
            if oid in inside:
                self._outside[oid] = inside[oid]
        self._stream.close()

    def _next(self) -> bytes | None:
        position, left = self._position, self._end - self._position
        length = int.from_bytes(self._data[position + 1 : position + 5], "big")
        if left < 5 or left <= length:
            self._lacking = 1 + length - left if left >= 5 else 5
            return None
        self._position = position + 1 + length
        return self._data[position : self._position]

    def _take_rows(self) -> None:
        """All rows that come next, up to the page's limits or to one that was rolled back."""
        collector = self._collector
        page, limits, aborted = collector.page, collector.limits, self._aborted
        behind = collector.behind
        data, start, end = self._data, self._position, self._end
        full = start + limits.size - page.size
        most = behind or limits.rows - page.count
        used: set[bytes] = set() if behind else page.used
        unpack, position, left = _HEAD.unpack_from, start, most
        while position <= end - 5 and left and (behind or position < full):
            length, tag, xid, oid = unpack(data, position)
            after = position + 1 + length
            if after > end or tag not in {73, 85, 68} or xid in aborted:
                break
            used.add(oid)
            position = after
            left -= 1
        self._position = position
        if behind:
            collector.ordinal += most - left
        elif left < most:
            collector.changes(most - left, data[start:position])

    def _take(self, piece: bytes, now: float) -> list[Page]:
        collector = self._collector
        gone = piece[MESSAGE + 1 : MESSAGE + 5] in self._aborted
        match piece[MESSAGE : MESSAGE + 1]:
            case b"R":
                raw = b"R" + piece[MESSAGE + 5 :]
                return collector.relation(raw, piece, now)
            case b"T" | b"M" | b"Y" if not gone:
                message = decode_message(piece[MESSAGE:], streamed=True, lenient=True)
                if isinstance(message, Truncate):
                    collector.truncate(message, piece)
                elif isinstance(message, Type):
                    collector.type(message, piece)
                elif isinstance(message, LogicalMessage):
                    collector.logical(message, piece)
        return []
