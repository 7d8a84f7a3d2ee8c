"""What is queued, what is in flight, and the states of exactly-once publishing, as a table.

Batches follow each other while what is stored is known and nothing is refused. After a refusal, and
after a connection that broke with batches in flight, what is stored is read back; then one atomic
batch goes alone, and when it is stored, batches follow each other again.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.model.machine import MachineEnum
from penstock.model.position import Place
from penstock.sinks.messages.message import Messages
from penstock.sinks.rows.part import Origin

LARGEST = 1000  # messages that the server takes in a batch


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightLimits:
    """`depth` batches in flight, each of at most `size` messages and `bytes` bytes.

    While one is in flight, what is queued waits for `fill`, in bytes: each batch costs the
    server some milliseconds, whatever is in it. 0 waits for none.
    """

    depth: int = 4
    size: int = LARGEST
    bytes: int = 4 << 20
    fill: int = 0


@dataclass(slots=True)
class FlightBatch:
    """Messages in flight as one unit: all are stored, or none (unless it is a chain)."""

    number: int
    pieces: list[Messages]
    chain: bool = False  # a chain of messages, of which any prefix may be stored
    closed: bool = False  # the chain's first message was refused, or was stored already
    messages: int = field(init=False)
    changes: int = field(init=False)
    lasts: dict[Origin, Place] = field(init=False)  # of each origin, once this is stored

    def __post_init__(self) -> None:
        self.messages = sum(map(len, self.pieces))
        self.changes = sum([piece.changes for piece in self.pieces])
        self.lasts = {run.origin: run.last for piece in self.pieces for run in piece.runs}

    @property
    def end(self) -> tuple[Origin, Place]:
        """The origin and the place of its last message."""
        run = self.pieces[-1].runs[-1]
        return run.origin, run.last


class Queue(deque[Messages]):
    """Messages that wait to be sent, in order: pieces, which have a message at least."""

    @property
    def weight(self) -> int:
        """Bytes."""
        return sum(piece.weight for piece in self)

    def put_back(self, pieces: list[Messages]) -> None:
        """Before all others."""
        self.extendleft(reversed(pieces))

    def take(self, limit: int, size: int) -> list[Messages]:
        """The next pieces, of up to `limit` messages and `size` bytes together."""
        pieces: list[Messages] = []
        while self and limit:
            head, there = self[0], len(self[0])
            if not (count := _fitting(head, there, limit, size, first=not pieces)):
                break
            self.popleft()
            if count < there:
                self.appendleft(head.slice(count, there))
                head = head.slice(0, count)
            pieces.append(head)
            limit -= count
            size -= head.weight
        return pieces

    def drop(self, stored: Mapping[Origin, Place | None]) -> tuple[int, int]:
        """Drops what is at or before the stored places: (changes, bytes) dropped."""
        changes = size = 0
        for _ in range(len(self)):
            piece = self.popleft()
            left = piece.after(stored)
            changes += piece.changes - left.changes
            size += piece.weight - left.weight
            if len(left):
                self.append(left)
        return changes, size


def _fitting(messages: Messages, there: int, limit: int, size: int, *, first: bool) -> int:
    """How many of the first fit and may end a batch; the `first` of a batch do, up to an end.
    `there`: how many there are."""
    count = min(limit, there)
    if count == there and messages.ends is None and messages.weight <= size:
        return count
    fits = messages.whole(int((messages.sizes[:count].cumsum() <= size).sum()))
    return fits or (messages.least() if first else 0)


class Sending(MachineEnum):
    UNREAD = "unread"  # what is stored has to be read; nothing of ours was in flight
    FLOWING = "flowing"  # batches follow each other
    REFUSED = "refused"  # a batch was refused: the other answers are waited for
    DOUBTFUL = "doubtful"  # what was in flight may be stored: it has to be read
    CAREFUL = "careful"  # one atomic batch is in flight at most


class SendingEvent(MachineEnum):
    READ = "read"  # what is stored was read back
    EMPTIED = "emptied"  # the stream had messages and has none; it may know their ids
    STORED = "stored"  # the oldest batch in flight was stored
    REFUSED = "refused"  # a batch in flight was refused
    SETTLED = "settled"  # and all others have been answered
    RECONNECTED = "reconnected"  # another connection; nothing was in flight
    LOST = "lost"  # another connection; the answers to what was in flight are lost


_S, _E = Sending, SendingEvent
TABLE: Mapping[tuple[Sending, SendingEvent], Sending] = {
    (_S.UNREAD, _E.READ): _S.FLOWING,
    (_S.UNREAD, _E.EMPTIED): _S.CAREFUL,
    (_S.UNREAD, _E.RECONNECTED): _S.UNREAD,
    (_S.FLOWING, _E.STORED): _S.FLOWING,
    (_S.FLOWING, _E.REFUSED): _S.REFUSED,
    (_S.FLOWING, _E.RECONNECTED): _S.UNREAD,
    (_S.FLOWING, _E.LOST): _S.DOUBTFUL,
    (_S.REFUSED, _E.REFUSED): _S.REFUSED,
    (_S.REFUSED, _E.SETTLED): _S.DOUBTFUL,
    (_S.REFUSED, _E.LOST): _S.DOUBTFUL,
    (_S.DOUBTFUL, _E.READ): _S.CAREFUL,
    (_S.DOUBTFUL, _E.EMPTIED): _S.CAREFUL,
    (_S.DOUBTFUL, _E.RECONNECTED): _S.DOUBTFUL,
    (_S.CAREFUL, _E.STORED): _S.FLOWING,
    (_S.CAREFUL, _E.REFUSED): _S.REFUSED,
    (_S.CAREFUL, _E.RECONNECTED): _S.DOUBTFUL,
    (_S.CAREFUL, _E.LOST): _S.DOUBTFUL,
}
