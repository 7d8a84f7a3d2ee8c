"""Pull consumers: the messages of a stream from a place on, in order, without acknowledgements.

A consumer ends when nobody uses it for a time, with its stream, and with a restart of its server:
then `next` raises Unavailable, and its owner makes another.
"""

import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import orjson

from penstock.model.errors import SettingsError, Unavailable
from penstock.nats.api import JetStream
from penstock.nats.connection import Connection
from penstock.nats.protocol import Msg, RawHeaders, pub, status_of

_BATCH = 2000  # messages that a request asks for
_BYTES = 8 << 20  # and their bytes, which bounds memory here and what waits at the server
_EXPIRES, _HEARTBEAT = 5, 1  # seconds that a request lasts, and between signs of life meanwhile
_SILENCE = 5.0  # seconds without any of them, until the consumer counts as gone
_UNUSED = 30  # seconds after which the server drops a consumer that is not used
_SECOND = 1_000_000_000


class Delivered(NamedTuple):
    """A message from a consumer, as it is stored. `raw`: its headers. `delivery` is what the server
    says of it: DELIVERED.SEQUENCE.CONSUMER-SEQUENCE.TIME.PENDING[.TOKEN]."""

    sequence: int
    subject: str
    raw: bytes = b""
    payload: bytes = b""
    delivery: bytes = b""

    @classmethod
    def parse(cls, message: Msg, delivery: bytes) -> "Delivered":
        """Its reply subject is $JS.ACK.[DOMAIN.ACCOUNT.]STREAM.CONSUMER. and then `delivery`."""
        subject, _, headers, payload = message
        found = int(delivery.split(b".", 2)[1]), subject.decode(), headers, payload, delivery
        return tuple.__new__(cls, found)  # half the time of cls(...)

    @property
    def headers(self) -> RawHeaders:
        return RawHeaders(self.raw)

    @property
    def stored_at(self) -> int:
        """When it was stored: nanoseconds since 1970."""
        return int(self.delivery.split(b".")[3])

    @property
    def pending(self) -> int:
        """How many messages there were for the consumer after it."""
        return int(self.delivery.split(b".")[4])


class PullConsumer:
    """A consumer over an open connection, whose other messages stay for others. Making one makes
    it at the server; `config` says where it begins and what it filters, and `hint` what to do
    about a missing stream. Everything raises Unavailable, SettingsError."""

    def __init__(
        self, connection: Connection, stream: str, config: Mapping[str, Any], *, hint: str = ""
    ) -> None:
        self._connection = connection
        made = JetStream(connection).consumer(stream, {
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _UNUSED * _SECOND,
            **config,
        })  # fmt: skip
        if made is None:
            there = JetStream(connection).those_there()
            raise SettingsError(f"there is no stream {stream!r}", "nats", hint=there + hint)
        self.pending = int(made["num_pending"])  # messages after the last that was returned
        name = made["name"]
        self._next = f"{connection.api}.CONSUMER.MSG.NEXT.{stream}.{name}"
        self._reply = f"{connection.inbox}.{name}"
        self._own = self._reply.encode()
        self._sender = f".{stream}.{name}.".encode()
        self._arrived: deque[Delivered] = deque()
        self._wanted = 0  # messages that the request under way may still bring
        self._bytes = _BYTES
        self._asked_at = 0.0
        self._failure = ""

    def next(self, timeout: float, most: int = _BATCH) -> list[Delivered]:
        """Up to `most` messages; waits up to `timeout` seconds for the first. A request stays under
        way: what it brings later stays for the next call."""
        deadline = time.monotonic() + timeout
        while not self._arrived:
            if not self._wanted:
                self._ask_for_long()
            left = deadline - time.monotonic()
            self._wait(left)
            if left <= 0:
                break
        found = self._taken(most)
        if self.pending and not self._wanted and not self._arrived:
            with suppress(Unavailable):  # the next call raises it
                self._ask_for_long()  # what comes while the caller works
        return found

    def rest(self) -> list[Delivered]:
        found: list[Delivered] = []
        while self.pending or self._wanted:
            if not self._wanted:
                self._ask(no_wait=True)
            self._wait(_SILENCE)
            found += self._taken(_BATCH)
        return found

    def _ask_for_long(self) -> None:
        self._ask(expires=_EXPIRES * _SECOND, idle_heartbeat=_HEARTBEAT * _SECOND)

    def _ask(self, **request: Any) -> None:
        self._wanted, self._asked_at = _BATCH, time.monotonic()
        body = {"batch": _BATCH, "max_bytes": self._bytes, **request}
        self._connection.send(pub(self._next, self._reply, orjson.dumps(body)))

    def _wait(self, timeout: float) -> None:
        answered = self._connection.collect(self._take, timeout)
        # A large message on a slow line takes longer than heartbeats may.
        alive_at = max(self._asked_at, self._connection.received_at)
        if not answered and time.monotonic() - alive_at >= _SILENCE:
            self._failure = "silence"
        if self._failure and not self._arrived:
            raise Unavailable(f"a consumer has ended ({self._failure})", "nats")

    def _take(self, message: Msg) -> bool | None:
        """See `Connection.collect`: a message of the consumer, or a status of its request."""
        if message.subject != self._own:
            _, sender, delivery = message.reply.partition(self._sender)
            if not sender:
                return None
            self._wanted -= 1
            self._arrived.append(Delivered.parse(message, delivery))
            return True
        status = status_of(message.headers)
        # A heartbeat, or the end of a request (perhaps the last one) whose messages have all come.
        if status == 100 or b"Batch Completed" in message.headers:
            return True
        if status in (404, 408):  # there is no more: what was pending may have been deleted
            self.pending = 0
        elif b"MaxBytes" in message.headers:
            if self._wanted == _BATCH:  # one message is larger
                self._bytes *= 2
        elif status != 409 or self._wanted == _BATCH:
            self._failure = message.headers.partition(b"\r\n")[0].decode()
        self._wanted = 0
        return True

    def _taken(self, most: int) -> list[Delivered]:
        found = [self._arrived.popleft() for _ in range(min(most, len(self._arrived)))]
        if found:
            self.pending = found[-1].pending
        return found
