"""The messages of pgoutput as frozen values: one dataclass each, named as the manual names it.

Names and fields follow the chapter "Logical Replication Message Formats", protocol versions 1 and
2, and two-phase commit. LSNs are numbers, timestamps microseconds since 1970 UTC.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Literal


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
    """A new row."""

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
    Begin | LogicalMessage | Commit | OriginMessage | Relation | Type | Insert | Update | Delete
    | Truncate | StreamStart | StreamStop | StreamCommit | StreamAbort
    | BeginPrepare | Prepare | CommitPrepared | RollbackPrepared | StreamPrepare
)  # fmt: skip
