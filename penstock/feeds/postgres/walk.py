"""The walk over a stream's messages: a length, a tag and a table of each, and never a row. Pure.

In the native library where there is one, which takes whole transactions in one go.
"""

import ctypes
import struct
from dataclasses import dataclass
from typing import Any, Self

from penstock.model.position import Place
from penstock.native import held_library
from penstock.wire.pgoutput.frames import from_pg_time
from penstock.wire.pgoutput.lsn import format_lsn

# `d`, length, `w`, (three int64), the message's tag, and a row's relation OID.
_HEAD = struct.Struct(">BIB24xB4s")
PADDING = bytes(_HEAD.size)
"""What has to stand after the stream, so that the head of a short message can be read there."""

_TABLES = 64
_TRANSACTIONS = 512
_TRANSACTION = struct.Struct("=QQQ")


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


def rows_ahead(  # noqa: PLR0917 - the hot loop: keywords cost
    data: bytes, position: int, end: int, most: int, full: int, used: set[bytes]
) -> tuple[int, int]:
    """Walks over row messages (I, U, D) from `position`: (where they end, how many). Stops at
    anything else, at a message that is not whole before `end`, after `most` rows, or after `full`.
    Adds to `used` what follows the tag: the relation's OID. `data` is padded."""
    unpack, limit = _HEAD.unpack_from, end - 5
    left, last = most, b""
    while position <= limit and left:
        outer, length, kind, tag, oid = unpack(data, position)
        after = position + 1 + length
        # I, U or D, in an XLogData, in a CopyData; no row is shorter than a head.
        if after > end or tag not in {73, 85, 68} or kind != 119 or outer != 100:
            break
        position = after
        left -= 1
        if oid != last:
            used.add(oid)
            last = oid
        if position >= full:
            break
    return position, most - left


class _Walk(ctypes.Structure):
    """`struct walk` of native/walk.c."""

    _fields_ = (
        ("position", ctypes.c_int64),
        ("end", ctypes.c_int64),
        ("most", ctypes.c_int64),
        ("room", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("transactions", ctypes.c_int64),
        ("most_transactions", ctypes.c_int64),
        ("first_row", ctypes.c_int64),
        ("first_at", ctypes.c_int64),
        ("before_lsn", ctypes.c_uint64),
        ("end_lsn", ctypes.c_uint64),
        ("first_xid", ctypes.c_uint32),
        ("is_fresh", ctypes.c_int32),
        ("tables", ctypes.c_int32),
        ("keepalives", ctypes.c_int32),
        ("asked", ctypes.c_int32),
        ("sent_at", ctypes.c_int64),
        ("table", ctypes.c_uint8 * 4 * _TABLES),
    )


# A type is a cycle of its own: made once.
_Found = ctypes.c_char * (_TRANSACTIONS * _TRANSACTION.size)


class Run:
    """Whole transactions, one after the other, with `rows` changes; none has anything else. They
    end at `position` of what was walked over, and the last of them at `end_lsn`; those that came
    first and had no rows at `before_lsn`, or 0. With rows: the first begins at `first_row`, in the
    transaction `first`; `count` is of transactions with any. Cursors begin with `era`.
    `keepalives`: how many came between them; their ends are in `end_lsn`, or `before_lsn`. `asked`:
    one of them wants an answer. `clock`: when the last was sent, seconds since 1970."""

    __slots__ = (
        "_ends", "_era", "asked", "before_lsn", "clock", "count", "end_lsn", "first", "first_row",
        "keepalives", "last", "position", "rows",
    )  # fmt: skip

    def __init__(self, walk: _Walk, ends: bytes, era: str) -> None:
        self.position, self.rows = walk.position, walk.rows
        self.before_lsn, self.end_lsn = walk.before_lsn, walk.end_lsn
        self.count = walk.transactions
        self.first_row = walk.first_row
        self.keepalives, self.asked = walk.keepalives, bool(walk.asked)
        self.clock = from_pg_time(walk.sent_at) / 1e6
        self._ends, self._era = ends, era
        self.first = Transaction(0, 0, 0)
        self.last = Place("", -1)  # the last change
        if ends:
            lsn, _, _ = _TRANSACTION.unpack_from(ends)
            self.first = Transaction(lsn, from_pg_time(walk.first_at), walk.first_xid)
            self.last = self._place(self.count - 1)

    def done(self, place: Place) -> int:
        """The end of the last transaction that has no change after `place`; 0 if there is none."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if self._place(middle) <= place:
                low = middle + 1
            else:
                high = middle
        if not low:
            return 0
        return int(_TRANSACTION.unpack_from(self._ends, (low - 1) * _TRANSACTION.size)[2])

    def _place(self, number: int) -> Place:
        lsn, rows, _ = _TRANSACTION.unpack_from(self._ends, number * _TRANSACTION.size)
        return Place(self._era + format_lsn(lsn), rows - 1)


class NativeWalk:
    """The walk of the native library; see `create`."""

    def __init__(self, functions: Any) -> None:
        self._rows = functions.penstock_walk_rows
        self._transactions = functions.penstock_walk_transactions
        for function, extra in ((self._rows, []), (self._transactions, [ctypes.c_char_p])):
            function.argtypes = [ctypes.c_char_p, ctypes.POINTER(_Walk), *extra]
            function.restype = None
        self._walk = _Walk(most_transactions=_TRANSACTIONS)
        self._pointer = ctypes.pointer(self._walk)
        self._found = _Found()
        self._table = ctypes.addressof(self._walk) + _Walk.table.offset

    @classmethod
    def create(cls) -> Self | None:
        """None without the library."""
        functions = held_library()
        return None if functions is None else cls(functions)

    def rows(  # noqa: PLR0917 - as `rows_ahead`
        self, data: bytes, position: int, end: int, most: int, full: int, used: set[bytes]
    ) -> tuple[int, int]:
        walk, total = self._walk, 0
        walk.end = end
        while True:
            walk.position, walk.most, walk.room = position, most - total, full - position
            self._rows(data, self._pointer)
            used |= self.tables()
            position, total = walk.position, total + walk.rows
            # It stops for want of a place for one table more, too.
            if walk.tables < _TABLES or not walk.rows or total == most or position >= full:
                return position, total

    def transactions(
        self, data: bytes, position: int, end: int, *, most: int, room: int, fresh: bool, era: str
    ) -> Run | None:
        """What comes next of whole transactions whose rows do not fill the page: which would be
        `most` of them, or `room` bytes, counted from the first row if the page is `fresh`. None:
        nothing. `data` is padded. See `Run` for `era`."""
        walk = self._walk
        walk.position, walk.end, walk.most, walk.room = position, end, most, room
        walk.is_fresh = fresh
        self._transactions(data, self._pointer, self._found)
        if walk.position == position:
            return None
        ends = ctypes.string_at(self._found, walk.transactions * _TRANSACTION.size)
        return Run(walk, ends, era)

    def tables(self) -> set[bytes]:
        """The relation OIDs of the rows that were walked over."""
        found = ctypes.string_at(self._table, 4 * self._walk.tables)
        return {found[at : at + 4] for at in range(0, len(found), 4)}
