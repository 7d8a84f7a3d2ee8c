"""The frames of an atomic batch (ADR-50), which is stored whole or not at all; see `chain` for the
other way."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from penstock.sinks.encoding.columns import Values
from penstock.sinks.encoding.message import EVENT_ID, Messages
from penstock.sinks.encoding.pieces import Count, Edge, RawPiece
from penstock.sinks.jetstream.headers import MSG_ID
from penstock.sinks.jetstream.publishing.publisher import edges, framed, framing

# `edges` by fours: where the answer goes, and the batch's own header lines.
_FRAMES = framing(
    [Edge("edges")],
    [b"Nats-Batch-Sequence: ", Count(), Edge("edges", 4)],
    ("edges",),
)


# The same for messages of which any may have header lines of its own: `lines`.
_FENCED = framing(
    [Edge("edges")],
    [RawPiece("lines"), b"Nats-Batch-Sequence: ", Count(), Edge("edges", 4)],
    ("edges", "lines"),
)


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
        replies = edges(b"", b"", reply, reply, begins=begins, ends=ends)
        values = Values((*replies, *edges(*tail, begins=begins, ends=ends)))
        if len(fences) > 1:
            lines = [fences.get(row, b"") for row in range(count - 1, count - 1 + len(messages))]
            column = pa.array(lines, pa.binary())
            parts.append(framed(messages, _FENCED, count, edges=values, lines=column))
        else:
            parts.append(framed(messages, _FRAMES, count, edges=values))
        count += len(messages)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def without_ids(messages: Messages) -> Messages:
    """The same under another header, which the server does not look at."""
    headers = pc.replace_substring(
        messages.headers, f"{MSG_ID}: ", f"{EVENT_ID}: ", max_replacements=1
    )
    grown = len(EVENT_ID) - len(MSG_ID)
    return replace(messages, headers=headers, sizes=messages.sizes + grown)
