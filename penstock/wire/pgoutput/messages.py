"""The messages of pgoutput, protocol versions 1 and 2, and those of two-phase commit.

Names and fields follow the manual's chapter "Logical Replication Message Formats". A slot made
with two_phase sends the two-phase messages to a version 1 reader too. Rows on their way to Spark
don't pass here one by one (see rows.py); this is the definition that the fast path is tested with.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal

from penstock.errors import Malformed
from penstock.wire.pgoutput.reader import Reader

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
    "Origin",
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


@dataclass(frozen=True, slots=True)
class TupleData:
    """One row, in the order of its relation's columns."""

    columns: tuple[ColumnValue, ...]


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
class Origin:
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
    """A new row."""

    xid: int | None
    relation: int
    new: TupleData


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """A changed row. `old_kind` says what `old` holds: K the replica identity's columns (nulls
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
    """A streamed transaction is committed."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BeginPrepare:
    """A transaction starts that will be prepared."""

    prepare_lsn: int
    end_lsn: int
    prepared_at: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """PREPARE TRANSACTION; its rows came before, its outcome comes later."""

    flags: int
    prepare_lsn: int
    end_lsn: int
    prepared_at: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitPrepared:
    """COMMIT PREPARED."""

    flags: int
    commit_lsn: int
    end_lsn: int
    committed_at: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RollbackPrepared:
    """ROLLBACK PREPARED."""

    flags: int
    prepare_end_lsn: int
    rollback_end_lsn: int
    prepared_at: int
    rolled_back_at: int
    xid: int
    gid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPrepare:
    """A streamed transaction is prepared."""

    flags: int
    prepare_lsn: int
    end_lsn: int
    prepared_at: int
    xid: int
    gid: str


Message = (
    Begin | LogicalMessage | Commit | Origin | Relation | Type | Insert | Update | Delete | Truncate
    | StreamStart | StreamStop | StreamCommit | StreamAbort
    | BeginPrepare | Prepare | CommitPrepared | RollbackPrepared | StreamPrepare
)  # fmt: skip


def decode_message(data: bytes, *, streamed: bool = False) -> Message:
    """One pgoutput message, from its tag on.

    `streamed`: it came between Stream Start and Stream Stop, where rows, relations, types and
    logical messages carry an int32 xid behind their tag. Raises Malformed: an unknown tag, a
    message that ends early, bytes behind its end, names that are not UTF-8.
    """
    reader = Reader(data)
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


def _tuple(reader: Reader) -> TupleData:
    return TupleData(tuple(_column_value(reader) for _ in range(_count(reader.int16()))))


def _column_value(reader: Reader) -> ColumnValue:
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


def _begin(reader: Reader) -> Begin:
    return Begin(final_lsn=reader.lsn(), committed_at=reader.timestamp(), xid=reader.uint32())


def _logical_message(reader: Reader, xid: int | None) -> LogicalMessage:
    return LogicalMessage(
        xid=xid,
        transactional=bool(reader.uint8() & 1),
        lsn=reader.lsn(),
        prefix=reader.string(),
        content=reader.take(reader.int32()),
    )


def _commit(reader: Reader) -> Commit:
    return Commit(
        flags=reader.uint8(),
        commit_lsn=reader.lsn(),
        end_lsn=reader.lsn(),
        committed_at=reader.timestamp(),
    )


def _origin(reader: Reader) -> Origin:
    return Origin(commit_lsn=reader.lsn(), name=reader.string())


def _relation(reader: Reader, xid: int | None) -> Relation:
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


def _column(reader: Reader) -> Column:
    return Column(
        key=bool(reader.uint8() & 1),
        name=reader.string(),
        type_oid=reader.uint32(),
        type_modifier=reader.int32(),
    )


def _type(reader: Reader, xid: int | None) -> Type:
    return Type(
        xid=xid,
        oid=reader.uint32(),
        namespace=reader.string() or "pg_catalog",
        name=reader.string(),
    )


def _insert(reader: Reader, xid: int | None) -> Insert:
    relation = reader.uint32()
    _expect(reader.tag(), b"N")
    return Insert(xid=xid, relation=relation, new=_tuple(reader))


def _update(reader: Reader, xid: int | None) -> Update:
    relation = reader.uint32()
    kind = reader.tag()
    old = None
    if kind != b"N":
        old_kind = _old_kind(kind)
        old = _tuple(reader)
        _expect(reader.tag(), b"N")
        return Update(xid=xid, relation=relation, old_kind=old_kind, old=old, new=_tuple(reader))
    return Update(xid=xid, relation=relation, old_kind="", old=None, new=_tuple(reader))


def _delete(reader: Reader, xid: int | None) -> Delete:
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


def _truncate(reader: Reader, xid: int | None) -> Truncate:
    count = _count(reader.int32())
    return Truncate(
        xid=xid,
        options=reader.uint8(),
        relations=tuple(reader.uint32() for _ in range(count)),
    )


def _stream_start(reader: Reader) -> StreamStart:
    return StreamStart(xid=reader.uint32(), first=bool(reader.uint8()))


def _stream_commit(reader: Reader) -> StreamCommit:
    return StreamCommit(
        xid=reader.uint32(),
        flags=reader.uint8(),
        commit_lsn=reader.lsn(),
        end_lsn=reader.lsn(),
        committed_at=reader.timestamp(),
    )


def _stream_abort(reader: Reader) -> StreamAbort:
    return StreamAbort(xid=reader.uint32(), subxid=reader.uint32())


def _begin_prepare(reader: Reader) -> BeginPrepare:
    return BeginPrepare(
        prepare_lsn=reader.lsn(),
        end_lsn=reader.lsn(),
        prepared_at=reader.timestamp(),
        xid=reader.uint32(),
        gid=reader.string(),
    )


def _prepare(reader: Reader) -> Prepare:
    return Prepare(
        flags=reader.uint8(),
        prepare_lsn=reader.lsn(),
        end_lsn=reader.lsn(),
        prepared_at=reader.timestamp(),
        xid=reader.uint32(),
        gid=reader.string(),
    )


def _commit_prepared(reader: Reader) -> CommitPrepared:
    return CommitPrepared(
        flags=reader.uint8(),
        commit_lsn=reader.lsn(),
        end_lsn=reader.lsn(),
        committed_at=reader.timestamp(),
        xid=reader.uint32(),
        gid=reader.string(),
    )


def _rollback_prepared(reader: Reader) -> RollbackPrepared:
    return RollbackPrepared(
        flags=reader.uint8(),
        prepare_end_lsn=reader.lsn(),
        rollback_end_lsn=reader.lsn(),
        prepared_at=reader.timestamp(),
        rolled_back_at=reader.timestamp(),
        xid=reader.uint32(),
        gid=reader.string(),
    )


def _stream_prepare(reader: Reader) -> StreamPrepare:
    return StreamPrepare(
        flags=reader.uint8(),
        prepare_lsn=reader.lsn(),
        end_lsn=reader.lsn(),
        prepared_at=reader.timestamp(),
        xid=reader.uint32(),
        gid=reader.string(),
    )


# These carry the xid between Stream Start and Stream Stop.
_STREAMABLE: Mapping[bytes, Callable[[Reader, int | None], Message]] = {
    b"M": _logical_message,
    b"R": _relation,
    b"Y": _type,
    b"I": _insert,
    b"U": _update,
    b"D": _delete,
    b"T": _truncate,
}

_CONTROL: Mapping[bytes, Callable[[Reader], Message]] = {
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
