"""Reads a stream: every change once, in order, also over restarts of the server.

A consumer at the server that acknowledges nothing. When it is lost, or the connection to it, the
reader makes another after the last message that it has.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, Protocol

from penstock.consumer.tail.bodies import changes_of
from penstock.model.errors import Malformed, PenstockError, SettingsError, Unavailable
from penstock.model.position import Place
from penstock.model.settings import parse_duration
from penstock.nats.api import JetStream
from penstock.nats.compression import Decompressor, DictionaryBucket
from penstock.nats.connection import Connection
from penstock.nats.consumers import Delivered, PullConsumer
from penstock.nats.settings import NatsSettings
from penstock.process.backoff import delays
from penstock.process.closing import Closes


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A change: where and when JetStream stored the message that it is in, and the change as the
    layout `penstock` has it. Changes that share a message share its sequence and headers."""

    sequence: int
    subject: str
    stored_at: datetime
    headers: Mapping[str, str]
    body: Mapping[str, Any]

    @property
    def event_id(self) -> str:
        """The change's identity, the same on every replay."""
        return str(self.body["event_id"])

    @property
    def place(self) -> Place:
        """The change's place in its partition."""
        return Place.parse(str(self.body["position"]))

    @property
    def operation(self) -> str:
        """INSERT, UPDATE, DELETE, ..."""
        return str(self.body["operation"])

    @property
    def collection(self) -> str:
        """The table, or "" where there is none (a logical message)."""
        return str(self.body.get("collection") or "")

    @property
    def committed_at(self) -> datetime | None:
        """When the source committed the change."""
        text = self.body.get("committed_at")
        return datetime.fromisoformat(text) if text else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Since:
    """From the first message that was stored at `time` or later."""

    time: datetime


# A number is a stream sequence, the first to read; a negative one counts from the end: -10 are
# the last ten (of the whole stream: a subject filter may leave fewer).
Start = int | Since | Literal["new"]

ALL: Start = 1
NEW: Start = "new"


def parse_start(text: str, now: datetime) -> Start:
    """`all`, `new`, `1234` (a sequence), `-10` (the last ten), `10m` (ago), or an ISO 8601 time
    (UTC unless it says otherwise); raises SettingsError."""
    if text == "all":
        return ALL
    if text == "new":
        return NEW
    if text.removeprefix("-").isdecimal() and int(text) != 0:
        return int(text)
    try:
        if seconds := parse_duration(text):
            return Since(time=now - timedelta(seconds=seconds))
    except ValueError:
        pass
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            f"{text!r} is no place to start from",
            "consumer",
            hint="write all, new, 1234 (a sequence), -10 (the last ten), 10m (ago) or a time",
        ) from None
    return Since(time=time if time.tzinfo else time.replace(tzinfo=UTC))


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HINT = "the pipeline makes it when it starts; its name is sink.stream"


class OwnBodies(Protocol):
    """Decodes bodies of some messages in a form of its own."""

    def plain(self, message: Delivered) -> Sequence[Any]:
        """The changes of a message; none: they are to be decoded as all others."""
        ...


_NONE: Mapping[str, OwnBodies] = {}


class TailReader(Closes):
    """Reads one stream from a place on. Constructing one does no I/O; not for several threads.

    `server` is the URL of a NATS server (with its login), or several by commas; or the settings of
    a connection.
    """

    def __init__(
        self, server: str | NatsSettings, stream: str, *, subject: str = ">", start: Start = ALL
    ) -> None:
        if isinstance(server, str):
            server = NatsSettings.model_validate({"url": server})
        self.stream, self.subject = stream, subject
        self._connection = Connection(server, "penstock tail")
        self._consumer: PullConsumer | None = None
        self._reached = False  # whether there was a consumer, ever
        self._delays = delays(limit=1.0)
        self._start = start
        self._last = 0  # the sequence of the last message that arrived
        self.sequence = 0  # of the last returned message; 0 before the first
        self.malformed: Delivered | None = None  # what `read` raised Malformed for, last
        self._rest: list[Delivered] = []
        self._decompressor = Decompressor(self._dictionary)

    @property
    def pending(self) -> int | None:
        """How many messages there were after the last returned one, when the server sent it; None
        while that is not known."""
        return None if self._consumer is None else self._consumer.pending + len(self._rest)

    def fetch(self, count: int = 500, timeout: float = 1.0) -> list[Message]:
        """The changes of the next messages, at most `count` messages; waits at most `timeout`
        seconds for the first, and as long as a lost connection takes to open.

        Raises Unavailable (cannot reach the server, the first time; later it reconnects for
        ever and returns none), SettingsError (no such stream, wrong password; no such layout or
        dictionary: fetching again tries the same message), or Malformed for a message that is no
        change: fetching again continues after it.
        """
        return [
            Message(
                sequence=raw.sequence,
                subject=raw.subject,
                stored_at=_EPOCH + timedelta(microseconds=raw.stored_at // 1000),
                headers=raw.headers,
                body=body,
            )
            for raw, bodies in self.read(count, timeout)
            for body in bodies
        ]

    def read(
        self, count: int = 500, timeout: float = 1.0, own: Mapping[str, OwnBodies] = _NONE
    ) -> Iterator[tuple[Delivered, Sequence[Any]]]:
        """The same messages as they arrived, each with its changes; raises as `fetch` does. One is
        decoded when it is asked for: maps that all live until the last of them is used keep the
        garbage collector busy. Take all of them before you read on. `own`, by subject, may decode
        messages otherwise."""
        raws = self._rest or self._fetch(count, timeout)
        self._rest = []
        for place, raw in enumerate(raws):
            try:
                ours = own.get(raw.subject)
                bodies: Sequence[Any] = () if ours is None else ours.plain(raw)
                bodies = bodies or changes_of(raw.headers, raw.payload, self._decompressor)
            except PenstockError as error:
                # What came before it is returned first; the next call raises for it alone.
                is_over = isinstance(error, Malformed) and not place
                self._rest = raws[place + 1 if is_over else place :]
                if is_over:
                    self.sequence, self.malformed = raw.sequence, raw
                if isinstance(error, Unavailable):  # asking for a dictionary
                    self.close()
                    time.sleep(min(timeout, next(self._delays)))
                elif not place:
                    raise
                return
            self.sequence = raw.sequence
            yield raw, bodies

    def exactly(self, message: Delivered) -> Sequence[Mapping[str, Any]]:
        """The changes of a message once more, with documents that keep their text."""
        return changes_of(message.headers, message.payload, self._decompressor, exactly=True)

    def between(self, first: int, last: int) -> list[Message]:
        """The changes of the messages from one sequence to another that are there, asked for one by
        one, together: without a consumer, which the login of a pipeline may not make. One that is
        no change is passed over. Raises Unavailable, SettingsError."""
        found: list[Message] = []
        try:
            for one in self._connected().messages(self.stream, range(first, last + 1)):
                with suppress(Malformed):
                    found += (
                        Message(
                            sequence=one.sequence, subject=one.subject, headers=one.headers,
                            stored_at=datetime.fromisoformat(one.time), body=body,
                        )
                        for body in changes_of(one.headers, one.payload, self._decompressor)
                    )  # fmt: skip
        except PenstockError:
            self.close()
            raise
        return found

    def end(self) -> int:
        """The sequence of the stream's last message now; 0 when it is empty. Raises Unavailable,
        SettingsError."""
        try:
            found = self._connected().stream(self.stream)
        except PenstockError:
            self.close()
            raise
        if found is None:
            raise SettingsError(
                f"there is no stream {self.stream!r}", "consumer.stream-missing",
                hint=self._connected().those_there() + _HINT,
            )  # fmt: skip
        return int(found["state"]["last_seq"])

    def close(self) -> None:
        """Disconnects. The server removes the consumer after a time."""
        self._connection.close()
        self._consumer = None

    def _fetch(self, count: int, timeout: float) -> list[Delivered]:
        deadline = time.monotonic() + timeout
        while True:
            try:
                found = self._consuming().next(deadline - time.monotonic(), count)
            except PenstockError as error:
                self.close()
                if not self._reached or not isinstance(error, Unavailable):
                    raise
                if (left := deadline - time.monotonic()) <= 0:
                    return []
                time.sleep(min(left, next(self._delays)))
                continue
            if found:
                self._last = found[-1].sequence
            return found

    def _connected(self) -> JetStream:
        try:
            self._connection.check()
        except Unavailable:
            self.close()
            self._connection.open()
        return JetStream(self._connection)

    def _consuming(self) -> PullConsumer:
        if self._consumer is None:
            self._connected()
            config: dict[str, Any] = {"filter_subject": self.subject}
            if isinstance(self._start, Since) and not self._last:
                since = self._start.time.astimezone(UTC).isoformat()
                config |= {"deliver_policy": "by_start_time", "opt_start_time": since}
            else:
                config |= {"deliver_policy": "by_start_sequence", "opt_start_seq": self._first()}
            self._consumer = PullConsumer(self._connection, self.stream, config, hint=_HINT)
            self._reached, self._delays = True, delays(limit=1.0)
        return self._consumer

    def _dictionary(self, id: str) -> bytes | None:
        self._connected()
        return DictionaryBucket(self._connection).get(id)

    def _first(self) -> int:
        """The first sequence to read; pins what was relative to the end of the stream."""
        if self._last:
            return self._last + 1
        if self._start == "new":
            self._start = self.end() + 1
        elif isinstance(self._start, int) and self._start < 0:
            self._start = max(1, self.end() + 1 + self._start)
        assert isinstance(self._start, int)
        return self._start
