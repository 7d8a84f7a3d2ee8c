"""What a task and the page server of a reader process send each other, over one socket."""

from dataclasses import dataclass

import ormsgpack

from penstock.errors import Malformed
from penstock.handover.ticket import Ticket
from penstock.position import PartitionId, Place

__all__ = [
    "DONE", "END", "FAILED", "PAGE", "REQUEST", "STORED", "Request", "place_of", "stored_message",
]  # fmt: skip

# The first byte of each message. From the outlet: a page's head (its payload is the next message),
# the end of what was asked for, or a pickled error. From the task: a request, what is stored, and
# the same when the sink is done, which is answered with an end.
PAGE, END, FAILED, REQUEST, STORED, DONE = b"p", b"e", b"f", b"r", b"s", b"d"


@dataclass(frozen=True, slots=True)
class Request:
    """What a task asks for, on the wire: the ticket without what opened the door."""

    partition: PartitionId
    after: Place | None
    until: Place | None
    seconds: float
    most: float

    @classmethod
    def of(cls, ticket: Ticket) -> "Request":
        """The request that a ticket entitles to."""
        return cls(ticket.partition, ticket.after, ticket.until, ticket.seconds, ticket.most)

    def pack(self) -> bytes:
        """As a message."""
        places = (str(place) if place is not None else None for place in (self.after, self.until))
        return REQUEST + ormsgpack.packb((self.partition, *places, self.seconds, self.most))

    @classmethod
    def unpack(cls, message: bytes) -> "Request":
        """The inverse; raises Malformed."""
        if message[:1] != REQUEST:
            raise Malformed("a task asked the planner for something unknown")
        partition, after, until, seconds, most = ormsgpack.unpackb(message[1:])
        return cls(PartitionId(partition), place_of(after), place_of(until), seconds, most)


def place_of(text: str | None) -> Place | None:
    return Place.parse(text) if text is not None else None


def stored_message(partition: PartitionId, place: Place | None, *, done: bool) -> bytes:
    """A task's word that everything up to `place` is durable (nothing new: None)."""
    text = str(place) if place is not None else None
    return (DONE if done else STORED) + ormsgpack.packb((partition, text))
