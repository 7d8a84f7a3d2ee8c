"""New rows of one relation that wait to be read together (see bulk.py).

Where a row belongs among the changes of its page is settled when it is added; its values may come
later, because no change depends on another's.
"""

from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any

from penstock.wire.pgoutput.bulk import WORTH_IT, read_columns
from penstock.wire.pgoutput.images import Pack
from penstock.wire.pgoutput.layout import RowLayout
from penstock.wire.pgoutput.rows import BROKEN, NO_COLUMNS, read_tuple

__all__ = ["BrokenRow", "Poisoned", "Tenant", "Waiting"]

# A row -> its tenant.
Tenant = Callable[[dict[str, Any]], str | None]
# A row that can't be read (its unit, relation and ordinal; its tuple's start; its message's end;
# its layout) -> the row that takes its place.
Poisoned = Callable[[tuple[Any, ...], int, int, RowLayout], tuple[Any, ...]]

_NEW = b"N"[0]


class BrokenRow(Exception):
    """The row from `at` (its tuple) to `stop` can't be read; somebody else explains why."""

    def __init__(self, at: int, stop: int) -> None:
        super().__init__(at, stop)
        self.at = at
        self.stop = stop


class Waiting:
    """Rows of one layout: where each belongs among all rows, and where its tuple is."""

    __slots__ = ("_slots", "_starts", "_stops", "layout")

    def __init__(self, layout: RowLayout) -> None:
        self.layout = layout
        self._slots: list[int] = []
        self._starts: list[int] = []
        self._stops: list[int] = []

    def add(self, slot: int, starts: list[int], stops: list[int]) -> None:
        """From `rows[slot]` on, so many rows have their unit, relation, ordinal and operation; the
        rest is in the data."""
        self._slots.extend(range(slot, slot + len(starts)))
        self._starts.extend(starts)
        self._stops.extend(stops)

    def complete(
        self,
        data: bytes,
        rows: list[tuple[Any, ...]],
        tenant: Tenant | None,
        pack: Pack,
        poisoned: Poisoned | None,
    ) -> None:
        """Completes `rows`; one that can't be read is `poisoned`, without which it raises
        BrokenRow."""
        left: Iterable[int] = range(len(self._slots))
        if len(self._slots) >= WORTH_IT and self.layout.columns:
            left = self._in_bulk(data, rows, tenant, pack)
        for number in left:
            start, stop = self._starts[number], self._stops[number]
            slot = self._slots[number]
            try:
                rest = self._rest(data, start, stop, tenant, pack)
                if rest[-1] and rows[slot][3] == "INSERT":
                    raise ValueError
                rows[slot] += rest
            except BROKEN:
                if poisoned is None:
                    raise BrokenRow(start, stop) from None
                rows[slot] = poisoned(rows[slot][:3], start, stop, self.layout)

    def _rest(
        self, data: bytes, start: int, stop: int, tenant: Tenant | None, pack: Pack
    ) -> tuple[Any, ...]:
        end, row, unchanged = read_tuple(data, start, _NEW, self.layout.columns)
        if end != stop or self.layout.fault is not None:
            raise ValueError
        key, document_id = self.layout.identify(row)
        owner = tenant(row) if tenant else None
        return owner, None, document_id, key, None, pack(row), unchanged

    def _in_bulk(
        self, data: bytes, rows: list[tuple[Any, ...]], tenant: Tenant | None, pack: Pack
    ) -> Iterable[int]:
        """Completes the plain ones, and says which are left."""
        layout, slots = self.layout, self._slots
        everything = range(len(slots))
        read = read_columns(data, self._starts, self._stops, layout.columns)
        if read is None:
            return everything
        chosen, values = read
        try:
            documents = list(map(layout.build, *values))
            images = list(map(pack, documents))
            keys = layout.identify_all(documents, values)
            tenants = repeat(None) if tenant is None else map(tenant, documents)
            complete = [
                (owner, None, document_id, key, None, image, NO_COLUMNS)
                for owner, (key, document_id), image in zip(tenants, keys, images, strict=False)
            ]
        except BROKEN:
            return everything
        for number, rest in zip(chosen, complete, strict=True):
            rows[slots[number]] += rest
        return sorted(set(everything).difference(chosen))
