"""A shard: the subjects of one origin, whose last stored message says how far it got.

The stream is the truth. Reading the last message back gives the sequence that the next batch
expects (the fence) and the place behind which to go on.

That record is only as good as the order it was stored in. Batches cannot be stored with a hole, nor
can single messages in a chain (`individual`). On replicated streams single messages can, when one
of many in flight is refused and the process dies before it is sent again: stop a pipeline there in
order before changing it from deduplicated to exactly-once.
"""

from collections import deque
from dataclasses import dataclass, field

from penstock.errors import SettingsError
from penstock.nats.api import JetStream
from penstock.position import Place
from penstock.sinks.encoding.message import Messages, Origin, read_position
from penstock.sinks.subject import Template

__all__ = ["FlightBatch", "NotAlone", "Shard", "ShardState", "read_mark"]


class NotAlone(SettingsError):
    """The shard has messages of another origin, or of somebody who is not penstock, so its last
    message says nothing about us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardState:
    """How far a shard is. `stream_sequence` is the stream's last, `shard_sequence` the shard's;
    0 is nothing stored. `place` None: nothing that is still there. `emptied`: the whole stream is
    empty, and was not always."""

    stream_sequence: int
    shard_sequence: int
    place: Place | None
    emptied: bool = False


def read_mark(api: JetStream, stream: str, template: Template, origin: Origin) -> ShardState:
    """Reads the shard's last message back; raises NotAlone, Unavailable, SettingsError."""
    # The sequence first: what is stored between the two questions makes the fence refuse us,
    # and never lets us pass with a place that is too old.
    info = api.stream(stream)
    sequence = int(info["state"]["last_seq"]) if info else 0
    subject = template.shard(*origin)
    last = api.last(stream, subject)
    if last is None:
        emptied = info is not None and sequence > 0 and not info["state"]["messages"]
        return ShardState(stream_sequence=sequence, shard_sequence=0, place=None, emptied=emptied)
    position = read_position(last.headers)
    if position is None:
        raise NotAlone(
            f"the last message of {stream} under {subject} ({last.subject}, sequence "
            f"{last.sequence}) is not from penstock",
            hint="give the sink a stream or subjects of its own, or use delivery: deduplicated",
        )
    if position[0] != origin:
        raise shared(stream, subject, position[0], origin)
    return ShardState(stream_sequence=sequence, shard_sequence=last.sequence, place=position[1])


def shared(stream: str, subject: str, one: Origin, other: Origin) -> NotAlone:
    """Two origins write under one wildcard, so neither can tell its place by the last message."""
    return NotAlone(
        f"{one.backend}/{one.partition} and {other.backend}/{other.partition} both write to "
        f"{subject} of {stream}, so its last message is no record of either",
        hint="put {backend} and {partition} into the subject, each in a token of its own, or use "
        "delivery: deduplicated",
    )


@dataclass(slots=True)
class FlightBatch:
    """Messages in flight as one unit: all are stored, or none (unless it is a chain)."""

    number: int
    pieces: list[Messages]
    chain: bool = False  # a chain of messages, of which any prefix may be stored
    sent_at: float = 0.0  # monotonic seconds
    closed: bool = False  # the chain's first message was refused, or stored by somebody else
    messages: int = field(init=False)
    last: Place = field(init=False)  # where the shard is once this is stored

    def __post_init__(self) -> None:
        self.messages = sum(map(len, self.pieces))
        self.last = self.pieces[-1].place(-1)

    @property
    def changes(self) -> int:
        """How many changes are in its messages."""
        return sum(piece.changes for piece in self.pieces)


@dataclass(slots=True)
class Shard:
    """One origin's queue, what of it is in flight, and the fence it goes through."""

    origin: Origin
    queue: deque[Messages] = field(default_factory=deque)
    flight: deque[FlightBatch] = field(default_factory=deque)
    expected: int | None = None  # the sequence that the next batch expects; None: read it back
    behind: int = 0  # the shard's last sequence once everything in flight is stored
    stored: Place | None = None  # the last place known to be stored
    floor: int = 0  # the stream's sequence up to which we know what is stored
    known: bool = False  # `stored` was read back at least once
    sent: Place | None = None  # the last place that ever was in flight
    ids: bool = True  # whether the next batch carries message ids
    last_id: str | None = None  # of the last message in flight or stored, if it is surely the last
    prefix: bool = False  # a part of a chain may be stored since we lost sight of it
    refusal: int = 0  # the error code of the first batch in flight that was refused
    refused: int = 0  # how many of those in flight were

    @property
    def waiting(self) -> int:
        """Bytes that are queued."""
        return sum(messages.weight for messages in self.queue)

    def requeue(self) -> None:
        """What is in flight has to be sent again, unless reading back says otherwise."""
        self.prefix = bool(self.flight) and self.flight[0].chain and not self.flight[0].closed
        self.last_id = None
        for batch in reversed(self.flight):
            self.queue.extendleft(reversed(batch.pieces))
        self.flight.clear()
        self.expected, self.refused = None, 0

    def take(self, limit: int, size: int) -> list[Messages]:
        """The next pieces of the queue, up to `limit` messages and `size` bytes."""
        pieces: list[Messages] = []
        while self.queue and limit:
            head = self.queue[0]
            count = _fitting(head, limit, size, alone=not pieces)
            if not count:
                break
            self.queue.popleft()
            if count < len(head):
                self.queue.appendleft(head.slice(count, len(head)))
                head = head.slice(0, count)
            pieces.append(head)
            limit -= len(head)
            size -= head.weight
        return pieces

    def skip(self, place: Place) -> tuple[int, int]:
        """Drops from the queue what is at or before `place`: (changes, bytes) dropped."""
        count = size = 0
        while self.queue:
            head = self.queue.popleft()
            rest = head.after(place)
            count += head.changes - rest.changes
            size += head.weight - rest.weight
            if len(rest):
                self.queue.appendleft(rest)
                break
        return count, size


def _fitting(messages: Messages, limit: int, size: int, *, alone: bool) -> int:
    """How many of the first messages fit and may end a batch; those that would go alone always
    do, up to where one may end."""
    count = min(limit, len(messages))
    if count == len(messages) and messages.ends is None and messages.weight <= size:
        return count
    fits = messages.whole(int((messages.sizes[:count].cumsum() <= size).sum()))
    return fits or (messages.least() if alone else 0)
