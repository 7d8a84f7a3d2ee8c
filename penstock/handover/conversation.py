"""What a task and the page server of a reader process send each other, over one socket."""

from dataclasses import dataclass

import ormsgpack

from penstock.errors import Malformed
from penstock.handover.split import Range
from penstock.handover.ticket import Ticket
from penstock.position import PartitionId, Place, Position

__all__ = [
    "DONE", "END", "FAILED", "PAGE", "REQUEST", "STORED", "Request", "read_stored",
    "stored_message",
]  # fmt: skip

# The first byte of each message. From the page server: a page's head (its payload is the next
# message), the end of what was asked for, or a pickled error. From the task: a request, what is
# stored, and the same when the sink is done, which is answered with an end.
PAGE, END, FAILED, REQUEST, STORED, DONE = b"p", b"e", b"f", b"r", b"s", b"d"


@dataclass(frozen=True, slots=True)
class Request:
    """What a task asks for, on the wire: the ticket without its address and key."""

    ranges: tuple[Range, ...]
    group: int
    groups: int
    seconds: float
    most: float

    @classmethod
    def of(cls, ticket: Ticket) -> "Request":
        """The request that a ticket entitles to."""
        return cls(ticket.ranges, ticket.group, ticket.groups, ticket.seconds, ticket.most)

    def pack(self) -> bytes:
        """As a message."""
        ranges = [
            (name, str(after) if after is not None else None, str(until))
            for name, after, until in self.ranges
        ]
        return REQUEST + ormsgpack.packb((ranges, self.group, self.groups, self.seconds, self.most))

    @classmethod
    def unpack(cls, message: bytes) -> "Request":
        """The inverse; raises Malformed."""
        if message[:1] != REQUEST:
            raise Malformed("a task sent an unknown request")
        ranges, group, groups, seconds, most = ormsgpack.unpackb(message[1:])
        found = tuple(
            Range(PartitionId(name), Place.parse(after) if after else None, Place.parse(until))
            for name, after, until in ranges
        )
        return cls(found, group, groups, seconds, most)


def stored_message(position: Position, *, done: bool) -> bytes:
    """A task's report that everything up to these places is durable."""
    places = [(name, place.cursor, place.ordinal) for name, place in position.items()]
    return (DONE if done else STORED) + ormsgpack.packb(places)


def read_stored(message: bytes) -> dict[PartitionId, Place]:
    """The inverse; raises Malformed."""
    if message[:1] not in (STORED, DONE):
        raise Malformed("a task sent a message out of turn")
    return {
        PartitionId(name): Place(cursor, ordinal)
        for name, cursor, ordinal in ormsgpack.unpackb(message[1:])
    }
