"""Publishing in batches behind a fence: exactly once, whoever else tries to write.

An atomic batch is stored whole or not at all (ADR-50, nats-server 2.12.1). Its first message has
the sequence that it expects (`fence`), so it is refused after anybody else's write. Batches follow
each other while the stream has one writer: each expects the sequence at which the one before it
ends. On a stream with one copy, such a batch is sent as a chain of plain messages (`chain`), at
half the cost for the server; after a failure, what is stored is read back and sent on atomically.
"""

import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import orjson

from penstock.model.errors import Unavailable
from penstock.model.machine import step
from penstock.nats.api import WRONG_SEQUENCE, ApiError, JetStream, error_of
from penstock.nats.connection import Connection
from penstock.nats.protocol import Msg, status_of
from penstock.sinks.jetstream.publishing.fence import Fence
from penstock.sinks.jetstream.publishing.flight import (
    TABLE,
    FlightBatch,
    FlightLimits,
    Queue,
    Sending,
    SendingEvent,
)
from penstock.sinks.jetstream.publishing.frames import (
    chain_frames,
    may_end_anywhere,
    whole_frames,
    without_ids,
)
from penstock.sinks.jetstream.publishing.places import StoredPlaces
from penstock.sinks.jetstream.publishing.publisher import Publisher
from penstock.sinks.messages.message import Messages
from penstock.sinks.rows.flow import Flow
from penstock.sinks.rows.loop import Tally
from penstock.sinks.rows.part import Part
from penstock.sinks.subject import Template

_WRONG_ID = 10070
_MOVED = WRONG_SEQUENCE | {_WRONG_ID}
_STORED_ID = 10201  # a message id of the batch is inside the duplicate window
# Abandoned or timed out (10176) and too many in flight (10210): ask what is stored as well.
_READ_BACK = _MOVED | {_STORED_ID, 10176, 10210}
_OPENING = b"f"  # before a batch's number: the answer to a chain's first message
# A chain whose last message was taken for stored already: if it is not, ids are in the way.
_DUPLICATE = {"code": 400, "err_code": _STORED_ID, "description": "duplicate message id"}
_ALONE = 2  # refusals in a row until messages go one by one
_history = lru_cache(16)(orjson.loads)  # a page's is mostly that of the page before
_PATIENCE = 5  # refusals in a row, without anything stored, that we take for bad luck


@dataclass(slots=True)
class _Refusals:
    """`code`: the error of the first refusal since a batch was stored. `answered`: how many of
    those in flight were answered since. `row`: how often batches were sent again, in a row."""

    code: int = 0
    answered: int = 0
    row: int = 0


class Atomic(Publisher):
    """One queue for all partitions: a batch may have messages of many.

    `exclusive`: the stream takes only subjects of the template; `replicated`: it has several
    copies. With `chains` batches may be chains of plain messages.
    """

    def __init__(
        self,
        tally: Tally,
        flow: Flow,
        *,
        stream: str,
        template: Template,
        limits: FlightLimits | None = None,
        chains: bool = False,
        exclusive: bool = False,
        replicated: bool = False,
    ) -> None:
        super().__init__(tally, flow)
        self._chains = chains
        self._limits = limits or FlightLimits()
        self._queue = Queue()  # added, and in no batch; after all that is in flight
        self._flight: deque[FlightBatch] = deque()  # sent, in the order of their numbers
        self._state = Sending.UNREAD  # changes by TABLE only
        self._fence = Fence(
            template,
            sole=exclusive and template.shard("a", "b") == template.wildcard,
            replicated=replicated,
            whole=flow.is_only_writer and (exclusive or not replicated),
        )
        self._progress = StoredPlaces(tally, stream, template)
        self._stream = stream
        self._refusals = _Refusals()
        self._numbers = 0  # of batches made: an answer names its batch's
        self._name = secrets.token_urlsafe(8).encode()

    def fresh(self, part: Part) -> Part | None:
        """See Publisher; raises OtherWriters too."""
        self._progress.meet(part.runs)
        if self._progress.unread:
            self._learn()
        left = part.after(self._progress.stored)
        self._tally.duplicates += len(part) - (len(left) if left else 0)
        self._progress.note(part.runs)
        return left

    def meet(self, part: Part) -> None:
        for run in part.runs:
            if (mark := part.mark(run)) is not None:
                self._progress.histories[run.origin] = run.last.cursor, _history(mark)

    def add(self, messages: Messages) -> None:
        """See Publisher; raises OtherWriters when a second origin would share the shard."""
        if self._progress.meet(messages.runs):
            self._queue.append(messages)
            self._progress.drop_stored(self._queue)
        else:
            self._queue.append(messages)

    @property
    def flying(self) -> int:
        return sum([batch.messages for batch in self._flight])

    @property
    def is_flying(self) -> bool:
        return bool(self._flight)

    @property
    def is_idle(self) -> bool:
        return not self._flight and not self._queue

    def poll(self) -> None:
        connection = self._open()
        self._take_all(connection, connection.receive(0))
        if not self._flight:  # so far, silence was no fault
            connection.expect_anew()
        if not self._flow.held(len(self._flight)):
            self._send_some(connection, all_of_it=False)
        self._expect(connection)

    def _expect(self, connection: Connection) -> None:
        if self._flight:
            connection.expect(self._tally.batches)
            self._flow.waiting()

    def release(self, api: JetStream) -> list[Messages]:
        """See Publisher. Another writer's message may be the last of a shard, so ours are looked
        for one by one after what was acknowledged."""
        self._put_back()
        self._progress.find_stored(api, self._queue)
        return list(self._queue)

    def resume(self, connection: Connection, api: JetStream) -> None:
        self._connection = connection
        self._progress.api = api
        self._flow.forget()
        self._tally.resent += self.flying
        self._enter(SendingEvent.LOST if self._flight else SendingEvent.RECONNECTED)
        self._put_back()
        self._refusals.row = 0

    def _enter(self, event: SendingEvent) -> None:
        self._state = step(TABLE, self._state, event)

    def _put_back(self) -> None:
        """What is in flight has to be sent again, unless reading back shows that it is stored."""
        for batch in reversed(self._flight):
            self._queue.put_back(batch.pieces)
        self._flight.clear()

    def pump(self, *, drain: bool) -> None:
        connection = self._open()
        while True:
            held = self._flow.held(len(self._flight))
            sent = not held and self._send_some(connection, all_of_it=drain)
            if not drain and not self._queue and not connection.has_messages:
                return  # all is on its way; answers are for `poll`
            self._take_all(connection, connection.receive(0))
            if sent:
                continue
            waits = bool(self._queue) if drain else self._is_ready
            if not waits and not (drain and self._flight):
                return
            if held or self._flight:
                self._await(connection)

    def probe(self) -> None:
        connection = self._open()
        while self._queue and not self._flight:
            self._send_next(connection)
        while self._flight:
            self._await(connection)

    def _send_some(self, connection: Connection, *, all_of_it: bool) -> bool:
        """Sends a batch; False when there was none to send."""
        return (all_of_it or self._is_ready) and self._send_next(connection)

    @property
    def _is_ready(self) -> bool:
        """Whether what is queued is sent without waiting for more."""
        return bool(self._queue) and (not self._flight or self._queue.weight >= self._limits.fill)

    def _send_next(self, connection: Connection) -> bool:
        if not self._queue or len(self._flight) >= (self._limits.depth if self._pipelined else 1):
            return False
        match self._state:
            case Sending.REFUSED:
                return False
            case Sending.UNREAD | Sending.DOUBTFUL:
                self._read_back()
                return True
            case _ if self._progress.unread:
                self._learn()
                return True
        batch = self._next_batch()
        data = self._encode(connection, batch)
        # Noted before it is sent: an error in the middle leaves it in doubt, not unsent.
        self._flight.append(batch)
        self._progress.sent(batch)
        last = batch.pieces[-1]
        self._fence.sent(batch, last.keys.last_id if self._with_ids else None)
        self._flow.sent()
        connection.send(data)
        return True

    def _next_batch(self) -> FlightBatch:
        scaled = self._flow.scaled
        # A batch is refused as a whole; only an answer to a single message has the reason.
        most = 1 if self._refusals.row >= _ALONE else scaled(self._limits.size)
        pieces = self._queue.take(most, scaled(self._limits.bytes))
        may_chain = self._chains and self._fence.whole and self._pipelined
        self._numbers += 1
        return FlightBatch(self._numbers, pieces, may_chain and may_end_anywhere(pieces))

    @property
    def _pipelined(self) -> bool:
        return self._state is Sending.FLOWING and self._fence.pipelined

    @property
    def _with_ids(self) -> bool:
        return self._refusals.code != _STORED_ID

    def _read_back(self) -> None:
        """Reads what is stored of all that is queued, drops it, and checks that no
        other writer took over; nothing is in flight."""
        state, others = self._progress.read_back(self._queue)
        if others and self._refusals.code in _MOVED:
            self._fence.whole = False
            self._flow.interrupted()
        self._fence.read(state)
        self._enter(SendingEvent.EMPTIED if state.emptied else SendingEvent.READ)

    def _learn(self) -> None:
        """Reads what is stored of partitions that are new. Batches may be in flight: when another
        writer stores something after this, the fence refuses what follows."""
        self._fence.learned(self._progress.learn(self._queue))

    def _encode(self, connection: Connection, batch: FlightBatch) -> bytes | memoryview:
        inbox, fence = connection.inbox.encode(), self._fence
        reply = b"%b.%d " % (inbox, batch.number)
        if batch.chain:
            return chain_frames(
                batch.pieces,
                opening=b"%b.%b%d " % (inbox, _OPENING, batch.number),
                reply=reply,
                expected=fence.sequence,
                before=fence.last_id,
            )
        return whole_frames(
            batch.pieces if self._with_ids else [without_ids(piece) for piece in batch.pieces],
            name=b"%b-%d" % (self._name, batch.number),
            fences={0: fence.first()} if fence.whole else dict(fence.lines(batch.pieces)),
            reply=reply,
        )

    def _take_all(self, connection: Connection, messages: list[Msg]) -> None:
        for message in messages:
            token = message.subject.rpartition(b".")[2]
            opening, digits = token.startswith(_OPENING), token.removeprefix(_OPENING)
            number = int(digits) if digits.isdigit() else 0
            for batch in [batch for batch in self._flight if batch.number == number]:
                if not opening:
                    self._take(connection, message)
                elif b'"error"' in message.payload or b'"duplicate"' in message.payload:
                    batch.closed = True

    def _take(self, connection: Connection, message: Msg) -> None:
        """The answer to a batch: to the oldest in flight, because none is stored before it."""
        if status_of(message.headers) == 503:
            raise Unavailable(f"the stream {self._stream} does not answer now", "jetstream")
        batch = self._flight[0]
        self._flow.answered(connection.quiet_at, more=len(self._flight) > 1)
        answer = orjson.loads(message.payload)
        if failure := answer.get("error"):
            self._refuse(failure)
        elif batch.chain and answer.get("duplicate"):
            batch.closed = True
            self._refuse(_DUPLICATE)
        elif batch.closed or self._state is Sending.REFUSED:
            raise self._progress.taken_over(*batch.end)
        else:
            self._store(self._flight.popleft(), int(answer["seq"]))

    def _store(self, batch: FlightBatch, sequence: int) -> None:
        self._enter(SendingEvent.STORED)
        self._progress.acknowledged(batch, sequence)
        self._fence.stored(batch, sequence)
        self._refusals = _Refusals()

    def _refuse(self, failure: Mapping[str, Any]) -> None:
        """Waits until all in flight are answered; then what is stored is read back."""
        error, refusals = ApiError.of(failure), self._refusals
        batch = self._flight[0]
        if error.code not in _READ_BACK:
            raise error_of(error, f"a batch up to {batch.end[1]} was not stored")
        if self._state is not Sending.REFUSED:
            refusals.code, refusals.answered = error.code, 0
        self._enter(SendingEvent.REFUSED)
        refusals.answered += 1
        if refusals.answered < len(self._flight):
            return
        self._tally.resent += self.flying
        if not batch.chain or batch.closed:
            self._progress.unsend(self._flight)  # if it is there after all, it is not from us
        self._put_back()
        self._enter(SendingEvent.SETTLED)
        self._flow.forget()
        refusals.row += 1
        if refusals.row > _PATIENCE:
            raise Unavailable(
                f"{self._stream} refuses batches again and again: {error}", "jetstream"
            )
