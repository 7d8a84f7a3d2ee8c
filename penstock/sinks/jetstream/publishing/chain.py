"""A batch as a chain of plain messages, each of them accepted only after the one before it.

Every message names the event id of its predecessor (`Nats-Expected-Last-Msg-Id`), the first also
the sequence that the stream must be at. If anybody else stored something, or one of them is
refused, all after it are refused, the last too, and its answer says so. The first is answered as
well: when it was refused, nothing that is stored is from this chain. What is stored is always a
prefix of the batch: with one replica that is as exact as an atomic batch, and costs the server half
(measured: it stores each message once, not twice). With several replicas refused messages may go
unanswered, and one proposal for a batch is cheaper: no chain. Nor where the server is known to sync
always: it would sync each message, and a batch only once.
"""

from penstock.sinks.encoding.columns import Values
from penstock.sinks.encoding.message import Messages
from penstock.sinks.encoding.pieces import Behind, Edge
from penstock.sinks.jetstream.publishing.publisher import edges, framed, framing

# `edges` by fours: where the answer goes, what is expected, the end; and then the id before.
_FRAMES = framing(
    [Edge("edges")],
    [Edge("edges", 4), Behind("ids", "edges", 12), Edge("edges", 8)],
    ("ids", "edges"),
)
_SEQUENCE = b"Nats-Expected-Last-Sequence: %d\r\n"
_ID = b"Nats-Expected-Last-Msg-Id: "
_END = b"\r\n\r\n"


def may_end_anywhere(pieces: list[Messages]) -> bool:
    """Whether what is stored may end after any of the messages, and not only the last."""
    return all(piece.ends is None or bool(piece.ends.all()) for piece in pieces)


def chain_frames(
    pieces: list[Messages], *, opening: bytes, reply: bytes, expected: int, before: str | None
) -> bytes | memoryview:
    """The frames of a batch. `expected` is the stream's last sequence, `before` the id of its last
    message if we know it; `opening` and `reply` are where the answers to the first and to the last
    shall go, each with a space after it (a message alone is a last one)."""
    fence = _SEQUENCE % expected
    first = fence + (b"" if before is None else _ID)
    end = b"\r\n" if before is None else _END
    parts, last = [], len(pieces) - 1
    for number, piece in enumerate(pieces):
        begins, ends = number == 0, number == last
        values = (
            *edges(b"", opening, reply, reply, begins=begins, ends=ends),
            *edges(_ID, first, _ID, first, begins=begins, ends=ends),
            *edges(_END, end, _END, end, begins=begins, ends=ends),
            (before or "").encode(),
        )
        parts.append(framed(piece, _FRAMES, ids=piece.ids, edges=Values(values)))
        before = piece.ids[len(piece) - 1].as_py() if number < last else None
    return parts[0] if len(parts) == 1 else b"".join(parts)
