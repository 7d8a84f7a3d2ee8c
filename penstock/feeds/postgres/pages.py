"""A page in the making, the relations that its rows need, and when it is cut. Pure.

A page's payload begins with a change; what came before is in its context. Relation messages that
say nothing new stay inside; one that changes a relation which the page already uses ends the page,
so that one relation per table holds for the whole page.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.model.page import Page
from penstock.model.position import PartitionId, Place
from penstock.wire.pgoutput.context import Context, TypeEntry
from penstock.wire.pgoutput.lsn import format_lsn
from penstock.wire.pgoutput.messages import Type


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRelation:
    """A relation in force: its raw message (from `R`, no xid) and what the catalogue says.

    `types` holds the types of its columns that are not built in. `key` is the primary key where
    the message does not tell it. `catalog`: see `Context.catalogs`.
    """

    raw: bytes
    types: dict[int, TypeEntry] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    catalog: Any = None


# A Relation message (from `R`, no xid), the types that the log has named, the transaction's id, and
# the position -> what to remember of it. May ask the catalogue.
Describe = Callable[[bytes, Mapping[int, Type], int, str | None], KnownRelation]

# OID as its four raw bytes -> the relation in force.
Relations = dict[bytes, KnownRelation]


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction that is known to commit: at LSN `lsn`, `committed_at` in microseconds."""

    lsn: int
    committed_at: int
    xid: int
    streamed: bool = False

    @property
    def cursor(self) -> str:
        """What its changes' places start with."""
        return format_lsn(self.lsn)


# What a page that starts with a non-transactional message starts in.
BETWEEN = Transaction(0, 0, 0)


class OpenPage:
    """Collects pieces of the stream until they are cut into a page.

    `used` takes the raw OID of every relation that a row uses, and `count` their number; the
    framing loop keeps both directly.
    """

    __slots__ = ("_first", "_partition", "_parts", "_start", "count", "size", "used")

    def __init__(self, partition: PartitionId) -> None:
        self._partition = partition
        self._clear()

    def _clear(self) -> None:
        self._parts: list[bytes] = []
        self._start = BETWEEN
        self._first = Place("", 0)
        self.used: set[bytes] = set()
        self.size = 0
        self.count = 0

    def begin(self, transaction: Transaction, first: Place) -> None:
        """The page's first change comes next: in `transaction`, at the place `first`."""
        self._start = transaction
        self._first = first

    def put(self, piece: bytes) -> None:
        if piece:
            self._parts.append(piece)
            self.size += len(piece)

    def cut(
        self, last: Place, relations: Relations, captured_at: int, *, ends: bool = False
    ) -> Page:
        """The page that ends with `last`; a new one may begin. `captured_at` in microseconds."""
        known = [(oid, relations[oid]) for oid in sorted(self.used) if oid in relations]
        start = self._start
        context = Context(
            streamed=start.streamed,
            commit_lsn=start.lsn,
            committed_at=start.committed_at,
            xid=start.xid,
            ordinal=self._first.ordinal if start is not BETWEEN else 0,
            relations=tuple(each.raw for _, each in known),
            types={oid: entry for _, each in known for oid, entry in each.types.items()},
            keys={int.from_bytes(oid, "big"): each.key for oid, each in known if each.key},
            catalogs={
                int.from_bytes(oid, "big"): each.catalog for oid, each in known if each.catalog
            },
            ends=ends,
        )
        page = Page(
            partition=self._partition,
            first=self._first,
            last=last,
            count=self.count,
            captured_at=captured_at,
            context=context.pack(),
            payload=b"".join(self._parts),
        )
        self._clear()
        return page


class PageTimer:
    """A page that is not full is cut when its transactions are over, but at least `spacing` seconds
    after the one before it, so that a trickle of single rows does not make a page of each. The rest
    of a transaction is waited for: then its last page says that it ends there. `now` is monotonic
    seconds."""

    def __init__(self, spacing: float, now: float) -> None:
        self._spacing = spacing
        self._cut_at = now

    def cut(self, now: float) -> None:
        self._cut_at = now

    def due_in(self, now: float, *, holds: bool, between: bool) -> float:
        """Seconds until it is to be cut, 0 or less for now; endless while there is no change in it
        (not `holds`), or while the last transaction that began goes on (not `between`)."""
        return self._cut_at + self._spacing - now if holds and between else math.inf
