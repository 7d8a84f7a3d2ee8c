"""Changes into pages: counts ordinals, drops what the reader has, keeps relations. Pure.

A page's payload begins with a change, or with the Begin of a transaction whose first change comes
next: so that whole transactions have one context, page after page. What else came before is in the
context. A Relation message that changes a relation which the page uses ends the page: one relation
per table holds for all of it.
"""

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from penstock.feeds.postgres.walk import BETWEEN, Run, Transaction
from penstock.model.errors import Unavailable
from penstock.model.page import Page
from penstock.model.position import PartitionId, Place
from penstock.wire.pgoutput.context import HEARTBEAT_PREFIX, Context, TypeEntry
from penstock.wire.pgoutput.messages import LogicalMessage, Truncate, Type


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownRelation:
    """A relation in force: its raw message (from `R`, no xid), `types` of its columns that are not
    built in, the primary `key` where the message has none. `catalog`: see `Context.catalogs`."""

    raw: bytes
    types: dict[int, TypeEntry] = field(default_factory=dict)
    key: tuple[str, ...] = ()
    catalog: Any = None


# A Relation message (from `R`, no xid), the types that the log has named, the transaction's id, and
# the position -> what to remember of it. May ask the catalogue.
Describe = Callable[[bytes, Mapping[int, Type], int, str | None], KnownRelation]

# OID as its four raw bytes -> the relation in force.
Relations = dict[bytes, KnownRelation]


class OpenPage:
    """Collects pieces of the stream until they are cut into a page. `used` takes the raw OID of
    every relation that a row uses, and `count` counts rows; the framing loop keeps both."""

    __slots__ = (
        "_context", "_first", "_known", "_mark", "_partition", "_parts", "_start", "count", "size",
        "used",
    )  # fmt: skip

    def __init__(self, partition: PartitionId, mark: str = "") -> None:
        self._partition, self._mark = partition, mark
        # The last page's; and where that began between transactions, the relations in it: a next
        # page like it has the same context.
        self._context = b""
        self._known: list[tuple[bytes, KnownRelation]] | None = None
        self._clear()

    def _clear(self) -> None:
        self._parts: list[bytes] = []
        self._start = BETWEEN
        self._first = Place("", 0)
        self.used: set[bytes] = set()
        self.size = self.count = 0

    def begin(self, transaction: Transaction, first: Place, begin: bytes = b"") -> None:
        """The page's first change comes next: in `transaction`, at the place `first`. `begin`: the
        transaction's Begin, if this is its first change; not counted in `size`."""
        self._start, self._first = (BETWEEN if begin else transaction), first
        self._parts.append(begin)

    def put(self, piece: bytes) -> None:
        if piece:
            self._parts.append(piece)
            self.size += len(piece)

    def cut(
        self, last: Place, relations: Relations, captured_at: int, *, ends: bool = False
    ) -> Page:
        """The page that ends with `last`; a new one may begin. `captured_at` in microseconds."""
        known = [(oid, relations[oid]) for oid in sorted(self.used) if oid in relations]
        if ends or self._start is not BETWEEN or known != self._known:
            self._context = self._packed(known, ends)
            self._known = known if not ends and self._start is BETWEEN else None
        page = Page(
            partition=self._partition,
            first=self._first,
            last=last,
            count=self.count,
            captured_at=captured_at,
            context=self._context,
            payload=b"".join(self._parts),
        )
        self._clear()
        return page

    def _packed(self, known: list[tuple[bytes, KnownRelation]], ends: bool) -> bytes:
        start = self._start
        return Context(
            streamed=start.streamed,
            commit_lsn=start.lsn,
            committed_at=start.committed_at,
            xid=start.xid,
            ordinal=self._first.ordinal if start is not BETWEEN else 0,
            relations=tuple(each.raw for _, each in known),
            types={oid: entry for _, each in known for oid, entry in each.types.items()},
            keys={int.from_bytes(oid, "big"): each.key for oid, each in known if each.key},
            catalogs={int.from_bytes(o, "big"): each.catalog for o, each in known if each.catalog},
            ends=ends,
            mark=self._mark,
        ).pack()


_SMALL = 100  # changes of a page


class PageTimer:
    """A page that is not full is cut when its transactions are over, but at least `spacing` seconds
    after the last: a trickle of single rows does not make a page of each. `now` is monotonic."""

    def __init__(self, spacing: float, now: float) -> None:
        self._spacing, self._cut_at = spacing, now
        self._was_small = False

    def cut(self, now: float, rows: int) -> None:
        self._cut_at, self._was_small = now, rows <= _SMALL

    def rest(self, now: float) -> float:
        """Seconds until the socket need be read again, because no page is cut before. 0 after a
        larger page: a backlog may fill the connection's buffer."""
        return max(0.0, self._cut_at + self._spacing - now) if self._was_small else 0.0

    def due_in(self, now: float, *, holds: bool, between: bool) -> float:
        """Seconds until it is to be cut; endless while there is no change in it (not `holds`), or
        the last transaction that began goes on (not `between`)."""
        return self._cut_at + self._spacing - now if holds and between else math.inf


MESSAGE = 30
"""Offset of the pgoutput message in a CopyData: `d`, length, `w`, three int64."""

BEGIN = MESSAGE + 21
"""Bytes of a Begin message in a CopyData."""

ENDLESS = 2**62
_NOWHERE = Place("", -1)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLimits:
    """A page is cut at `rows` changes (a TRUNCATE may exceed it), or after `size` bytes."""

    size: int
    rows: int


class Diverged(Unavailable):
    """The transaction that our position is in is not in the log: it has another history."""


class Collector:
    """Where in which transaction we are, and the page in the making. `ordinal` is of the next
    change; `skip` the number of leading changes that the reader has; `last` the last that went into
    a page. `era` begins every cursor. `anchored`: the transaction of `after` must come first.
    `mark`: that of all changes."""

    def __init__(
        self,
        partition: PartitionId,
        *,
        after: Place | None,
        limits: PageLimits,
        describe: Describe,
        era: str = "",
        anchored: bool = False,
        mark: str = "",
    ) -> None:
        self.page = OpenPage(partition, mark)
        self.limits = limits
        self.relations: Relations = {}
        self.ordinal = self.skip = 0
        self.last = _NOWHERE
        # The transaction that is open, or was last, and its cursor.
        self.transaction = BETWEEN
        self.cursor = ""
        self._begin = b""  # its Begin message
        # The last change that the reader has; whether the log has passed it.
        self._after = after or _NOWHERE
        self._past = False
        # What is to be remembered of a Relation message, with the Type messages before it.
        self._describe = describe
        self._types: dict[int, Type] = {}
        self.era = era
        self._anchored = anchored

    @property
    def full(self) -> bool:
        page, limits = self.page, self.limits
        return page.count >= limits.rows or page.size >= limits.size

    @property
    def behind(self) -> int:
        """How many of the next changes the reader has."""
        return max(0, self.skip - self.ordinal)

    def start(self, transaction: Transaction, cursor: str, begin: bytes = b"") -> None:
        """A transaction comes next, with places of this cursor (in its era). `begin`: its Begin, if
        it has one. Raises Diverged."""
        after, ordinal = self._after
        cursor = self.era + cursor
        if self._anchored:
            self._anchored = False
            if cursor != after:
                raise Diverged(
                    f"a transaction at {cursor} came, and none at our position {after}",
                    "postgres.diverged",
                )
        self.transaction, self.cursor, self.ordinal = transaction, cursor, 0
        self._past = cursor > after
        self.skip = 0 if self._past else ordinal + 1 if cursor == after else ENDLESS
        self._begin = begin
        self.keep(begin)

    @property
    def is_past(self) -> bool:
        """Whether we are between transactions, and the next ones are not before `after`."""
        return self.transaction is BETWEEN and self._past

    def run(self, run: Run, piece: bytes, begin: bytes) -> None:
        """Whole transactions come next, in `piece`; of an empty page from the first change on, and
        `begin` is the Begin before that."""
        page = self.page
        if not page.count:
            page.begin(run.first, Place(self.era + run.first.cursor, 0), begin)
        page.put(piece)
        page.count += run.rows
        self.last = run.last

    def end(self) -> Place | None:
        """The transaction is over: its last change, dropped or not, if it had any."""
        last = Place(self.cursor, self.ordinal - 1) if self.ordinal else None
        self.transaction, self.cursor, self.skip = BETWEEN, "", 0
        return last

    def changes(self, number: int, piece: bytes) -> None:
        """The next `number` changes of the transaction, in `piece`."""
        page, first = self.page, self.ordinal
        if not page.count:
            begin = b"" if first else self._begin
            page.begin(self.transaction, Place(self.cursor, first), begin)
        page.put(piece)
        page.count += number
        self.ordinal = first + number
        self.last = Place(self.cursor, self.ordinal - 1)

    def keep(self, piece: bytes) -> None:
        """A message that is no change; of use to the decoder only if the page has begun."""
        if self.page.count:
            self.page.put(piece)

    def type(self, message: Type, piece: bytes) -> None:
        """What the log calls a type of the next relation."""
        self._types[message.oid] = message
        self.keep(piece)

    def truncate(self, message: Truncate, piece: bytes) -> None:
        """As many changes as tables; the reader may have the first of them."""
        tables = [oid.to_bytes(4, "big") for oid in message.relations]
        had = min(len(tables), self.behind)
        self.ordinal += had
        if had == len(tables):
            return
        self.page.used.update(tables[had:])
        self.changes(len(tables) - had, _without(had, message, piece) if had else piece)

    def logical(self, message: LogicalMessage, piece: bytes) -> None:
        """One change, unless it is a heartbeat."""
        if message.prefix == HEARTBEAT_PREFIX:
            self.keep(piece)
        elif self.behind:
            self.ordinal += 1
        else:
            self.changes(1, piece)

    def relation(self, raw: bytes, piece: bytes, now: float) -> list[Page]:
        """A table as it is from now on; `raw` is the message from `R`, without an xid. Returns the
        page that ends here because its rows were of another form."""
        oid = raw[1:5]
        position = f"{self.cursor}:{self.ordinal}" if self.cursor else None
        known = self._describe(raw, self._types, self.transaction.xid, position)
        cut: list[Page] = []
        if oid in self.page.used and self.relations.get(oid) != known:
            cut = self.flush(now)
        self.relations[oid] = known
        self.keep(piece)
        return cut

    def flush(self, now: float, *, ends: bool = False) -> list[Page]:
        """The page in the making, if there is a change in it; `now` in seconds since 1970. `ends`:
        a streamed transaction ends with it."""
        if not self.page.count:
            return []
        return [self.page.cut(self.last, self.relations, round(now * 1_000_000), ends=ends)]


def _without(had: int, message: Truncate, piece: bytes) -> bytes:
    """The Truncate message without its first `had` tables, as a CopyData."""
    xid = b"" if message.xid is None else message.xid.to_bytes(4, "big")
    oids = message.relations[had:]
    body = struct.pack(f">IB{len(oids)}I", len(oids), message.options, *oids)
    rest = piece[5 : MESSAGE + 1] + xid + body
    return b"d" + struct.pack(">I", len(rest) + 4) + rest
