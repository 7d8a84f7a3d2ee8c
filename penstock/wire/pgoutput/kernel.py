"""Decoding a page with the native kernel: it walks the messages and writes the batch's columns.

It stops at what it does not handle: a relation, a truncate, a logical message, a row that is in any
way unusual. That one message goes through `Scan`, and its rows come back to the kernel. A page that
is in any way broken goes to `Scan` as a whole, which reports what is wrong with it.
"""

import ctypes
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from penstock.model.change import COLUMNS, Operation, schema
from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.native import library
from penstock.wire.pgoutput.batch import FILTERED
from penstock.wire.pgoutput.layout import DecoderSettings
from penstock.wire.pgoutput.lsn import format_lsn
from penstock.wire.pgoutput.plan import Given, Plan, ScanState, Setup, Text, Unit, plan_of, text
from penstock.wire.pgoutput.scan import Scan

_DONE, _MESSAGE = 0, 1
_RULES = {"none": 0, "database": 1}
_BY_FIELD = 2
_FIRST = (Operation.INSERT, Operation.UPDATE, Operation.DELETE)
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


class Unfit(Exception):
    """This page is not for the kernel."""


class _Array(ctypes.Structure):
    """Arrow's struct ArrowArray: 5 numbers and 5 pointers."""

    _fields_ = (("numbers", ctypes.c_int64 * 5), ("pointers", ctypes.c_void_p * 5))


class Kernel:
    """One decoder's: what all of its pages share, ready for C."""

    def __init__(self, functions: ctypes.CDLL, settings: DecoderSettings) -> None:
        self._functions, self._settings = functions, settings
        self._schema = schema(settings.images)
        self._operations = (Text * len(_OPERATIONS))(*map(text, _OPERATIONS))
        # Copies share the texts, which live as long as this.
        self._setup = Setup(
            backend=text(settings.backend),
            database=text(settings.database),
            tenant=text(settings.database if settings.tenant == "database" else None),
            operations=self._operations,
            json=settings.images == "json",
            tenant_rule=_RULES.get(settings.tenant, _BY_FIELD),
        )

    @classmethod
    def of(cls, settings: DecoderSettings) -> "Kernel | None":
        """None without the native library."""
        functions = library()
        if functions is None or COLUMNS != _WRITTEN:
            return None
        _declare(functions)
        return cls(functions, settings)

    def decode(self, page: Page, scan: Scan) -> pa.RecordBatch | None:
        """The page's changes, None if the filter leaves none. Raises Unfit, and whatever
        Relation messages make `scan` raise."""
        if page.captured_at not in _INT64 or scan.ordinal not in range(2**31):
            raise Unfit
        setup = Setup.from_buffer_copy(self._setup)
        partition = text(str(page.partition))
        setup.payload, setup.partition = text(page.payload), partition
        setup.captured_at, setup.streamed = page.captured_at, scan.streamed
        handle = self._functions.penstock_page_new(ctypes.byref(setup))
        if not handle:
            raise Unfit
        try:
            return self._run(handle, page, scan)
        except (Malformed, ValueError, OverflowError) as error:
            raise Unfit from error
        finally:
            self._functions.penstock_page_free(handle)

    def _run(self, handle: int, page: Page, scan: Scan) -> pa.RecordBatch | None:
        functions, payload = self._functions, page.payload
        state = ScanState.from_address(handle)
        plans: list[Plan] = []  # kept alive while the kernel uses them
        self._pass_on(handle, state, scan, plans)
        while (result := functions.penstock_page_run(handle)) == _MESSAGE:
            _take_over(state, scan)
            scan.step(payload[state.at : state.stop])
            self._pass_on(handle, state, scan, plans)
            state.at = state.stop
        if result != _DONE or not _agrees(page, state):
            raise Unfit
        if not state.rows:
            return None
        array = _Array()
        if functions.penstock_page_export(handle, ctypes.byref(array)):
            raise Unfit
        batch: pa.RecordBatch = pa.RecordBatch._import_from_c(ctypes.addressof(array), self._schema)
        return batch

    def _pass_on(self, handle: int, state: ScanState, scan: Scan, plans: list[Plan]) -> None:
        """Passes new transactions, relations and rows of `scan` to the kernel."""
        functions, units = self._functions, scan.constants
        for number in range(state.units, len(units.cursors)):
            _must(functions.penstock_page_unit(handle, ctypes.byref(_unit(*units.unit(number)))))
        for index, layout in scan.fresh:
            plan = layout.plan = layout.plan or plan_of(layout, self._settings)
            plans.append(plan)
            _must(functions.penstock_page_relation(handle, ctypes.byref(plan), index))
        scan.fresh.clear()
        for row in scan.rows:
            _must(functions.penstock_page_row(handle, ctypes.byref(_given(row))))
        scan.rows.clear()
        state.unit, state.ordinal, state.commit_lsn = scan.unit, scan.ordinal, scan.commit_lsn


def _take_over(state: ScanState, scan: Scan) -> None:
    """Passes the state of the kernel to `scan`."""
    for number in range(len(scan.constants.cursors), state.units):
        unit = state.all_units[number]
        inside = bool(unit.inside)
        scan.constants.add_unit(
            unit.lsn, unit.xid if inside else None, unit.committed_at if inside else None
        )
    scan.unit, scan.ordinal, scan.commit_lsn = state.unit, state.ordinal, state.commit_lsn


def _unit(lsn: int, xid: int | None, committed_at: int | None) -> Unit:
    time = committed_at or 0
    if xid is not None and not (0 <= xid < 2**32 and time in _INT64):
        raise OverflowError
    return Unit(lsn=lsn, xid=xid or 0, committed_at=time, inside=xid is not None)


def _given(row: Sequence[Any]) -> Given:
    unit, relation, ordinal, operation, tenant, collection, *texts, unchanged = row
    given = Given(unit=unit, relation=relation, ordinal=ordinal)
    if ordinal >= 2**31:
        raise OverflowError
    if relation == FILTERED:
        return given
    given.operation = _OPERATIONS[operation]
    given.tenant, given.collection = text(tenant), text(collection)
    given.document_id, given.key, given.before, given.after = map(text, texts)
    given.unchanged_count = len(unchanged)
    given.unchanged = (Text * len(unchanged))(*map(text, unchanged))
    return given


def _agrees(page: Page, state: ScanState) -> bool:
    """Whether these are the changes that the page names."""
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
    """What each function takes and returns."""
    pointer, number = ctypes.c_void_p, ctypes.c_int32
    for name, result, arguments in (
        ("new", pointer, [pointer]),
        ("free", None, [pointer]),
        ("run", number, [pointer]),
        ("relation", number, [pointer, pointer, number]),
        ("unit", number, [pointer, pointer]),
        ("row", number, [pointer, pointer]),
        ("export", number, [pointer, pointer]),
    ):
        function = getattr(functions, f"penstock_page_{name}")
        function.restype, function.argtypes = result, arguments
