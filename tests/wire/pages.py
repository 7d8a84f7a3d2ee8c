"""Builds pages from raw pgoutput messages, as a replication feed would cut them.

`relation`, `insert` and the rest write messages as a server does, for cases that are easier to say
than to provoke.
"""

import struct
from collections.abc import Mapping, Sequence

from penstock.model.page import Page
from penstock.model.position import PartitionId, Place
from penstock.wire.pgoutput.context import HEARTBEAT_PREFIX, Context
from penstock.wire.pgoutput.frames import PG_EPOCH_US
from penstock.wire.pgoutput.lsn import format_lsn, message_cursor
from penstock.wire.pgoutput.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Truncate,
    Update,
    decode_message,
)

EPOCH = PG_EPOCH_US


def copy_data(data: bytes) -> bytes:
    return b"d" + struct.pack(">I", len(data) + 4) + data


def frame(message: bytes, *, start: int = 0, wal_end: int = 0, sent_at: int = 0) -> bytes:
    """CopyData with XLogData around one message."""
    return copy_data(b"w" + struct.pack(">QQq", start, wal_end, sent_at) + message)


def keepalive(*, wal_end: int = 0, reply: bool = False) -> bytes:
    return copy_data(b"k" + struct.pack(">QqB", wal_end, 0, reply))


def string(text: str) -> bytes:
    return text.encode() + b"\0"


def begin(lsn: int, *, at: int = EPOCH, xid: int = 7) -> bytes:
    return b"B" + struct.pack(">QqI", lsn, at - EPOCH, xid)


def commit(lsn: int, *, at: int = EPOCH) -> bytes:
    return b"C\0" + struct.pack(">QQq", lsn, lsn + 8, at - EPOCH)


def relation(
    oid: int,
    columns: Mapping[str, int] | Sequence[tuple[str, int]],
    *,
    key: Sequence[str] = (),
    name: str = "t",
    namespace: str = "public",
    identity: str = "d",
    xid: int | None = None,
) -> bytes:
    """Columns are name -> type OID; `key` names those with the replica identity's flag."""
    pairs = list(columns.items()) if isinstance(columns, Mapping) else list(columns)
    parts = [b"R", _xid(xid), struct.pack(">I", oid), string(namespace), string(name)]
    parts += [identity.encode(), struct.pack(">h", len(pairs))]
    for column, type_oid in pairs:
        parts += [bytes([column in key]), string(column), struct.pack(">Ii", type_oid, -1)]
    return b"".join(parts)


def tuple_data(cells: Sequence[object]) -> bytes:
    """None = null, ... = unchanged TOAST, text or bytes = text format."""
    parts = [struct.pack(">h", len(cells))]
    for cell in cells:
        if cell is None:
            parts.append(b"n")
        elif cell is ...:
            parts.append(b"u")
        else:
            data = cell if isinstance(cell, bytes) else str(cell).encode()
            parts.append(b"t" + struct.pack(">i", len(data)) + data)
    return b"".join(parts)


def insert(oid: int, cells: Sequence[object], *, xid: int | None = None) -> bytes:
    return b"I" + _xid(xid) + struct.pack(">I", oid) + b"N" + tuple_data(cells)


def update(
    oid: int,
    new: Sequence[object],
    *,
    key: Sequence[object] | None = None,
    old: Sequence[object] | None = None,
    xid: int | None = None,
) -> bytes:
    before = b""
    if key is not None:
        before = b"K" + tuple_data(key)
    if old is not None:
        before = b"O" + tuple_data(old)
    return b"U" + _xid(xid) + struct.pack(">I", oid) + before + b"N" + tuple_data(new)


def delete(
    oid: int,
    *,
    key: Sequence[object] | None = None,
    old: Sequence[object] | None = None,
    xid: int | None = None,
) -> bytes:
    before = b"K" + tuple_data(key) if key is not None else b"O" + tuple_data(old or ())
    return b"D" + _xid(xid) + struct.pack(">I", oid) + before


def truncate(oids: Sequence[int], *, xid: int | None = None) -> bytes:
    return b"T" + _xid(xid) + struct.pack(f">IB{len(oids)}I", len(oids), 0, *oids)


def logical_message(
    prefix: str, content: bytes, *, lsn: int, transactional: bool, xid: int | None = None
) -> bytes:
    head = b"M" + _xid(xid) + struct.pack(">BQ", transactional, lsn)
    return head + string(prefix) + struct.pack(">I", len(content)) + content


def _xid(xid: int | None) -> bytes:
    return b"" if xid is None else struct.pack(">I", xid)


def places(messages: Sequence[bytes], context: Context) -> list[Place]:
    """Where the changes in these messages are, counted independently of the decoder."""
    found: list[Place] = []
    lsn, ordinal = context.commit_lsn, context.ordinal
    for raw in messages:
        match decode_message(raw, streamed=context.streamed, lenient=True):
            case Begin(final_lsn=final):
                lsn, ordinal = final, 0
            case Commit():
                lsn = 0
            case Insert() | Update() | Delete():
                found.append(Place(format_lsn(lsn), ordinal))
                ordinal += 1
            case Truncate(relations=oids):
                found += [Place(format_lsn(lsn), ordinal + each) for each in range(len(oids))]
                ordinal += len(oids)
            case LogicalMessage(prefix=prefix) if prefix == HEARTBEAT_PREFIX:
                pass
            case LogicalMessage(transactional=True):
                found.append(Place(format_lsn(lsn), ordinal))
                ordinal += 1
            case LogicalMessage(lsn=own):
                found.append(Place(message_cursor(own), 0))
    return found


def page_of(
    messages: Sequence[bytes],
    *,
    context: Context | None = None,
    partition: str = "slot",
    captured_at: int = 0,
) -> Page:
    """A page with these messages as its payload; they hold at least one change."""
    context = context or Context()
    found = places(messages, context)
    return Page(
        partition=PartitionId(partition),
        first=found[0],
        last=found[-1],
        count=len(found),
        captured_at=captured_at,
        context=context.pack(),
        payload=b"".join(frame(message) for message in messages),
    )
