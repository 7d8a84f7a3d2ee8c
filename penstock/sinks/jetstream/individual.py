"""Publishing one by one: every message has its acknowledgement, many are in flight.

Order holds across a failure: what is not acknowledged is sent again from its first message, one at
a time until the first clean acknowledgement; those that were stored after all have a message id
that the server knows (`duplicate: true`).
"""

from collections import deque

import numpy as np
import orjson
import pyarrow as pa

from penstock.errors import Unavailable
from penstock.sinks.jetstream.api import ApiError, JetStream, error_of
from penstock.sinks.jetstream.columns import Numbers, Values
from penstock.sinks.jetstream.connection import Connection
from penstock.sinks.jetstream.flow import Flow
from penstock.sinks.jetstream.message import Messages
from penstock.sinks.jetstream.pieces import Count, Pick
from penstock.sinks.jetstream.protocol import Msg, status_of
from penstock.sinks.jetstream.publisher import LOOK, Tally, framed, framing

__all__ = ["Individual"]

_FRAMES = framing([Pick("one", "inbox"), Count(), b" "], [b"\r\n"], ("one", "inbox"))


class Individual:
    """A `Publisher` with a window of `window` messages and `window_bytes` bytes in flight.

    Messages are numbered from 0 in the order they were added: the last token of the reply subject.
    """

    def __init__(self, tally: Tally, flow: Flow, *, window: int, window_bytes: int) -> None:
        self._tally, self._flow = tally, flow
        self._window, self._window_bytes = window, window_bytes
        self._connection: Connection | None = None
        self._chunks: deque[tuple[int, Messages]] = deque()  # (number of its first, messages)
        self._added = self._sent = self._acknowledged = 0
        self._flight: deque[tuple[int, int]] = deque()  # (number behind its last, bytes)
        self._flying = 0
        self._early: set[int] = set()
        self._careful = False

    def fresh(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """See Publisher: all of it, for all that we know."""
        return batch

    def add(self, messages: Messages) -> None:
        """See Publisher."""
        self._chunks.append((self._added, messages))
        self._added += len(messages)

    @property
    def flying(self) -> int:
        """See Publisher."""
        return self._sent - self._acknowledged

    def poll(self) -> None:
        """See Publisher."""
        connection = self._open()
        self._take_all(connection, connection.receive(0))
        self._expect(connection)

    def _expect(self, connection: Connection) -> None:
        if self.flying:
            connection.expect(self._acknowledged)
            self._flow.waiting()

    def resume(self, connection: Connection, api: JetStream) -> None:
        """See Publisher."""
        self._connection = connection
        self._flow.forget()
        connection.watch = self._flow.waiting
        self._tally.resent += self._sent - self._acknowledged
        self._careful = self._sent > 0
        self._sent = self._acknowledged
        self._flight.clear()
        self._flying = 0
        # Acknowledged ahead of one that was not, and counted: they are sent and counted again.
        self._tally.published -= len(self._early)
        self._early.clear()

    def pump(self, *, drain: bool) -> None:
        """See Publisher."""
        connection = self._open()
        while True:
            held = self._flow.held(self.flying)
            sending = not held and self._send_next(connection)
            self._take_all(connection, connection.receive(0))
            if sending:
                continue
            if self._sent == self._added and (not drain or not self.flying):
                return
            if held or self.flying:
                self._await(connection)

    def probe(self) -> None:
        """See Publisher: one message."""
        connection = self._open()
        self._careful = True
        self._send_next(connection)
        while self.flying:
            self._await(connection)

    def _open(self) -> Connection:
        if self._connection is None:
            raise Unavailable("not connected")
        return self._connection

    def _await(self, connection: Connection) -> None:
        """Waits for an acknowledgement, or a while."""
        if not self.flying:  # a pause: silence is no fault
            connection.expect_anew()
        pause = self._flow.pause
        messages = connection.receive(min(pause, LOOK) if pause and not self.flying else LOOK)
        self._take_all(connection, messages)
        if not messages:
            self._expect(connection)

    def _send_next(self, connection: Connection) -> bool:
        piece = self._next_piece()
        if piece is None:
            return False
        first, size = self._sent, int(piece.sizes.sum())
        # Noted before it is sent: an error in the middle leaves it unacknowledged, not unsent.
        self._sent += len(piece)
        self._flight.append((self._sent, size))
        self._flying += size
        self._flow.sent()
        inbox = Values([connection.inbox.encode() + b"."])
        connection.send(framed(piece, _FRAMES, first, one=_zeros(len(piece)), inbox=inbox))
        return True

    def _next_piece(self) -> Messages | None:
        """What to send next, if the window has room for it."""
        if self._sent == self._added:
            return None
        first, chunk = self._chunk_of(self._sent)
        start = self._sent - first
        flying = self._sent - self._acknowledged
        window = 1 if self._careful else self._flow.scaled(self._window)
        count = min(len(chunk) - start, window)
        size = int(chunk.sizes[start : start + count].sum())
        full = flying + count > window
        if flying and (full or self._flying + size > self._flow.scaled(self._window_bytes)):
            return None
        return chunk.slice(start, start + count)

    def _chunk_of(self, number: int) -> tuple[int, Messages]:
        return next(chunk for chunk in self._chunks if chunk[0] + len(chunk[1]) > number)

    def _take_all(self, connection: Connection, messages: list[Msg]) -> None:
        tally = self._tally
        known, duplicates = self._acknowledged + len(self._early), tally.duplicates
        try:
            self._count(connection, messages)
        finally:
            while self._early and self._acknowledged in self._early:
                self._early.remove(self._acknowledged)
                self._acknowledged += 1
            taken = self._acknowledged + len(self._early) - known
            tally.published += taken - (tally.duplicates - duplicates)
            self._careful = self._careful and not taken
            if taken:
                self._flow.answered(connection.quiet_at, more=self.flying > 0)
            self._settle()

    def _count(self, connection: Connection, messages: list[Msg]) -> None:
        """Its loop runs once for every change: keep it lean."""
        skip = len(connection.inbox) + 1
        for subject, _, headers, payload in messages:
            token = subject[skip:]
            if not token.isdigit():
                continue
            number = int(token)
            if headers or b'"error"' in payload:
                self._raise(headers, payload)
            if b'"duplicate"' in payload:
                self._tally.duplicates += self._changes(number)
            if number == self._acknowledged:
                self._acknowledged += 1
            else:
                self._early.add(number)

    def _raise(self, headers: bytes, payload: bytes) -> None:
        if status_of(headers) == 503:
            raise Unavailable("no stream takes our subjects now")
        if payload:
            error = ApiError.of(orjson.loads(payload)["error"])
            raise error_of(error, f"{self._first_place()} was not stored")

    def _first_place(self) -> str:
        first, messages = self._chunk_of(self._acknowledged)
        return f"the change at {messages.place(self._acknowledged - first)} or soon behind it"

    def _changes(self, number: int) -> int:
        first, messages = self._chunk_of(number)
        return 1 if messages.counts is None else int(messages.counts[number - first])

    def _settle(self) -> None:
        """Forgets what is acknowledged."""
        while self._flight and self._flight[0][0] <= self._acknowledged:
            self._flying -= self._flight.popleft()[1]
        while self._chunks and self._chunks[0][0] + len(self._chunks[0][1]) <= self._acknowledged:
            _, messages = self._chunks.popleft()
            self._tally.position[messages.origin.partition] = messages.place(-1)
            # Messages were counted when they were acknowledged; what more is in them, now.
            self._tally.published += messages.changes - len(messages)
            self._tally.size += int(messages.sizes.sum())
            self._tally.batches += 1


def _zeros(count: int) -> Numbers:
    return np.zeros(count, np.int32)
