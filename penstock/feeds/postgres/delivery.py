"""A large transaction that was collected while it ran, delivered at its commit, piece by piece.

Its rows carry the xid of their subtransaction: those of aborted ones are left out, and take no
ordinals. Relations hold from where they stand in the transaction, and for others after it.
"""

import struct

from penstock.feeds.postgres.collecting import MESSAGE, Collector
from penstock.feeds.postgres.streams import StreamedTransaction
from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.wire.pgoutput.messages import LogicalMessage, Truncate, Type, decode_message

# The length, the message's tag, the xid, and a row's relation OID.
_HEAD = struct.Struct(">xI25xB4s4s")
_PADDING = bytes(_HEAD.size)


class TransactionDelivery:
    """Reads one stream into the collector's pages; `done` when nothing is left.

    `end` is the transaction's end LSN, for whoever acknowledges it.
    """

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
            self._take_rows()
            if self._collector.full:
                pages += self._collector.flush(now)
                continue
            piece = self._next()
            if piece is None:
                break
            pages += self._take(piece, now)
        if not more:
            if tail:
                raise Malformed("an in-progress transaction ended inside a message")
            pages += self._collector.flush(now)
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
        """One whole message that is no row, or one of a row that was rolled back."""
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
