"""The frames of a batch: atomic (ADR-50), which is stored whole or not at all, or a chain.

A chain is of plain messages, each of them accepted only after the one before it. Every message
names the event id of its predecessor (`Nats-Expected-Last-Msg-Id`), the first also the sequence
that the stream must be at. If anybody else stored something, or one of them is refused, all after
it are refused, the last too, and its answer says so. The first is answered as well: when it was
refused, nothing that is stored is from this chain. What is stored is always a prefix of the batch:
with one replica that is as exact as an atomic batch, and costs the server half (measured: it stores
each message once, not twice). With several replicas refused messages may go unanswered, and one
proposal for a batch is cheaper: no chain. Nor where the server is known to sync always: it would
sync each message, and a batch only once.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from penstock.sinks.jetstream.publishing.publisher import MSG_ID, edges, framed, framing
from penstock.sinks.messages.formatter import Texts
from penstock.sinks.messages.message import EVENT_ID, Messages
from penstock.sinks.messages.pieces import Behind, Count, Edge, RawPiece
from penstock.sinks.rows.columns import Values

# `edges` by fours: where the answer goes, and the batch's own header lines.
_WHOLE = framing([Edge("edges")], [b"Nats-Batch-Sequence: ", Count(), Edge("edges", 4)], ("edges",))
# The same for messages of which any may have header lines of its own: `lines`.
_FENCED = framing(
    [Edge("edges")],
    [RawPiece("lines"), b"Nats-Batch-Sequence: ", Count(), Edge("edges", 4)],
    ("edges", "lines"),
)
# `edges` by fours: where the answer goes, what is expected, the end; and then the id before.
_CHAINED = framing(
    [Edge("edges")],
    [Edge("edges", 4), Behind("ids", "edges", 12), Edge("edges", 8)],
    ("ids", "edges"),
)
_SEQUENCE = b"Nats-Expected-Last-Sequence: %d\r\n"
_ID = b"Nats-Expected-Last-Msg-Id: "
_END = b"\r\n\r\n"


def whole_frames(
    pieces: Sequence[Messages], *, name: bytes, fences: Mapping[int, bytes], reply: bytes
) -> bytes | memoryview:
    """The frames of a batch called `name`. `fences` are the header lines of some messages, by their
    number from 0; `reply` is where the answer to the last shall go, with a space after it."""
    start = b"\r\nNats-Batch-Id: %b\r\n" % name
    end = b"Nats-Batch-Commit: 1\r\n\r\n"
    fence = fences.get(0, b"") if len(fences) == 1 else b""
    tail = start + b"\r\n", start + fence + b"\r\n", start + end, start + fence + end
    count, parts, last = 1, [], len(pieces) - 1
    for number, messages in enumerate(pieces):
        begins, ends = number == 0, number == last
        values = Values(edges((b"", b"", reply, reply), tail, begins=begins, ends=ends))
        if len(fences) > 1:
            lines = [fences.get(row, b"") for row in range(count - 1, count - 1 + len(messages))]
            column = pa.array(lines, pa.binary())
            parts.append(framed(messages, _FENCED, count, edges=values, lines=column))
        else:
            parts.append(framed(messages, _WHOLE, count, edges=values))
        count += len(messages)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def without_ids(messages: Messages) -> Messages:
    """The same under another header, which the server does not look at."""
    headers = pc.replace_substring(
        messages.headers, f"{MSG_ID}: ", f"{EVENT_ID}: ", max_replacements=1
    )
    more = len(EVENT_ID) - len(MSG_ID)
    weight = messages.weight + more * len(messages)
    texts = Texts.of(messages.subjects, headers, messages.bodies)
    return replace(messages, texts=texts, weight=weight)


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
        values = edges(
            (b"", opening, reply, reply), (_ID, first, _ID, first), (_END, end, _END, end),
            begins=begins, ends=ends,
        )  # fmt: skip
        values = (*values, (before or "").encode())
        parts.append(framed(piece, _CHAINED, ids=piece.keys.written_ids, edges=Values(values)))
        before = piece.keys.last_id if number < last else None
    return parts[0] if len(parts) == 1 else b"".join(parts)
