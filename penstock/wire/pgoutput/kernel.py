"""Decoding a page with the native kernel: it walks the messages and writes the batch's columns.
The structures that cross into it are in page.h, too.

It stops at what it does not handle: a relation, a truncate, a logical message, a row that is in any
way unusual. That one message goes through `Scan`, and its rows come back to the kernel. A page that
is in any way broken goes to `Scan` as a whole, which reports what is wrong with it.
"""

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import ormsgpack

from penstock.model.change import COLUMNS, Images, Operation, schema
from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.native import library
from penstock.native.batch import NativeBatch, declare
from penstock.wire.pgoutput.batch import FILTERED
from penstock.wire.pgoutput.layout import DecoderSettings, RowLayout
from penstock.wire.pgoutput.lsn import format_lsn
from penstock.wire.pgoutput.scan import Scan
from penstock.wire.pgoutput.values import ValueKind

_DONE, _MESSAGE = 0, 1
_RULES = {"none": 0, "database": 1}
_BY_FIELD = 2
_FIRST = (Operation.INSERT, Operation.UPDATE, Operation.DELETE, Operation.TRUNCATE)
_OPERATIONS: dict[str, int] = {
    str(name): number for number, name in enumerate(dict.fromkeys((*_FIRST, *Operation)))
}
_INT64 = range(-(2**63), 2**63)
# What batch.c writes, in this order.
_WRITTEN = (
    "backend", "partition", "cursor", "ordinal", "event_id", "operation", "tenant", "database",
    "namespace", "collection", "relation_id", "schema_version", "document_id", "key", "before",
    "after", "unchanged", "transaction", "committed_at", "captured_at", "delta", "mark", "route",
)  # fmt: skip
# Flags of a column.
_ARRAY, _KEY, _IDENTITY = 1, 2, 4
_NOT_HERE = -1


class _Text(ctypes.Structure):
    """Bytes that the caller keeps alive; no address is null."""

    _fields_ = (("at", ctypes.c_char_p), ("size", ctypes.c_int64))


class _Column(ctypes.Structure):
    _fields_ = (
        ("kind", ctypes.c_int32), ("flags", ctypes.c_int32), ("delimiter", ctypes.c_int32),
        ("reserved", ctypes.c_int32), ("name", _Text), ("label", _Text),
    )  # fmt: skip


class _Plan(ctypes.Structure):
    """How the rows of one relation are decoded; `columns` is -1 if the kernel can't."""

    _fields_ = (
        ("namespace", _Text), ("name", _Text), ("version", _Text), ("description", _Text),
        ("oid", ctypes.c_int64),
        ("columns", ctypes.c_int32), ("keys", ctypes.c_int32), ("tenant", ctypes.c_int32),
        ("reserved", ctypes.c_int32), ("column", ctypes.POINTER(_Column)),
        ("key", ctypes.POINTER(ctypes.c_int32)),
    )  # fmt: skip


class _Setup(ctypes.Structure):
    _fields_ = (
        ("payload", _Text), ("backend", _Text), ("partition", _Text), ("database", _Text),
        ("tenant", _Text), ("events", _Text), ("mark", _Text),
        ("operations", ctypes.POINTER(_Text)),
        ("captured_at", ctypes.c_int64), ("streamed", ctypes.c_int32), ("json", ctypes.c_int32),
        ("tenant_rule", ctypes.c_int32), ("lines", ctypes.c_int32),
    )  # fmt: skip


class _Unit(ctypes.Structure):
    """A transaction; or, not `inside` of one, a message."""

    _fields_ = (
        ("lsn", ctypes.c_uint64), ("committed_at", ctypes.c_int64), ("xid", ctypes.c_uint32),
        ("inside", ctypes.c_int32),
    )  # fmt: skip


class _ScanState(ctypes.Structure):
    """Where the kernel is, and what it has; see page.h."""

    _fields_ = (
        ("at", ctypes.c_int64), ("stop", ctypes.c_int64), ("commit_lsn", ctypes.c_uint64),
        ("seen", ctypes.c_int64), ("unit", ctypes.c_int32), ("ordinal", ctypes.c_int32),
        ("first", ctypes.c_int32 * 2), ("last", ctypes.c_int32 * 2), ("units", ctypes.c_int32),
        ("rows", ctypes.c_int32), ("all_units", ctypes.POINTER(_Unit)),
    )  # fmt: skip


class _Given(ctypes.Structure):
    """A row that Python decoded; see `batch.ROW`."""

    _fields_ = (
        ("unit", ctypes.c_int32), ("relation", ctypes.c_int32), ("ordinal", ctypes.c_int32),
        ("operation", ctypes.c_int32), ("tenant", _Text), ("collection", _Text),
        ("document_id", _Text), ("key", _Text), ("before", _Text), ("after", _Text),
        ("unchanged", ctypes.POINTER(_Text)), ("unchanged_count", ctypes.c_int32),
        ("reserved", ctypes.c_int32),
    )  # fmt: skip


def _text(value: str | bytes | None) -> _Text:
    """As the kernel has it; the structure keeps the bytes."""
    if value is None:
        return _Text(None, 0)
    data = value.encode() if isinstance(value, str) else value
    return _Text(data, len(data))


def _plan_of(layout: RowLayout, settings: DecoderSettings) -> _Plan:
    """The plan keeps alive what it points to."""
    names = [name for name, _ in layout.columns]
    places = [names.index(name) for name in layout.key]
    tenant = settings.tenant_column
    owner = names.index(tenant) if tenant is not None and tenant in names else -1
    relation = layout.relation
    plan = _Plan(
        namespace=_text(relation.namespace), name=_text(relation.name), oid=relation.oid,
        version=_text(layout.version), columns=_NOT_HERE, keys=len(places), tenant=owner,
        description=_text(layout.description if settings.images == "text" else None),
    )  # fmt: skip
    if _possible(layout, names, [*places, *([owner] if owner >= 0 else [])], settings.images):
        plan.columns = len(names)
        plan.column = (_Column * len(names))(
            *(_column(layout, number, settings.images) for number in range(len(names)))
        )
        plan.key = (ctypes.c_int32 * len(places))(*places)
    return plan


def _possible(
    layout: RowLayout, names: Sequence[str], identifying: Sequence[int], images: Images
) -> bool:
    kinds = layout.kinds
    return (
        layout.fault is None
        and len(set(names)) == len(names)
        and (images == "text" or None not in kinds)
        and all((kind := kinds[place]) is not None and kind.identifies for place in identifying)
    )


def _column(layout: RowLayout, number: int, images: Images) -> _Column:
    name, kind = layout.columns[number][0], layout.kinds[number]
    kind = kind or ValueKind(0)  # text is not converted
    flags = (_ARRAY if kind.delimiter else 0) | (_KEY if name in layout.old_key else 0)
    flags |= _IDENTITY if name in layout.key else 0
    label = ormsgpack.packb(name) if images == "msgpack" else orjson.dumps(name) + b":"
    return _Column(
        kind=kind.number, flags=flags, delimiter=ord(kind.delimiter or "\0"),
        name=_text(name), label=_text(label),
    )  # fmt: skip


class Unfit(Exception):
    """This page is not for the kernel."""


@dataclass(frozen=True, slots=True)
class Opening:
    """What the kernel is told before the payload of a page, of pages that have one context: the
    relations with their indexes, and the transaction that the payload starts in."""

    relations: "tuple[tuple[_Plan, int], ...]"
    units: "tuple[_Unit, ...]"
    unit: int
    ordinal: int
    commit_lsn: int
    streamed: bool


class Kernel:
    """One decoder's: what all of its pages share, ready for C."""

    def __init__(self, functions: ctypes.CDLL, settings: DecoderSettings) -> None:
        self._functions, self._settings = functions, settings
        self._schema = schema(settings.images)
        self._operations = (_Text * len(_OPERATIONS))(*map(_text, _OPERATIONS))
        # Copies share the texts, which live as long as this.
        self._setup = _Setup(
            backend=_text(settings.backend),
            events=_text(settings.events),
            database=_text(settings.database),
            tenant=_text(settings.database if settings.tenant == "database" else None),
            operations=self._operations,
            json=settings.images != "msgpack",
            lines=settings.images == "text",
            tenant_rule=_RULES.get(settings.tenant, _BY_FIELD),
        )

    @classmethod
    def of(cls, settings: DecoderSettings) -> "Kernel | None":
        """None without the native library."""
        if (functions := library()) is None or COLUMNS != _WRITTEN:
            return None
        _declare(functions)
        return cls(functions, settings)

    def opening(self, scan: Scan) -> Opening:
        """Of a scan that has read nothing yet. Raises Unfit."""
        if scan.ordinal not in range(2**31):
            raise Unfit
        units = scan.constants
        try:
            return Opening(
                tuple((self._plan(layout), index) for index, layout in scan.fresh),
                tuple(_unit(*units.unit(number)) for number in range(len(units.cursors))),
                scan.unit, scan.ordinal, scan.commit_lsn, scan.streamed,
            )  # fmt: skip
        except (ValueError, OverflowError) as error:
            raise Unfit from error

    def decode(
        self, page: Page, opening: Opening, begin: Callable[[], Scan], mark: str = ""
    ) -> tuple[NativeBatch | None, bool]:
        """The changes, which have this mark, None if the filter leaves none; and whether the page
        ends between transactions. `begin` makes the scan that has read nothing, for what the kernel
        does not do. Raises Unfit, and what the scan raises."""
        if page.captured_at not in _INT64:
            raise Unfit
        setup = _Setup.from_buffer_copy(self._setup)
        partition = _text(str(page.partition))
        setup.payload, setup.partition = _text(page.payload), partition
        setup.mark = _text(mark or None)
        setup.captured_at, setup.streamed = page.captured_at, opening.streamed
        if not (handle := self._functions.penstock_page_new(ctypes.byref(setup))):
            raise Unfit
        try:
            return self._run(handle, page, opening, begin)
        except (Malformed, ValueError, OverflowError) as error:
            raise Unfit from error
        finally:
            self._functions.penstock_page_free(handle)

    def _run(
        self, handle: int, page: Page, opening: Opening, begin: Callable[[], Scan]
    ) -> tuple[NativeBatch | None, bool]:
        functions, payload = self._functions, page.payload
        state = _ScanState.from_address(handle)
        for unit in opening.units:
            _must(functions.penstock_page_unit(handle, ctypes.byref(unit)))
        for plan, index in opening.relations:
            _must(functions.penstock_page_relation(handle, ctypes.byref(plan), index))
        state.unit, state.ordinal = opening.unit, opening.ordinal
        state.commit_lsn = opening.commit_lsn
        scan: Scan | None = None
        plans: list[_Plan] = []  # kept alive while the kernel uses them
        while (result := functions.penstock_page_run(handle)) == _MESSAGE:
            if scan is None:
                scan = begin()
                scan.fresh.clear()  # the kernel has them
            _take_over(state, scan)
            scan.step(payload[state.at : state.stop])
            self._pass_on(handle, state, scan, plans)
            state.at = state.stop
        if result != _DONE:
            raise Unfit
        ends = state.unit < 0
        if not state.rows or state.rows != state.seen:
            if not _agrees(page, state):
                raise Unfit
            if not state.rows:
                return None, ends
        batch = NativeBatch(functions, self._schema, self._settings.images, page.partition)
        if not batch.fill(functions, handle):
            raise Unfit
        if state.rows == state.seen and not (
            batch.rows == page.count and batch.first == page.first and batch.last == page.last
        ):
            raise Unfit
        return batch, ends

    def _pass_on(self, handle: int, state: _ScanState, scan: Scan, plans: list[_Plan]) -> None:
        functions, units = self._functions, scan.constants
        for number in range(state.units, len(units.cursors)):
            _must(functions.penstock_page_unit(handle, ctypes.byref(_unit(*units.unit(number)))))
        for index, layout in scan.fresh:
            plans.append(plan := self._plan(layout))
            _must(functions.penstock_page_relation(handle, ctypes.byref(plan), index))
        scan.fresh.clear()
        for row in scan.rows:
            _must(functions.penstock_page_row(handle, ctypes.byref(_given(row))))
        scan.rows.clear()
        state.unit, state.ordinal, state.commit_lsn = scan.unit, scan.ordinal, scan.commit_lsn

    def _plan(self, layout: RowLayout) -> _Plan:
        plan: _Plan = layout.plan or _plan_of(layout, self._settings)
        layout.plan = plan
        return plan


def _take_over(state: _ScanState, scan: Scan) -> None:
    for number in range(len(scan.constants.cursors), state.units):
        unit = state.all_units[number]
        inside = bool(unit.inside)
        scan.constants.add_unit(
            unit.lsn, unit.xid if inside else None, unit.committed_at if inside else None
        )
    scan.unit, scan.ordinal, scan.commit_lsn = state.unit, state.ordinal, state.commit_lsn


def _unit(lsn: int, xid: int | None, committed_at: int | None) -> _Unit:
    time = committed_at or 0
    if xid is not None and not (0 <= xid < 2**32 and time in _INT64):
        raise OverflowError
    return _Unit(lsn=lsn, xid=xid or 0, committed_at=time, inside=xid is not None)


def _given(row: Sequence[Any]) -> _Given:
    unit, relation, ordinal, operation, tenant, collection, *texts, unchanged = row
    given = _Given(unit=unit, relation=relation, ordinal=ordinal)
    if ordinal >= 2**31:
        raise OverflowError
    if relation == FILTERED:
        return given
    given.operation = _OPERATIONS[operation]
    given.tenant, given.collection = _text(tenant), _text(collection)
    given.document_id, given.key, given.before, given.after = map(_text, texts)
    given.unchanged_count = len(unchanged)
    given.unchanged = (_Text * len(unchanged))(*map(_text, unchanged))
    return given


def _agrees(page: Page, state: _ScanState) -> bool:
    if state.seen != page.count or not state.seen:
        return not page.count and not state.seen
    units = state.all_units
    (first, first_ordinal), (last, last_ordinal) = state.first, state.last
    return (
        page.first.ordinal == first_ordinal
        and page.last.ordinal == last_ordinal
        and page.first.cursor == format_lsn(units[first].lsn)
        and page.last.cursor == format_lsn(units[last].lsn)
    )


def _must(code: int) -> None:
    if code:
        raise Unfit


def _declare(functions: ctypes.CDLL) -> None:
    pointer, number = ctypes.c_void_p, ctypes.c_int32
    for name, result, arguments in (
        ("new", pointer, [pointer]),
        ("free", None, [pointer]),
        ("run", number, [pointer]),
        ("relation", number, [pointer, pointer, number]),
        ("unit", number, [pointer, pointer]),
        ("row", number, [pointer, pointer]),
    ):
        function = getattr(functions, f"penstock_page_{name}")
        function.restype, function.argtypes = result, arguments
    declare(functions)
