"""What the two ways of publishing share: their protocol, their tally, the bytes of a publish."""

from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from penstock.position import PartitionId, Place
from penstock.sinks.jetstream.api import JetStream
from penstock.sinks.jetstream.connection import Connection
from penstock.sinks.jetstream.dialect import BINARY, Column, join, sized
from penstock.sinks.jetstream.message import Messages

__all__ = ["LOOK", "Publisher", "Tally", "frames"]

LOOK = 0.1  # seconds between looks at how long an answer has been due


@dataclass(slots=True)
class Tally:
    """What one write has come to so far; see `penstock.sinks.Receipt`."""

    position: dict[PartitionId, Place] = field(default_factory=dict)
    published: int = 0
    duplicates: int = 0
    size: int = 0
    batches: int = 0
    resent: int = 0


class Publisher(Protocol):
    """Stores messages in order, over a connection that may break and be replaced.

    Owned by one write. `add` queues; `pump` sends; after any Unavailable, `resume` with an open
    connection and `pump` again: nothing is lost, nothing overtakes.
    """

    @property
    def flying(self) -> int:
        """Messages that were sent and not acknowledged."""
        ...

    def add(self, messages: Messages) -> None:
        """Queues messages; does no I/O."""
        ...

    def poll(self) -> None:
        """Takes in the acknowledgements that are there; sends nothing, waits for nothing.

        Raises as `pump` does: Unavailable too when there was none for too long.
        """
        ...

    def pump(self, *, drain: bool) -> None:
        """Sends what is queued, as far as the window allows; with `drain` returns when all is
        acknowledged, without when all is on its way. Sends nothing while the flow pauses.

        Raises Unavailable, Rejected, SettingsError or LeaseLost.
        """
        ...

    def probe(self) -> None:
        """Sends one batch, if anything is queued, and returns when it is answered. Raises as
        `pump` does."""
        ...

    def resume(self, connection: Connection, api: JetStream) -> None:
        """Goes on over this connection from the first message that was not acknowledged."""
        ...


def frames(messages: Messages, reply: Column, extra: Column) -> pa.Buffer:
    """HPUB of all messages, one behind the other, ready for the socket.

    `reply` is a column (or one value) of reply subjects, each empty or with a space behind it;
    `extra` of header lines with the empty line that ends the headers.
    """
    extra_size = len(extra) if isinstance(extra, bytes) else sized(extra)
    header_size: Column = pc.add(sized(messages.headers), extra_size)
    total = pc.add(header_size, sized(messages.bodies))
    array: Column = join(
        b"HPUB ", messages.subjects, b" ", reply, _digits(header_size), b" ", _digits(total),
        b"\r\n", messages.headers, extra, messages.bodies, b"\r\n",
    )  # fmt: skip
    data: pa.Buffer = array.buffers()[2]
    return data


def _digits(numbers: Column) -> Column:
    return numbers.cast(pa.string()).cast(BINARY)
