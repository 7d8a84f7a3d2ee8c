"""What the two ways of publishing share: their contract, their tally, the bytes of a publish."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from penstock.model.errors import Unavailable
from penstock.nats.api import JetStream
from penstock.nats.connection import Connection
from penstock.nats.protocol import HEADERS_START, Msg
from penstock.sinks.messages.formatter import Formatter
from penstock.sinks.messages.message import EVENT_ID, Framing, Messages
from penstock.sinks.messages.pieces import Piece, RawPiece, Size
from penstock.sinks.rows.columns import Columns
from penstock.sinks.rows.flow import Flow
from penstock.sinks.rows.loop import POLL, Tally
from penstock.sinks.rows.part import Part

# The server drops a message whose id it has had inside its duplicate window.
MSG_ID = "Nats-Msg-Id"


class Publisher(ABC):
    """Stores messages in order, over a connection that may break and be replaced.

    Owned by one write. `add` queues; `pump` sends; after any Unavailable, `resume` with an open
    connection and `pump` again: nothing is lost, nothing overtakes.
    """

    def __init__(self, tally: Tally, flow: Flow) -> None:
        self._tally, self._flow = tally, flow
        self._connection: Connection | None = None  # None: `resume` must give one

    @property
    @abstractmethod
    def flying(self) -> int:
        """Messages that were sent and not acknowledged."""

    @property
    def is_flying(self) -> bool:
        """Whether an answer is due."""
        return self.flying > 0

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Whether all that was added is acknowledged."""

    def fresh(self, part: Part) -> Part | None:
        """What of a part is not stored yet, as far as this can be known; counts the rest. A message
        of several changes can't be stored in part, so this has to be asked first.

        Raises as `pump` does.
        """
        return part

    def meet(self, part: Part) -> None:
        """Takes note of which sources changes are of that are added next."""
        return

    @abstractmethod
    def add(self, messages: Messages) -> None:
        """Queues messages; does no I/O."""

    @abstractmethod
    def poll(self) -> None:
        """Takes in the acknowledgements that are there, and sends what waited for them, or for the
        end of a pause; waits for nothing. Called now and then until `is_idle`.

        Raises as `pump` does: Unavailable too when there was none for too long.
        """

    @abstractmethod
    def pump(self, *, drain: bool) -> None:
        """Sends what is queued, as far as the window allows; with `drain` returns when all is
        acknowledged, without when all is on its way. Sends nothing while the flow pauses.

        Raises Unavailable, Rejected, SettingsError or LeaseLost.
        """

    @abstractmethod
    def probe(self) -> None:
        """Sends a batch, if any is queued, and returns when it is answered. Raises as `pump`."""

    @abstractmethod
    def resume(self, connection: Connection, api: JetStream) -> None:
        """Goes on over this connection from the first message that was not acknowledged."""

    @abstractmethod
    def release(self, api: JetStream) -> list[Messages]:
        """Gives up: returns what is not stored, as far as this can be known, in order. Raises
        Unavailable, and may then be called again."""

    @abstractmethod
    def _take_all(self, connection: Connection, messages: list[Msg]) -> None: ...

    @abstractmethod
    def _expect(self, connection: Connection) -> None:
        """Raises Unavailable where answers have been due for too long."""

    def _open(self) -> Connection:
        if self._connection is None:
            raise Unavailable("the sink has no connection to its server now", "jetstream")
        return self._connection

    def _await(self, connection: Connection) -> None:
        """Waits for an answer, or a while: at most as long as a pause while nothing flies."""
        pause, flying = self._flow.pause, self.is_flying
        if not flying:  # a pause: silence is no fault
            connection.expect_anew()
        messages = connection.receive(min(pause, POLL) if pause and not flying else POLL)
        self._take_all(connection, messages)
        if not messages:
            self._expect(connection)


def nats_framing(*, ids: bool = True, limit: int = 1 << 20) -> Framing:
    """`limit`: bytes that a message may have, by default as many as a server's default is; `ids`:
    whether the server shall look at them."""
    return Framing(
        start=HEADERS_START,
        event_id=MSG_ID if ids else EVENT_ID,
        limit=limit,
        remedy="raise max_payload of nats-server, or leave the large column out",
    )


def framing(
    reply: Sequence[Piece | bytes], extra: Sequence[Piece | bytes], names: Sequence[str]
) -> Formatter:
    """HPUB of each message, for `framed`. `reply` is the reply subject, empty or with a space
    after it; `extra` header lines and the empty line that ends the headers; they may use columns
    by `names`."""
    start = [b"HPUB ", RawPiece("subject"), b" ", *reply]
    first, count = len(start) + 4, 1 + len(extra)
    pieces = [
        *start, Size(first, first + count), b" ", Size(first, first + count + 1), b"\r\n",
        RawPiece("headers"), *extra, RawPiece("body"), b"\r\n",
    ]  # fmt: skip
    return Formatter(pieces, ("subject", "headers", "body", *names), batch=False)


def edges(*values: tuple[bytes, bytes, bytes, bytes], begins: bool, ends: bool) -> Sequence[bytes]:
    """For each `Edge` over messages of which the first or the last need not be the batch's: its
    values in the middle, of the first, of the last, and of an only one."""
    found: list[bytes] = []
    for middle, first, last, only in values:
        if begins:
            found += (middle, first, last, only) if ends else (middle, first, middle, first)
        else:
            found += (middle, middle, last, last) if ends else (middle,) * 4
    return found


def framed(messages: Messages, formatter: Formatter, number: int = 0, **columns: Any) -> memoryview:
    """The frames of all messages, ready for the socket; `number` is the `Count` of the first."""
    subject, headers, body = messages.texts.written
    given = Columns(len(messages), subject=subject, headers=headers, body=body, **columns)
    return memoryview(formatter.bytes(given, number))
