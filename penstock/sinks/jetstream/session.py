"""A process's open door to one sink: the connection, the stream, and the chosen delivery.

Sessions outlive a write and are kept per process and settings; a write borrows one alone, so two
threads that write at once have one each.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from penstock.model.errors import PenstockError, Rejected, SettingsError, Unavailable
from penstock.nats.api import JetStream
from penstock.nats.compression import Dictionaries, DictionaryBucket
from penstock.nats.connection import Connection
from penstock.sinks.jetstream.durability import synced
from penstock.sinks.jetstream.poison import DeadLetters, Suspensions
from penstock.sinks.jetstream.publishing.atomic import Atomic
from penstock.sinks.jetstream.publishing.flight import LARGEST, FlightLimits
from penstock.sinks.jetstream.publishing.individual import Individual
from penstock.sinks.jetstream.publishing.publisher import Publisher, nats_framing
from penstock.sinks.jetstream.settings import Delivery, JetStreamSettings
from penstock.sinks.jetstream.stream import TargetStream, choose, ensure, remembering
from penstock.sinks.messages.encode import Encoder
from penstock.sinks.messages.encoders import encoder
from penstock.sinks.messages.message import Messages
from penstock.sinks.messages.traces import Traces
from penstock.sinks.poison import faults
from penstock.sinks.poison.quarantine import PoisonSession
from penstock.sinks.poison.suspension import Table
from penstock.sinks.rows.flow import Flow
from penstock.sinks.rows.loop import Tally
from penstock.sinks.rows.part import Part
from penstock.sinks.settings import BatchSettings
from penstock.sinks.subject import Template, parse_template

T = TypeVar("T")

# Bytes of headers that a publisher adds to a message.
_RESERVED = 512
_ANY_SIZE = 1 << 40
_TOGETHER = 1000  # messages that are stored together at most
_FILL = 2 << 20  # bytes that messages of several changes wait for while the server is busy


@dataclass(slots=True)
class ChosenDelivery:
    """How an open session delivers. `reason`: why so. `durability_reason`: why what is
    acknowledged is synced; "" if that is not asked. `made`: whether opening made the stream.
    `chains`: whether a chain is as exact as an atomic batch, and cheaper."""

    delivery: Delivery
    reason: str = ""
    durability_reason: str = ""
    made: bool = False
    chains: bool = False


@dataclass(frozen=True, slots=True)
class PartEncoder:
    """A `PartWriter` that makes messages; `unlimited` is the encoder without the limit."""

    encoder: Encoder
    unlimited: Encoder
    limit: int

    def write(self, part: Part) -> list[Messages]:
        """The messages of all rows; the part is divided to store no more together than allowed."""
        messages = self.encoder.encode(part)
        if messages.longest() <= _TOGETHER:
            return [messages]
        middle = len(part) // 2
        return [*self.write(part[:middle]), *self.write(part[middle:])]

    def reason(self, row: Part) -> str:
        try:
            self.unlimited.encode(row)
        except Rejected:
            return faults.UNENCODABLE
        return faults.TOO_LARGE


class Session:
    """Opens when it is used first, and again after `close`."""

    def __init__(self, settings: JetStreamSettings) -> None:
        self.settings = settings
        self.template: Template = parse_template(settings.subject)
        self.connection = Connection(settings)
        self.api = JetStream(self.connection)
        self.flow = Flow(
            settings.pressure, settings.breaker
        )  # outlives connections: what was learnt of the server
        self._traces = Traces(settings.traceparent) if settings.traceparent else None
        # Why exactly once was given up, for as long as this session lives; "" while it was not.
        self._stepped_down = ""
        # From here on: what opening found. Valid while `stream` is not None, which comes last.
        self.stream: TargetStream | None = None
        self.chosen = ChosenDelivery(settings.delivery)
        self.poison: PoisonSession[Messages]
        self._streaks: dict[Table, int] = {}

    @property
    def is_open(self) -> bool:
        """True between `open` and `close`."""
        return self.stream is not None

    def open(self) -> None:
        """Connects, makes or verifies the stream, and chooses the delivery.

        Raises Unavailable, SettingsError.
        """
        self.close()
        self.connection = Connection(self.settings)
        self.connection.watch = self.flow.waiting
        self.api = JetStream(self.connection)
        self._connect()
        stream, made = ensure(self.connection, self.api, self.settings, self.template)
        self.chosen = self._choose(stream, made=made)
        limit = limit_of(stream.largest, self.connection)
        dictionaries: Dictionaries = {}
        if self.settings.dictionaries:
            dictionaries = DictionaryBucket(self.connection).newest(self.settings.stream)
        ids = self.chosen.delivery != "at-least-once"
        encoders = [
            encoder(
                self.settings,
                self.template,
                nats_framing(ids=ids, limit=most),
                dictionaries,
                self._traces,
            )
            for most in (limit, _ANY_SIZE)
        ]
        self.poison = PoisonSession(
            writer=PartEncoder(encoders[0], encoders[1], limit),
            letters=DeadLetters(self.connection, self.api, self.settings),
            suspensions=Suspensions(self.api, self.settings),
            streaks=self._streaks,
        )
        self.stream = self._remembering(stream)

    def _choose(self, stream: TargetStream, *, made: bool) -> ChosenDelivery:
        settings, name = self.settings, str(self.connection.info.get("server_name", ""))
        asks_sync, reason_of_sync = settings.durability == "fsync", ""
        if asks_sync or not stream.replicated:
            try:
                reason_of_sync = synced(settings, stream, name)
            except SettingsError:
                if asks_sync:
                    raise
        chains = not stream.replicated and not reason_of_sync
        choice = choose(settings.delivery, stream, self.connection.version)
        delivery, reason = choice.delivery, choice.reason
        if self._stepped_down and delivery == "exactly-once":
            delivery, reason = "deduplicated", self._stepped_down
        return ChosenDelivery(delivery, reason, reason_of_sync if asks_sync else "", made, chains)

    def _connect(self) -> None:
        started = time.monotonic()
        try:
            self.connection.open()
        except Unavailable:
            # A server that hangs still accepts connections, and then says nothing.
            self.flow.waiting(time.monotonic() - started)
            raise

    def _remembering(self, stream: TargetStream) -> TargetStream:
        if self.chosen.delivery != "deduplicated":
            return stream
        try:
            return remembering(self.api, stream, self.settings)
        except SettingsError as error:
            self.chosen.reason += (
                f"; {stream.name} keeps message ids for {stream.duplicate_window:g} s, and "
                f"cannot be changed ({error.message}): nats stream edit {stream.name} "
                "--dupe-window 2m"
            )
            return stream

    def publisher(self, tally: Tally) -> Publisher:
        """A new one that counts in `tally`, for an open session; it has to be resumed first."""
        settings, stream = self.settings, self.stream
        assert stream is not None
        if self.chosen.delivery == "exactly-once":
            return Atomic(
                tally,
                self.flow,
                stream=settings.stream,
                template=self.template,
                limits=_limits(settings),
                chains=self.chosen.chains,
                exclusive=stream.is_ours(self.template),
                replicated=stream.replicated,
            )
        return Individual(
            tally,
            self.flow,
            window=settings.window,
            window_bytes=settings.window_bytes,
            chained=self.chosen.delivery == "deduplicated" and not stream.replicated,
        )

    def step_down(self, reason: str) -> None:
        """Delivers by message ids from now on, although batches would be possible."""
        self.chosen.delivery, self.chosen.reason = "deduplicated", reason
        self._stepped_down = reason

    def remember(self) -> None:
        """What a delivery that was chosen after `open` needs of the stream; raises Unavailable."""
        if self.stream is not None:
            self.stream = self._remembering(self.stream)

    def asked(self, question: Callable[[JetStream], T]) -> T:
        """The answer to a question; asked once more over another connection if this one is lost.
        Raises Unavailable, SettingsError."""
        if not self.is_open:
            self.open()
        try:
            return question(self.api)
        except Unavailable:
            self.refresh()
            if self.is_open:  # it is there, and did not answer
                raise
        self.open()
        return question(self.api)

    def refresh(self) -> None:
        """Closes a session whose connection ended while it was not in use."""
        if self.stream is None:
            return
        try:
            self.connection.check()
        except PenstockError:
            self.close()

    def close(self) -> None:
        """Ends the connection; `open` begins anew."""
        self.stream = None
        self.connection.close()


def _limits(settings: JetStreamSettings) -> FlightLimits:
    """What the settings say of a batch; see `BatchSettings` for what their defaults mean."""
    if settings.messages == "batch":  # a message of several changes has the limits itself
        return FlightLimits(fill=_FILL)
    batch, usual, most = settings.batch, BatchSettings(), FlightLimits()
    return FlightLimits(
        size=LARGEST if batch.max_size == usual.max_size else batch.max_size,
        bytes=most.bytes if batch.max_bytes == usual.max_bytes else batch.max_bytes,
    )


def limit_of(largest: int, connection: Connection) -> int:
    """Bytes that one message may have, ours: what the publisher adds is kept free. `largest` is
    the stream's own limit, 0 for none."""
    payload = connection.max_payload
    return min(largest or payload, payload) - _RESERVED


_idle: dict[tuple[int, JetStreamSettings], list[Session]] = {}
_lock = threading.Lock()


@contextmanager
def borrowed(settings: JetStreamSettings, *, is_open: bool = False) -> Iterator[Session]:
    """An idle session of this process for these settings, or a new one, which is opened first if it
    `is_open`; given back open unless its user failed."""
    # By process: a forked child must not share its parent's socket.
    key = (os.getpid(), settings)
    with _lock:
        idle = _idle.setdefault(key, [])
        session = idle.pop() if idle else Session(settings)
    try:
        session.refresh()
        if is_open and not session.is_open:
            session.open()
        yield session
    except BaseException:
        session.close()
        raise
    with _lock:
        _idle[key].append(session)
