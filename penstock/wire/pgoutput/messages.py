"""The messages of pgoutput: frozen values, one dataclass each, and a decoder that makes them.

Names and fields follow the chapter "Logical Replication Message Formats", protocol versions 1 and
2. LSNs are numbers, timestamps microseconds since 1970 UTC. Rows on their way to Spark do not pass
here one by one (see scan.py); this is the definition that the fast path is tested with, and what
explains the bytes that it stumbles over.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final, Literal

from penstock.model.errors import Malformed
from penstock.wire.pgoutput.frames import ByteReader


class Unchanged(Enum):
    """The type of UNCHANGED: a TOASTed value that was not sent because it did not change."""

    UNCHANGED = "u"


UNCHANGED: Final = Unchanged.UNCHANGED


@dataclass(frozen=True, slots=True)
class Binary:
    """A column in its type's binary format (we never ask for it)."""

    data: bytes


# Null, not sent, in text format, or in binary format.
ColumnValue = None | Unchanged | bytes | Binary


# One row, in the order of its relation's columns.
TupleData = tuple[ColumnValue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """A transaction starts; it will commit at `final_lsn`. Timestamps: microseconds since 1970."""

    final_lsn: int
    committed_at: int
    xid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalMessage:
    """pg_logical_emit_message (the manual calls it Message). `xid` only while streaming."""

    xid: int | None
    transactional: bool
    lsn: int
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """The transaction's end. Its cursor is `commit_lsn`; `end_lsn` is what may be acknowledged."""

    flags: int
    commit_lsn: int
    end_lsn: int
    committed_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OriginMessage:
    """Where a replicated transaction was committed first."""

    commit_lsn: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a relation; `key` marks a part of the replica identity."""

    key: bool
    name: str
    type_oid: int
    type_modifier: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """A table as it is from now on. `replica_identity` is relreplident: d, n, f or i."""

    xid: int | None
    oid: int
    namespace: str
    name: str
    replica_identity: str
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Type:
    """The name of a type that is not built in."""

    xid: int | None
    oid: int
    namespace: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert:
    xid: int | None
    relation: int
    new: TupleData


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A changed row. `old_kind` is what `old` holds: K the replica identity's columns (nulls
    elsewhere), O the whole row, empty when it was not sent."""

    xid: int | None
    relation: int
    old_kind: Literal["", "K", "O"]
    old: TupleData | None
    new: TupleData


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """A row that is gone; `old_kind` as in Update."""

    xid: int | None
    relation: int
    old_kind: Literal["K", "O"]
    old: TupleData


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncate:
    """Tables emptied by one statement. Option bits: 1 CASCADE, 2 RESTART IDENTITY."""

    xid: int | None
    options: int
    relations: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStart:
    """What follows belongs to `xid`, which is still in progress."""

    xid: int
    first: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStop:
    """The end of a streamed block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamCommit:
    xid: int
    flags: int
    commit_lsn: int
    end_lsn: int
    committed_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamAbort:
    """A streamed (sub)transaction is rolled back; both ids are equal for the whole."""

    xid: int
    subxid: int


@dataclass(frozen=True, slots=True)
class TwoPhase:
    """A message of two-phase commit, which a slot of ours does not send: `name` is the manual's."""

    name: str


Message = (
    Begin | LogicalMessage | Commit | OriginMessage | Relation | Type | Insert | Update | Delete
    | Truncate | StreamStart | StreamStop | StreamCommit | StreamAbort | TwoPhase
)  # fmt: skip


def decode_message(data: bytes, *, streamed: bool = False, lenient: bool = False) -> Message:
    """One pgoutput message, from its tag on.

    `streamed`: it came between Stream Start and Stream Stop, where rows, relations, types and
    logical messages carry an int32 xid after their tag. Raises Malformed: an unknown tag, a
    message that ends early, bytes after its end, names that are not UTF-8 (unless
    `lenient`, which escapes them).
    """
    reader = ByteReader(data, lenient=lenient)
    tag = reader.tag()
    if tag in _TWO_PHASE:
        return TwoPhase(_TWO_PHASE[tag])
    if tag in _STREAMABLE:
        message = _STREAMABLE[tag](reader, reader.uint32() if streamed else None)
    elif kind := _CONTROL.get(tag):
        message = kind(**{each.name: _FIELDS[each.name](reader) for each in fields(kind)})
    else:
        raise Malformed(f"there is no pgoutput message {tag!r}", "wire")
    reader.end()
    return message


def _tuple(reader: ByteReader) -> TupleData:
    return tuple(_column_value(reader) for _ in range(_count(reader.int16())))


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
            raise Malformed(f"there is no column kind {kind!r}", "wire")


def _count(number: int) -> int:
    if number < 0:
        raise Malformed(f"a message counts {number} parts", "wire")
    return number


def _logical_message(reader: ByteReader, xid: int | None) -> LogicalMessage:
    return LogicalMessage(
        xid=xid,
        transactional=bool(reader.uint8() & 1),
        lsn=reader.lsn(),
        prefix=reader.string(),
        content=reader.take(reader.int32()),
    )


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
        raise Malformed(f"there is no replica identity {tag!r}", "wire")
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
        raise Malformed(f"a row message has {tag!r} where {wanted!r} belongs", "wire")


def _truncate(reader: ByteReader, xid: int | None) -> Truncate:
    count = _count(reader.int32())
    options = reader.uint8()
    return Truncate(
        xid=xid, options=options, relations=tuple(reader.uint32() for _ in range(count))
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

# These have the fields of their dataclass, in its order.
_CONTROL: Mapping[bytes, type[Any]] = {
    b"B": Begin,
    b"C": Commit,
    b"O": OriginMessage,
    b"S": StreamStart,
    b"E": StreamStop,
    b"c": StreamCommit,
    b"A": StreamAbort,
}
_FIELDS: Mapping[str, Callable[[ByteReader], Any]] = {
    "flags": ByteReader.uint8,
    "final_lsn": ByteReader.lsn,
    "commit_lsn": ByteReader.lsn,
    "end_lsn": ByteReader.lsn,
    "committed_at": ByteReader.timestamp,
    "xid": ByteReader.uint32,
    "subxid": ByteReader.uint32,
    "name": ByteReader.string,
    "first": ByteReader.boolean,
}

# A slot made with two_phase sends these, to a version 1 reader too.
_TWO_PHASE: Mapping[bytes, str] = {
    b"b": "BeginPrepare",
    b"P": "Prepare",
    b"K": "CommitPrepared",
    b"r": "RollbackPrepared",
    b"p": "StreamPrepare",
}


def schema_version(raw: bytes, key: Sequence[str] = ()) -> str:
    """What identifies a table's schema, 16 hexadecimal digits: the same for a Relation message in
    the log and for one that is built from the catalogue, so that the rows of a snapshot and the
    changes after it name one schema. `raw` is the message from its tag `R`, without a streamed xid.
    `key`: the columns of the key where the message marks all (REPLICA IDENTITY FULL)."""
    names = b"".join(name.encode(errors="surrogateescape") + b"\0" for name in key)
    return hashlib.blake2b(raw + names, digest_size=8).hexdigest()
