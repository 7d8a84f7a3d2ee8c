"""Publishing in batches behind a fence: exactly once, whoever else tries to write.

An atomic batch is stored whole or not at all (ADR-50, nats-server 2.12.1). Its first message states
which sequence it expects, so it is refused when anybody stored something since we looked. Batches
are pipelined only while the stream has one writer: each expects the sequence that the one before it
will end at. Then, with one replica, a batch is sent as a chain of plain messages (`chain`), which
costs the server half; whatever goes wrong is settled by reading back and an atomic batch.
"""

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from penstock.errors import LeaseLost, Unavailable
from penstock.nats.api import ApiError, JetStream, error_of
from penstock.nats.connection import Connection
from penstock.nats.protocol import Msg, status_of
from penstock.position import Place
from penstock.sinks.encoding.message import Messages, Origin, read_position
from penstock.sinks.encoding.part import Part
from penstock.sinks.flow.flow import Flow
from penstock.sinks.intake.order import behind
from penstock.sinks.jetstream.publishing.chain import SyncPace, chain_frames, may_end_anywhere
from penstock.sinks.jetstream.publishing.publisher import Tally, awaited
from penstock.sinks.jetstream.publishing.shard import (
    FlightBatch,
    Shard,
    ShardState,
    read_mark,
    shared,
)
from penstock.sinks.jetstream.publishing.whole import whole_frames, without_ids
from penstock.sinks.subject import Template

__all__ = ["LARGEST", "Atomic", "FlightLimits"]

LARGEST = 1000  # messages that the server takes in a batch
_WRONG_ID = 10070
_WRONG_SEQUENCE = {10071, 10164, _WRONG_ID}
_STORED_ID = 10201  # a message id of the batch is inside the duplicate window
# Abandoned or timed out (10176) and too many in flight (10210): ask what is stored as well.
_READ_BACK = _WRONG_SEQUENCE | {_STORED_ID, 10176, 10210}
_OPENING = b"f"  # before a batch's number: the answer to a chain's first message
# A chain whose last message was taken for stored already: if it is not, ids are in the way.
_DUPLICATE = {"code": 400, "err_code": _STORED_ID, "description": "duplicate message id"}
_START = Place("", 0)  # before every place
_ALONE = 2  # refusals in a row until messages go one by one
_PATIENCE = 5  # refusals in a row, without anything stored, that we take for bad luck


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightLimits:
    """`depth` batches in flight, each of at most `size` messages and `bytes` bytes.

    While one is in flight, what is queued waits for `company`, in bytes: each batch costs the
    server some milliseconds, whatever is in it. 0 waits for none.
    """

    depth: int = 4
    size: int = LARGEST
    bytes: int = 4 << 20
    company: int = 0


class Atomic:
    """A `Publisher`; one `Shard` per origin.

    While the stream has this one writer, batches chain on the stream's sequence and several are in
    flight. With several shards, or once somebody else was seen to write to the stream, a batch
    expects its shard's sequence, and is alone in flight for its shard. With a `pace` batches may be
    chains of plain messages, as long as it is not one of a stream that syncs each message.

    A stream that also takes other subjects (not `alone`) could get as many messages of others as a
    refused batch had: then the next one would fit. So there an atomic batch expects its shard's
    sequence as well; a replicated stream refuses that for all but one in flight, so that there
    none is in flight behind another.
    """

    def __init__(
        self,
        tally: Tally,
        flow: Flow,
        *,
        stream: str,
        template: Template,
        limits: FlightLimits | None = None,
        pace: SyncPace | None = None,
        alone: bool = False,
        replicated: bool = False,
    ) -> None:
        self._pace = pace
        self._tally, self._stream, self._template = tally, stream, template
        self._flow = flow
        self._limits = limits or FlightLimits()
        self._connection: Connection | None = None
        self._api: JetStream | None = None
        self._shards: dict[Origin, Shard] = {}
        self._alone = alone
        self._chained = not template.sharded and (alone or not replicated)
        self._careful = False
        self._refused = 0
        self._numbers = 0
        self._name = secrets.token_urlsafe(8).encode()

    def fresh(self, part: Part) -> Part | None:
        """See Publisher; raises NotAlone too."""
        shard = self._shard(part.origin)
        if not shard.known:
            self._look(shard)
        if shard.stored is None or shard.stored < part.first:
            return part
        rest = behind(part.batch, shard.stored)
        self._tally.duplicates += len(part) - len(rest)
        self._note(shard, shard.stored)
        return Part.of(rest) if len(rest) else None

    def add(self, messages: Messages) -> None:
        """See Publisher; raises NotAlone when a second origin would share the shard."""
        shard = self._shard(messages.origin)
        shard.queue.append(messages)
        if shard.stored is not None and messages.place(0) <= shard.stored:
            self._skip(shard, shard.stored)

    def _shard(self, origin: Origin) -> Shard:
        if origin not in self._shards:
            if self._shards and not self._template.sharded:
                first = next(iter(self._shards))
                raise shared(self._stream, self._template.shard(*first), first, origin)
            self._shards[origin] = Shard(origin)
        return self._shards[origin]

    @property
    def flying(self) -> int:
        """See Publisher."""
        return sum([batch.messages for shard in self._shards.values() for batch in shard.flight])

    @property
    def is_idle(self) -> bool:
        """See Publisher."""
        return not [shard for shard in self._shards.values() if shard.flight or shard.queue]

    def poll(self) -> None:
        """See Publisher."""
        connection = self._open()
        self._take_all(connection.receive(0))
        if not self.flying:  # so far, silence was no fault
            connection.expect_anew()
        if not self._flow.held(self.flying):
            self._send_some(connection, all_of_it=False)
        self._expect(connection)

    def _expect(self, connection: Connection) -> None:
        if self.flying:
            connection.expect(self._tally.batches)
            self._flow.waiting()

    def release(self, api: JetStream) -> list[Messages]:
        """Gives up: everything that is not stored.

        Somebody else's message may be the last of a shard, so ours are looked for one by one behind
        what was acknowledged. Raises Unavailable, and may then be called again.
        """
        for shard in self._shards.values():
            shard.requeue()
            subject = self._template.shard(*shard.origin)
            while shard.known and shard.queue:
                found = api.next(self._stream, subject, shard.floor + 1)
                if found is None:
                    break
                position = read_position(found.headers)
                if position is not None and position[0] == shard.origin:
                    self._skip(shard, position[1])
                shard.floor = found.sequence
        return [messages for shard in self._shards.values() for messages in shard.queue]

    def resume(self, connection: Connection, api: JetStream) -> None:
        """See Publisher."""
        self._connection, self._api = connection, api
        self._flow.forget()
        connection.watch = self._flow.waiting
        for shard in self._shards.values():
            self._tally.resent += sum(batch.messages for batch in shard.flight)
            self._careful = self._careful or bool(shard.flight)
            shard.requeue()
        self._refused = 0

    def pump(self, *, drain: bool) -> None:
        """See Publisher."""
        connection = self._open()
        while True:
            held = self._flow.held(self.flying)
            sent = not held and self._send_some(connection, all_of_it=drain)
            if not drain and not self._queued and not connection.has_messages:
                return  # all is on its way; answers are for `poll`
            self._take_all(connection.receive(0))
            if sent:
                continue
            waits = self._queued if drain else any(map(self._is_ready, self._shards.values()))
            if not waits and not (drain and self.flying):
                return
            if held or self.flying:
                self._await(connection)

    def probe(self) -> None:
        """See Publisher."""
        connection = self._open()
        while self._queued and not self.flying:
            for shard in self._shards.values():
                if not self.flying:
                    self._send_next(connection, shard)
        while self.flying:
            self._await(connection)

    def _send_some(self, connection: Connection, *, all_of_it: bool) -> bool:
        """A batch of each shard; False when there was none to send."""
        sent = False
        for shard in self._shards.values():
            if (all_of_it or self._is_ready(shard)) and self._send_next(connection, shard):
                sent = True
        return sent

    def _is_ready(self, shard: Shard) -> bool:
        """Whether what is queued is not to wait for company."""
        return bool(shard.queue) and (not shard.flight or shard.waiting >= self._limits.company)

    @property
    def _queued(self) -> bool:
        return any(shard.queue for shard in self._shards.values())

    def _open(self) -> Connection:
        if self._connection is None:
            raise Unavailable("not connected")
        return self._connection

    def _await(self, connection: Connection) -> None:
        """Waits for an answer, or a while."""
        messages = awaited(connection, self._flow, self.flying)
        self._take_all(messages)
        if not messages:
            self._expect(connection)

    def _send_next(self, connection: Connection, shard: Shard) -> bool:
        if not shard.queue or len(shard.flight) >= self._depth:
            return False
        if shard.expected is None:
            if shard.flight:
                return False
            self._look(shard)
            return True
        scaled = self._flow.scaled
        # A batch is refused as a whole; what is wrong with a message is only said to it alone.
        most = 1 if self._refused >= _ALONE else scaled(self._limits.size)
        pieces = shard.take(most, scaled(self._limits.bytes))
        chain = self._may_chain and shard.ids and may_end_anywhere(pieces)
        batch = FlightBatch(self._numbers, pieces, chain, time.monotonic())
        self._numbers += 1
        shard.flight.append(batch)
        shard.sent = batch.last
        data = self._encode(connection, shard, batch, shard.expected)
        shard.last_id = pieces[-1].ids[len(pieces[-1]) - 1].as_py() if shard.ids else None
        # In a chain the sequences of a batch are known before it is stored.
        shard.expected = shard.expected + batch.messages if self._chained else None
        shard.behind = shard.expected or 0
        self._flow.sent()
        connection.send(data)
        return True

    @property
    def _depth(self) -> int:
        return self._limits.depth if self._pipelined else 1

    @property
    def _may_chain(self) -> bool:
        return self._pipelined and self._pace is not None and not self._pace.syncs

    @property
    def _pipelined(self) -> bool:
        return self._chained and not self._careful

    def _look(self, shard: Shard) -> None:
        """Reads the shard back, drops what is stored, and checks that nobody else took over."""
        assert self._api is not None
        mark = read_mark(self._api, self._stream, self._template, shard.origin)
        self._guard(shard, mark)
        if mark.place is not None:
            self._skip(shard, mark.place)
        if shard.refusal in _WRONG_SEQUENCE and mark.stream_sequence != mark.shard_sequence:
            self._chained = False
        shard.ids = shard.refusal != _STORED_ID
        shard.expected = mark.stream_sequence if self._chained else mark.shard_sequence
        shard.behind = mark.shard_sequence
        shard.floor = mark.stream_sequence
        shard.stored, shard.known, shard.refusal = mark.place, True, 0
        shard.prefix, shard.last_id = False, None

    def _guard(self, shard: Shard, mark: ShardState) -> None:
        """Raises LeaseLost when the shard is neither where we left it nor at a place of ours.

        A chain may have ended anywhere in what was in flight: what follows is an atomic batch,
        whose refusal tells. So may a batch, when the server ran out of its storage limit in its
        middle: it keeps the beginning and answers nothing (2.15.1).
        """
        if not shard.known or mark.place in (None, shard.stored):
            return
        assert mark.place is not None
        if (shard.stored or _START) < mark.place <= (shard.sent or _START):
            return
        ends = [messages.place(-1) for messages in shard.queue]
        if mark.place in ends or (ends and mark.place >= ends[-1]):
            return
        raise _taken_over(shard, self._stream, mark.place)

    def _skip(self, shard: Shard, place: Place) -> None:
        """Drops what is stored: ours when we had sent it and only the answer was lost."""
        if shard.sent is not None:
            count, size = shard.skip(min(place, shard.sent))
            self._tally.published += count
            self._tally.size += size
        count, _ = shard.skip(place)
        self._tally.duplicates += count
        if shard.sent is not None or count:
            self._note(shard, place)

    def _note(self, shard: Shard, place: Place) -> None:
        self._tally.reach(shard.origin.partition, place)

    def _encode(
        self, connection: Connection, shard: Shard, batch: FlightBatch, expected: int
    ) -> bytes | memoryview:
        inbox = connection.inbox.encode()
        reply = b"%b.%d " % (inbox, batch.number)
        if batch.chain:
            opening = b"%b.%b%d " % (inbox, _OPENING, batch.number)
            return chain_frames(
                batch.pieces,
                opening=opening,
                reply=reply,
                expected=expected,
                before=shard.last_id,
            )
        return whole_frames(
            batch.pieces if shard.ids else [without_ids(piece) for piece in batch.pieces],
            name=b"%b-%d" % (self._name, batch.number),
            fence=self._fence(shard, expected),
            reply=reply,
        )

    def _fence(self, shard: Shard, expected: int) -> bytes:
        chain = b"Nats-Expected-Last-Sequence: %d\r\n" % expected if self._chained else b""
        if self._chained and self._alone:
            return chain
        last = shard.behind if self._chained else expected
        return (
            b"%bNats-Expected-Last-Subject-Sequence: %d\r\n"
            b"Nats-Expected-Last-Subject-Sequence-Subject: %b\r\n"
        ) % (chain, last, self._template.shard(*shard.origin).encode())

    def _take_all(self, messages: list[Msg]) -> None:
        for message in messages:
            token = message.subject.rpartition(b".")[2]
            opening, digits = token.startswith(_OPENING), token.removeprefix(_OPENING)
            for shard, batch in self._flying_as(int(digits)) if digits.isdigit() else ():
                if not opening:
                    self._take(shard, message)
                elif b'"error"' in message.payload or b'"duplicate"' in message.payload:
                    batch.closed = True

    def _flying_as(self, number: int) -> list[tuple[Shard, FlightBatch]]:
        """The batch in flight that has this number, if it still is."""
        return [
            (shard, batch)
            for shard in self._shards.values()
            for batch in shard.flight
            if batch.number == number
        ]

    def _take(self, shard: Shard, message: Msg) -> None:
        if status_of(message.headers) == 503:
            raise Unavailable(f"the stream {self._stream} does not answer now")
        assert self._connection is not None
        self._flow.answered(self._connection.quiet_at, more=self.flying > shard.flight[0].messages)
        answer = orjson.loads(message.payload)
        if failure := answer.get("error"):
            self._refuse(shard, failure)
            return
        if shard.flight[0].chain and answer.get("duplicate"):
            shard.flight[0].closed = True
            self._refuse(shard, _DUPLICATE)
            return
        if shard.flight[0].closed:
            raise _taken_over(shard, self._stream, shard.flight[0].last)
        # A chain cannot be stored out of order, so this answers the oldest in flight.
        batch = shard.flight.popleft()
        if batch.chain and self._pace is not None:
            self._pace.note(batch.messages, batch.sent_at, time.monotonic())
        shard.stored, shard.floor = batch.last, int(answer["seq"])
        if not self._chained:
            shard.expected = shard.floor
        shard.ids, self._careful, self._refused = True, False, 0
        self._note(shard, batch.last)
        self._tally.published += batch.changes
        self._tally.size += sum(piece.weight for piece in batch.pieces)
        self._tally.batches += 1

    def _refuse(self, shard: Shard, failure: Mapping[str, Any]) -> None:
        """Waits until all in flight are answered, then reads back: see `_look`."""
        error = ApiError.of(failure)
        if error.code not in _READ_BACK:
            raise error_of(error, f"a batch up to {shard.flight[0].last} was not stored")
        shard.refusal = shard.refusal or error.code
        shard.refused += 1
        if shard.refused < len(shard.flight):
            return
        self._tally.resent += sum(batch.messages for batch in shard.flight)
        shard.requeue()
        self._flow.forget()
        if not shard.prefix:
            shard.sent = shard.stored  # refused: if it is there after all, it is not from us
        self._careful = True
        self._refused += 1
        if self._refused > _PATIENCE:
            raise Unavailable(f"{self._stream} refuses our batches again and again: {error}")


def _taken_over(shard: Shard, stream: str, place: Place) -> LeaseLost:
    return LeaseLost(
        f"the shard of {shard.origin.partition} in {stream} is at {place}, and we left it at "
        f"{shard.stored}: somebody else writes to it, or it was rolled back",
        hint="one pipeline owns a partition; start again from what is stored",
    )
