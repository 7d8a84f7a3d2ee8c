"""Rows in a page's bytes; and those that can't be read: why, and the ERROR row that each becomes.

Such a row has its place, and everything that is needed to decode it later. See
`change.Operation.ERROR`.
"""

import struct
from typing import Any, NamedTuple, assert_never

from penstock.model.errors import Malformed
from penstock.wire.documents import error_image
from penstock.wire.pgoutput.batch import Constants
from penstock.wire.pgoutput.context import Context
from penstock.wire.pgoutput.layout import DecoderSettings, RowLayout
from penstock.wire.pgoutput.lsn import parse_lsn
from penstock.wire.pgoutput.messages import (
    UNCHANGED,
    Binary,
    Delete,
    Insert,
    Message,
    TupleData,
    Update,
)
from penstock.wire.pgoutput.values.scalars import Converter

# What reading or converting broken bytes can raise.
BROKEN = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, struct.error)

NO_COLUMNS: list[str] = []

_HEADER = struct.Struct(">cIc24x")
_NOT_UTF8 = "mend the value (a database in SQL_ASCII accepts any bytes), or leave the table out"
_NOT_ITS_TYPE = "the session needs the settings in penstock.wire.pgoutput.values.SESSION"

_TUPLE = struct.Struct(">BH").unpack_from
_COLUMN = struct.Struct(">BI").unpack_from
_TEXT, _NULL, _UNCHANGED = b"tnu"


def read_tuple(
    data: bytes, at: int, tag: int, columns: list[tuple[str, Converter]]
) -> tuple[int, dict[str, Any], list[str]]:
    """The tuple at `at`, where its `tag` (K, O or N) is: where it ends, its values by column, and
    the columns that were not sent. Raises one of BROKEN."""
    kind, count = _TUPLE(data, at)
    if kind != tag or count != len(columns):
        raise ValueError
    at += 3
    row: dict[str, Any] = {}
    unchanged = NO_COLUMNS
    for name, convert in columns:
        kind, size = _COLUMN(data, at)
        if kind == _TEXT:
            at += 5
            stop = at + size
            row[name] = convert(data[at:stop])
            at = stop
        elif kind == _NULL:
            row[name] = None
            at += 1
        elif kind == _UNCHANGED:
            unchanged = [*unchanged, name]
            at += 1
        else:
            raise ValueError
    return at, row, unchanged


class Diagnosis(NamedTuple):
    """Why a change cannot be read: a machine-readable slug, and the error, without row data."""

    reason: str
    error: Malformed


def explain(message: Message, layout: RowLayout) -> Diagnosis:
    table = f"{layout.relation.namespace}.{layout.relation.name}"
    if layout.fault is not None:
        what = f"the relation {table} can't be decoded: {layout.fault.message}"
        return Diagnosis("broken-relation", Malformed(what, "wire", hint=layout.fault.hint))
    match message:
        case Insert():
            tuples = [message.new]
        case Update():
            tuples = [message.new] if message.old is None else [message.old, message.new]
        case Delete():
            tuples = [message.old]
        case _:
            tuples = []
    for data in tuples:
        if len(data) != len(layout.columns):
            what = (
                f"a row of {table} has {len(data)} columns, its relation has {len(layout.columns)}"
            )
            return Diagnosis("broken-row", Malformed(what, "wire"))
        if broken := _broken_column(data, layout):
            name, reason, what, hint = broken
            return Diagnosis(
                reason, Malformed(f"column {name} of {table} {what}", "wire", hint=hint)
            )
    return Diagnosis("broken-row", Malformed(f"a row of {table} can't be decoded", "wire"))


def _broken_column(data: TupleData, layout: RowLayout) -> tuple[str, str, str, str] | None:
    for (name, convert), value in zip(layout.columns, data, strict=True):
        if value is None or value is UNCHANGED:
            continue
        if isinstance(value, Binary):
            hint = "replicate without the option binary"
            return name, "binary-format", "came in binary format", hint
        if not isinstance(value, bytes):
            assert_never(value)
        try:
            found = {name: convert(value)}
            layout.images.row(found)
            layout.images.values(found)
        except UnicodeDecodeError:
            return name, "not-utf8", "is not UTF-8", _NOT_UTF8
        except BROKEN:
            return name, "not-its-type", "does not read as its type", _NOT_ITS_TYPE
    return None


def data_frame(message: bytes) -> bytes:
    """One pgoutput message as a page's payload has it: CopyData with XLogData, of no time."""
    return _HEADER.pack(b"d", 4 + 25 + len(message), b"w") + message


class Poison:
    """Makes the rows of one page's unreadable changes; `context` is the page's."""

    def __init__(self, context: Context, settings: DecoderSettings) -> None:
        self._context, self._settings = context, settings

    def row(
        self,
        place: tuple[Any, ...],
        diagnosis: Diagnosis,
        raw: bytes,
        constants: Constants,
        layout: RowLayout | None,
    ) -> tuple[Any, ...]:
        """A row shaped like `batch.ROW`. `place`: unit, relation, ordinal; `raw`: CopyData."""
        context = self._alone(place, constants, layout).pack()
        settings = self._settings
        tenant = settings.database if settings.tenant == "database" else None
        error = str(diagnosis.error)
        image = error_image(
            settings.images, reason=diagnosis.reason, error=error, raw=raw, context=context
        )
        rest = (None, None, None, None, settings.pack(image), NO_COLUMNS)
        return (*place, "ERROR", tenant, *rest)

    def _alone(
        self, place: tuple[Any, ...], constants: Constants, layout: RowLayout | None
    ) -> Context:
        unit, _, ordinal = place
        page, xid = self._context, constants.transactions[unit]
        inside = xid is not None
        key = page.keys.get(layout.relation.oid) if layout is not None else None
        return Context(
            streamed=page.streamed,
            commit_lsn=parse_lsn(constants.cursors[unit]) if inside else 0,
            committed_at=constants.committed_at[unit] or 0,
            xid=int(xid or 0),
            ordinal=ordinal if inside else 0,
            relations=(layout.raw,) if layout is not None else (),
            types=page.types if layout is not None else {},
            keys={layout.relation.oid: key} if layout is not None and key else {},
        )
