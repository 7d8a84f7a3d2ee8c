"""What a page of pgoutput carries besides its payload.

The payload is CopyData messages exactly as the wal sender wrote them: byte `d`, int32 length, then
`w` (XLogData: three int64 and one pgoutput message) or `k` (keepalive, skipped by the decoder).
A payload holds whole messages only. It may start inside a transaction; the context says which.
Relation messages inside the payload take effect as they come; those sent earlier are in the
context, but only the ones that the payload's rows use: a page costs the same with 1,000 tables.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import ormsgpack

from penstock.model.errors import Malformed

# Logical messages with this prefix keep a slot moving; they are no changes and take no ordinal.
HEARTBEAT_PREFIX = "penstock.heartbeat"

# d = domain, a = array, e = enum, c = composite, r = range, m = multirange, b = other base type
TypeKind = Literal["d", "a", "e", "c", "r", "m", "b"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeEntry:
    """A row of pg_type that is not built in: `inner` is a domain's base or an array's element."""

    kind: TypeKind
    name: str
    inner: int = 0
    delimiter: str = ","


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The state that a decoder starts a page in.

    `streamed`: row messages carry an int32 xid after their tag (protocol 2, in-progress
    transactions); such a payload has no Begin, Commit, Stream Start or Stream Stop messages, and
    belongs to one committed transaction. `commit_lsn`, `committed_at` (microseconds since 1970
    UTC), `xid` and `ordinal` (of the next change) describe the transaction that the payload starts
    in; `commit_lsn` is 0 when it starts between transactions. `relations` are raw Relation
    messages (from their tag `R`, without a streamed xid). `types` maps a type OID to its entry.
    `keys` maps a relation's OID to its primary key columns where the Relation message does not
    tell them (REPLICA IDENTITY FULL marks every column). `catalogs` maps a relation's OID to what
    the catalogue has of its columns, as plain JSON, for readers of lines. `ends`: the transaction
    of a streamed payload ends with it, as far as that is known. `mark`: that of each change.
    """

    streamed: bool = False
    commit_lsn: int = 0
    committed_at: int = 0
    xid: int = 0
    ordinal: int = 0
    relations: tuple[bytes, ...] = ()
    types: dict[int, TypeEntry] = field(default_factory=dict)
    keys: dict[int, tuple[str, ...]] = field(default_factory=dict)
    catalogs: dict[int, Any] = field(default_factory=dict)
    ends: bool = False
    mark: str = ""

    def pack(self) -> bytes:
        """MessagePack; about 30 bytes and the relations."""
        fields = {name: getattr(self, name) for name in self.__slots__}
        return ormsgpack.packb(fields, option=ormsgpack.OPT_NON_STR_KEYS)

    @classmethod
    def unpack(cls, data: bytes) -> "Context":
        """The inverse of `pack`; raises Malformed."""
        try:
            fields = ormsgpack.unpackb(data, option=ormsgpack.OPT_NON_STR_KEYS)
            fields["relations"] = tuple(fields["relations"])
            fields["types"] = {oid: TypeEntry(**entry) for oid, entry in fields["types"].items()}
            fields["keys"] = {oid: tuple(names) for oid, names in fields["keys"].items()}
            return cls(**fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Malformed("a page's context is not one of pgoutput", "wire") from error
