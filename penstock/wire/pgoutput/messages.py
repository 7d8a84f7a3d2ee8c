"""Bytes of pgoutput -> the values of model.py: one decoder per tag, and a table of them.

A slot made with two_phase sends the two-phase messages to a version 1 reader too. Rows on their
way to Spark do not pass here one by one (see scan.py); this is the definition that the
fast path is tested with, and what explains the bytes that it stumbles over.
"""

from collections.abc import Callable, Mapping
from typing import Literal

from penstock.model.errors import Malformed
from penstock.wire.pgoutput.model import (
    UNCHANGED,
    Begin,
    BeginPrepare,
    Binary,
    Column,
    ColumnValue,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    OriginMessage,
    Prepare,
    Relation,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    TupleData,
    Type,
    Unchanged,
    Update,
)
from penstock.wire.pgoutput.reader import ByteReader

__all__ = [
    "UNCHANGED",
    "Begin",
    "BeginPrepare",
    "Binary",
    "Column",
    "ColumnValue",
    "Commit",
    "CommitPrepared",
    "Delete",
    "Insert",
    "LogicalMessage",
    "Message",
    "OriginMessage",
    "Prepare",
    "Relation",
    "RollbackPrepared",
    "StreamAbort",
    "StreamCommit",
    "StreamPrepare",
    "StreamStart",
    "StreamStop",
    "Truncate",
    "TupleData",
    "Type",
    "Unchanged",
    "Update",
    "decode_message",
]


def decode_message(data: bytes, *, streamed: bool = False, lenient: bool = False) -> Message:
    """One pgoutput message, from its tag on.

    `streamed`: it came between Stream Start and Stream Stop, where rows, relations, types and
    logical messages carry an int32 xid after their tag. Raises Malformed: an unknown tag, a
    message that ends early, bytes after its end, names that are not UTF-8 (unless
    `lenient`, which escapes them).
    """
    reader = ByteReader(data, lenient=lenient)
    tag = reader.tag()
    if tag in _STREAMABLE:
        xid = reader.uint32() if streamed else None
        message = _STREAMABLE[tag](reader, xid)
    elif tag in _CONTROL:
        message = _CONTROL[tag](reader)
    else:
        raise Malformed(f"there is no pgoutput message {tag!r}")
    reader.end()
    return message


def _tuple(reader: ByteReader) -> TupleData:
    return TupleData(tuple(_column_value(reader) for _ in range(_count(reader.int16()))))


def _column_value(reader: ByteReader) -> ColumnValue:
    match reader.tag():
        case b"n":
            return None
        case b"u":
            return UNCHANGED
        case b"t":
            return reader.take(reader.int32())
        case b"b":
            return Binary(reader.take(reader.int32()))
        case kind:
            raise Malformed(f"there is no column kind {kind!r}")


def _count(number: int) -> int:
    if number < 0:
        raise Malformed(f"a message counts {number} parts")
    return number


def _begin(reader: ByteReader) -> Begin:
    return Begin(final_lsn=reader.lsn(), committed_at=reader.timestamp(), xid=reader.uint32())


def _logical_message(reader: ByteReader, xid: int | None) -> LogicalMessage:
    return LogicalMessage(
        xid=xid,
        transactional=bool(reader.uint8() & 1),
        lsn=reader.lsn(),
        prefix=reader.string(),
        content=reader.take(reader.int32()),
    )


def _commit(reader: ByteReader) -> Commit:
    return Commit(
        flags=reader.uint8(),
        commit_lsn=reader.lsn(),
        end_lsn=reader.lsn(),
        committed_at=reader.timestamp(),
    )


def _origin(reader: ByteReader) -> OriginMessage:
    return OriginMessage(commit_lsn=reader.lsn(), name=reader.string())


def _relation(reader: ByteReader, xid: int | None) -> Relation:
    return Relation(
        xid=xid,
        oid=reader.uint32(),
        # The manual: empty for pg_catalog.
        namespace=reader.string() or "pg_catalog",
        name=reader.string(),
        replica_identity=_replica_identity(reader.tag()),
        columns=tuple(_column(reader) for _ in range(_count(reader.int16()))),
    )


def _replica_identity(tag: bytes) -> str:
    if tag not in (b"d", b"n", b"f", b"i"):
        raise Malformed(f"there is no replica identity {tag!r}")
    return tag.decode()


def _column(reader: ByteReader) -> Column:
    return Column(
        key=bool(reader.uint8() & 1),
        name=reader.string(),
        type_oid=reader.uint32(),
        type_modifier=reader.int32(),
    )


def _type(reader: ByteReader, xid: int | None) -> Type:
    return Type(
        xid=xid,
        oid=reader.uint32(),
        namespace=reader.string() or "pg_catalog",
        name=reader.string(),
    )


def _insert(reader: ByteReader, xid: int | None) -> Insert:
    relation = reader.uint32()
    _expect(reader.tag(), b"N")
    return Insert(xid=xid, relation=relation, new=_tuple(reader))


def _update(reader: ByteReader, xid: int | None) -> Update:
    relation = reader.uint32()
    kind = reader.tag()
    old = None
    if kind != b"N":
        old_kind = _old_kind(kind)
        old = _tuple(reader)
        _expect(reader.tag(), b"N")
        return Update(xid=xid, relation=relation, old_kind=old_kind, old=old, new=_tuple(reader))
    return Update(xid=xid, relation=relation, old_kind="", old=None, new=_tuple(reader))


def _delete(reader: ByteReader, xid: int | None) -> Delete:
    relation = reader.uint32()
    kind = _old_kind(reader.tag())
    return Delete(xid=xid, relation=relation, old_kind=kind, old=_tuple(reader))


def _old_kind(tag: bytes) -> Literal["K", "O"]:
    if tag == b"K":
        return "K"
    _expect(tag, b"O")
    return "O"


def _expect(tag: bytes, wanted: bytes) -> None:
    if tag != wanted:
        raise Malformed(f"a row message has {tag!r} where {wanted!r} belongs")


def _truncate(reader: ByteReader, xid: int | None) -> Truncate:
    count = _count(reader.int32())
    return Truncate(
        xid=xid,
        options=reader.uint8(),
        relations=tuple(reader.uint32() for _ in range(count)),
    )


def _stream_start(reader: ByteReader) -> StreamStart:
    return StreamStart(xid=reader.uint32(), first=bool(reader.uint8()))


def _stream_commit(reader: ByteReader) -> StreamCommit:
    return StreamCommit(
        xid=reader.uint32(),
        flags=reader.uint8(),
        commit_lsn=reader.lsn(),
        end_lsn=reader.lsn(),
        committed_at=reader.timestamp(),
    )


def _stream_abort(reader: ByteReader) -> StreamAbort:
    return StreamAbort(xid=reader.uint32(), subxid=reader.uint32())


def _begin_prepare(reader: ByteReader) -> BeginPrepare:
    return BeginPrepare(
        prepare_lsn=reader.lsn(),
        end_lsn=reader.lsn(),
        prepared_at=reader.timestamp(),
        xid=reader.uint32(),
        gid=reader.string(),
    )


def _prepare(reader: ByteReader) -> Prepare:
    return Prepare(
        flags=reader.uint8(),
        prepare_lsn=reader.lsn(),
        end_lsn=reader.lsn(),
        prepared_at=reader.timestamp(),
        xid=reader.uint32(),
        gid=reader.string(),
    )


def _commit_prepared(reader: ByteReader) -> CommitPrepared:
    return CommitPrepared(
        flags=reader.uint8(),
        commit_lsn=reader.lsn(),
        end_lsn=reader.lsn(),
        committed_at=reader.timestamp(),
        xid=reader.uint32(),
        gid=reader.string(),
    )


def _rollback_prepared(reader: ByteReader) -> RollbackPrepared:
    return RollbackPrepared(
        flags=reader.uint8(),
        prepare_end_lsn=reader.lsn(),
        rollback_end_lsn=reader.lsn(),
        prepared_at=reader.timestamp(),
        rolled_back_at=reader.timestamp(),
        xid=reader.uint32(),
        gid=reader.string(),
    )


def _stream_prepare(reader: ByteReader) -> StreamPrepare:
    return StreamPrepare(
        flags=reader.uint8(),
        prepare_lsn=reader.lsn(),
        end_lsn=reader.lsn(),
        prepared_at=reader.timestamp(),
        xid=reader.uint32(),
        gid=reader.string(),
    )


# These carry the xid between Stream Start and Stream Stop.
_STREAMABLE: Mapping[bytes, Callable[[ByteReader, int | None], Message]] = {
    b"M": _logical_message,
    b"R": _relation,
    b"Y": _type,
    b"I": _insert,
    b"U": _update,
    b"D": _delete,
    b"T": _truncate,
}

_CONTROL: Mapping[bytes, Callable[[ByteReader], Message]] = {
    b"B": _begin,
    b"C": _commit,
    b"O": _origin,
    b"S": _stream_start,
    b"E": lambda _: StreamStop(),
    b"c": _stream_commit,
    b"A": _stream_abort,
    b"b": _begin_prepare,
    b"P": _prepare,
    b"K": _commit_prepared,
    b"r": _rollback_prepared,
    b"p": _stream_prepare,
}
