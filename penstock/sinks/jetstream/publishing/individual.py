"""Publishing one by one: every message has its acknowledgement, many are in flight.

Order holds across a failure: what is not acknowledged is sent again from its first message, one at
a time until the first clean acknowledgement; those that were stored after all have a message id
that the server has (`duplicate: true`).

With message ids, and on a stream with one copy, order also holds when the server refuses one of
many in flight: each expects the id of the one before it to be the stream's last, so that what is
after a refused one is refused as well (10070). Not on replicated streams: on three servers of
2.15.1 a chain that breaks leaves the stream without any answer (observed), and 2.10 answers
`duplicate` for ids that it refused.
A replicated stream that changes its leader may also drop some of those in flight, and its successor
store later ones, which stay before them.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from penstock.model.errors import Unavailable
from penstock.nats.api import ApiError, JetStream, error_of
from penstock.nats.connection import Connection
from penstock.nats.protocol import Msg, headers_of, status_of
from penstock.sinks.jetstream.publishing.places import other_source
from penstock.sinks.jetstream.publishing.publisher import Publisher, framed, framing
from penstock.sinks.messages.message import Messages, read_bookmark
from penstock.sinks.messages.pieces import Behind, Count, Edge, Piece
from penstock.sinks.rows.columns import Values
from penstock.sinks.rows.flow import Flow
from penstock.sinks.rows.loop import Tally
from penstock.wire.eras import is_of_another

_INBOX: tuple[Piece | bytes, ...] = (Edge("edges"), Count(), b" ")
_FRAMES = framing(_INBOX, [b"\r\n"], ("edges",))
# The same after a message that is to be the stream's last, if we know which one that is. `edges` by
# fours: the inbox, the header line, the end; and then the id before.
_LINKED = framing(
    _INBOX, [Edge("edges", 4), Behind("ids", "edges", 12), Edge("edges", 8)], ("ids", "edges")
)
_LINE, _END = b"Nats-Expected-Last-Msg-Id: ", b"\r\n\r\n"
_BROKEN = b'"err_code":10070,'  # the stream's last message is another one


class _Added:
    """Messages that are not all acknowledged, numbered from 0 in the order they were added."""

    def __init__(self) -> None:
        self._chunks: deque[tuple[int, Messages]] = deque()  # (number of its first, messages)
        self.end = 0  # the number after the last

    def add(self, messages: Messages) -> None:
        self._chunks.append((self.end, messages))
        self.end += len(messages)

    def at(self, number: int) -> tuple[Messages, int]:
        """The chunk that has the message of that number, and where in it."""
        first, chunk = next(one for one in self._chunks if one[0] + len(one[1]) > number)
        return chunk, number - first

    def since(self, number: int) -> list[Messages]:
        return [one.slice(max(number - first, 0), len(one)) for first, one in self._chunks]

    def take_before(self, number: int) -> Iterator[Messages]:
        """Forgets the chunks that end before that number, and returns them."""
        while self._chunks and self._chunks[0][0] + len(self._chunks[0][1]) <= number:
            yield self._chunks.popleft()[1]


class _Flight:
    """What was sent, piece by piece, and how many `bytes` that is."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[int, int]] = deque()  # (number after its last, bytes)
        self.bytes = 0

    def add(self, end: int, size: int) -> None:
        self._pieces.append((end, size))
        self.bytes += size

    def land(self, number: int) -> None:
        while self._pieces and self._pieces[0][0] <= number:
            self.bytes -= self._pieces.popleft()[1]


class Individual(Publisher):
    """A window of `window` messages and `window_bytes` bytes in flight. The number of a message is
    the last token of its reply subject."""

    def __init__(
        self, tally: Tally, flow: Flow, *, window: int, window_bytes: int, chained: bool = False
    ) -> None:
        super().__init__(tally, flow)
        self._chained = chained
        self._refused: set[int] = set()  # in flight, and not stored because their chain was broken
        self._last_id: bytes | None = None  # of the message sent last over this connection
        self._window, self._window_bytes = window, window_bytes
        self._api: JetStream | None = None
        self._added = _Added()
        # Numbers before which all are: acknowledged <= sent <= added.
        self._sent = self._acknowledged = 0
        self._flight = _Flight()
        self._early: set[int] = set()  # acknowledged before one that was sent before them
        self._careful = False  # after a loss or a refusal: one at a time, until one is stored

    def add(self, messages: Messages) -> None:
        self._added.add(messages)

    @property
    def flying(self) -> int:
        return self._sent - self._acknowledged

    @property
    def is_idle(self) -> bool:
        return self._acknowledged == self._added.end

    def poll(self) -> None:
        connection = self._open()
        self._take_all(connection, connection.receive(0))
        if not self.flying:  # so far, silence was no fault
            connection.expect_anew()
        while not self._flow.held(self.flying) and self._send_next(connection):
            pass
        self._expect(connection)

    def _expect(self, connection: Connection) -> None:
        if self.flying:
            connection.expect(self._acknowledged)
            self._flow.waiting()

    def resume(self, connection: Connection, api: JetStream) -> None:
        self._connection, self._api = connection, api
        self._flow.forget()
        self._tally.resent += self.flying
        self._careful = self._sent > 0
        self._rewind()

    def release(self, api: JetStream) -> list[Messages]:
        self._rewind()
        return self._added.since(self._acknowledged)

    def _rewind(self) -> None:
        """Goes on from the first message that was not acknowledged."""
        self._sent = self._acknowledged
        self._flight = _Flight()
        # Acknowledged ahead of one that was not, and counted: they are sent and counted again.
        self._tally.published -= len(self._early)
        self._early.clear()
        self._refused.clear()
        self._last_id = None

    def pump(self, *, drain: bool) -> None:
        connection = self._open()
        while True:
            held = self._flow.held(self.flying)
            sending = not held and self._send_next(connection)
            self._take_all(connection, connection.receive(0))
            if sending:
                continue
            if self._sent == self._added.end and (not drain or not self.flying):
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

    def _send_next(self, connection: Connection) -> bool:
        if (piece := self._next_piece()) is None:
            return False
        first, size = self._sent, piece.weight
        data = self._framed(connection, piece, first)
        # Noted before it is sent: an error in the middle leaves it unacknowledged, not unsent.
        self._sent += len(piece)
        self._flight.add(self._sent, size)
        self._flow.sent()
        connection.send(data)
        return True

    def _framed(self, connection: Connection, piece: Messages, first: int) -> memoryview:
        """Ready to be sent; in a chain each says which message is to be the stream's last."""
        inbox = [connection.inbox.encode() + b"."] * 4
        if not (self._chained and self._flow.is_only_writer):
            return framed(piece, _FRAMES, first, edges=Values(inbox))
        before = None if self._careful else self._last_id
        line, end = (b"", b"\r\n") if before is None else (_LINE, _END)
        self._last_id = piece.keys.last_id.encode()
        values = (*inbox, _LINE, line, _LINE, line, _END, end, _END, end, before or b"")
        return framed(piece, _LINKED, first, ids=piece.keys.written_ids, edges=Values(values))

    def _next_piece(self) -> Messages | None:
        """What to send next, if the window has room for it."""
        if self._sent == self._added.end or self._refused:
            return None
        chunk, start = self._added.at(self._sent)
        flying = self.flying
        window = 1 if self._careful else self._flow.scaled(self._window)
        count = min(len(chunk) - start, window)
        size = int(chunk.sizes[start : start + count].sum())
        full = flying + count > window
        if flying and (full or self._flight.bytes + size > self._flow.scaled(self._window_bytes)):
            return None
        return chunk.slice(start, start + count)

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
            self._drop_acknowledged()
            self._mend()

    def _mend(self) -> None:
        """A chain broke: once all in flight are answered, what was refused is sent again."""
        if not self._refused or len(self._refused) + len(self._early) < self.flying:
            return
        self._tally.resent += len(self._refused)
        self._flow.forget()
        self._flow.interrupted()
        self._careful = True
        self._rewind()

    def _count(self, connection: Connection, messages: list[Msg]) -> None:
        """Its loop runs once for every change: keep it lean."""
        skip, are_ours = len(connection.inbox) + 1, False
        for subject, _, headers, payload in messages:
            token = subject[skip:]
            if not token.isdigit():
                continue
            number = int(token)
            if headers or b'"error"' in payload:
                if self._chained and _BROKEN in payload:
                    self._refused.add(number)
                    continue
                if status_of(headers) == 503:
                    raise Unavailable(
                        "no stream takes the sink's subjects now", "jetstream.no-stream"
                    )
                if payload:
                    self._refuse(orjson.loads(payload)["error"])
            if b'"duplicate"' in payload:
                if b'"seq":0,' in payload:
                    raise Unavailable(
                        "a message id is known, and its message is not stored yet", "jetstream"
                    )
                are_ours = are_ours or self._verified(messages, skip)
                self._tally.duplicates += self._changes(number)
            if number == self._acknowledged:
                self._acknowledged += 1
            else:
                self._early.add(number)

    def _verified(self, messages: list[Msg], skip: int) -> bool:
        """Whether all that is answered as a duplicate is of our sources: two servers count alike,
        so that changes of both may have one id. Raises OtherSource, Unavailable."""
        found = {
            (answer := orjson.loads(payload))["seq"]: (int(subject[skip:]), answer["stream"])
            for subject, _, _, payload in messages
            if b'"duplicate"' in payload and subject[skip:].isdigit()
        }
        assert self._api is not None
        stream = next(iter(found.values()))[1]
        for stored in self._api.messages(stream, found):
            own, row = self._added.at(found[stored.sequence][0])
            ours = read_bookmark(headers_of(own.headers[row].as_py() + b"\r\n"))
            theirs = read_bookmark(stored.headers)
            if ours and theirs and is_of_another(theirs[1].mark or {}, ours[1].mark or {}):
                raise other_source(
                    f"message {stored.sequence} of {stream}", ours[0],
                    "it has the id of one of our changes",
                )  # fmt: skip
        return True

    def _refuse(self, failure: Mapping[str, Any]) -> None:
        messages, row = self._added.at(self._acknowledged)
        place = f"the change at {messages.place(row)} or soon after it"
        raise error_of(ApiError.of(failure), f"{place} was not stored")

    def _changes(self, number: int) -> int:
        messages, row = self._added.at(number)
        return 1 if messages.counts is None else int(messages.counts[row])

    def _drop_acknowledged(self) -> None:
        self._flight.land(self._acknowledged)
        for messages in self._added.take_before(self._acknowledged):
            for run in messages.runs:
                self._tally.mark_stored(run.origin.partition, run.last)
            # Messages were counted when they were acknowledged; what more is in them, now.
            self._tally.published += messages.changes - len(messages)
            self._tally.size += messages.weight
            self._tally.count_batch(messages.changes)
