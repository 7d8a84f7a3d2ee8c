"""The frames of an atomic batch (ADR-50), which is stored whole or not at all; see `chain` for the
other way."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow.compute as pc

from penstock.sinks.jetstream.encoding.columns import Values
from penstock.sinks.jetstream.encoding.message import EVENT_ID, MSG_ID, Messages
from penstock.sinks.jetstream.encoding.pieces import Count, Pick
from penstock.sinks.jetstream.publishing.publisher import framed, framing

__all__ = ["whole_frames", "without_ids"]

_FRAMES = framing(
    [Pick("row", "reply")],
    [b"Nats-Batch-Sequence: ", Count(), Pick("row", "tail")],
    ("row", "reply", "tail"),
)


def whole_frames(
    pieces: Sequence[Messages], *, name: bytes, fence: bytes, reply: bytes
) -> bytes | memoryview:
    """The frames of a batch called `name`. The first message carries the header lines `fence`;
    `reply` is where the answer to the last shall go, with a space behind it."""
    start = b"\r\nNats-Batch-Id: %b\r\n" % name
    end = b"Nats-Batch-Commit: 1\r\n\r\n"
    # By a row's kind: the first, one in the middle, the last, and one that is first and last.
    replies = Values([b"", b"", reply, reply])
    tails = Values([
        start + fence + b"\r\n", start + b"\r\n", start + end, start + fence + end,
    ])  # fmt: skip
    total, at, parts = sum(map(len, pieces)), 0, []
    for messages in pieces:
        row = np.ones(len(messages), np.int32)
        row[0] = 1 if at else 0
        first = at + 1
        at += len(messages)
        if at == total:
            row[-1] = 3 if total == 1 else 2
        parts.append(framed(messages, _FRAMES, first, row=row, reply=replies, tail=tails))
    return parts[0] if len(parts) == 1 else b"".join(parts)


def without_ids(messages: Messages) -> Messages:
    """The same under another header, which the server does not look at."""
    headers = pc.replace_substring(
        messages.headers, f"{MSG_ID}: ", f"{EVENT_ID}: ", max_replacements=1
    )
    grown = len(EVENT_ID) - len(MSG_ID)
    return replace(messages, headers=headers, sizes=messages.sizes + grown)
