"""How many changes of which tables were stored, from the columns of their batches."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

# What a change is counted by.
COUNTED = ["backend", "namespace", "collection", "operation"]

# Tables of a backend that are counted by name, and the name of all others.
NAMED, OTHER = 200, "other"

Key = tuple[str, str]  # backend and table
Counted = tuple[str, str | None, str | None, str]  # values of COUNTED


class TableCounts:
    """Of one process. Adding costs some 50 ns a change; rows are never looped over. `_named`: the
    tables that are counted by name. A table that became busier than one of them takes its place,
    and what was counted of it before stays with the others."""

    def __init__(self) -> None:
        self._counted: list[pa.Table] = []  # of each call of `add`, by COUNTED
        self._rows: Counter[Counted] = Counter()  # that were counted before
        self._totals: dict[str, Counter[str]] = {}  # of each backend, by table
        self._named: dict[str, set[str]] = {}

    def add(self, batches: Sequence[pa.RecordBatch]) -> None:
        """These changes are stored; batches have at least the columns COUNTED."""
        # By columns: schemas of batches may differ in what is nullable.
        table = pa.table({
            name: pa.chunked_array([batch.column(name) for batch in batches]) for name in COUNTED
        })  # fmt: skip
        grouped = table.group_by(COUNTED, use_threads=False)
        self._counted.append(grouped.aggregate([([], "count_all")]))

    def add_counted(self, rows: Counter[Counted]) -> None:
        """So many changes are stored."""
        self._rows.update(rows)

    def take(self) -> list[dict[str, Any]]:
        """What was added since the last call, as `Progress.report` takes it under `tables`."""
        rows, self._rows = self._rows, Counter()
        if self._counted:
            several, self._counted = pa.concat_tables(self._counted), []
            # Names become Python's last: of a thousand tables each batch has nearly all.
            grouped = several.group_by(COUNTED, use_threads=False)
            table = grouped.aggregate([("count_all", "sum")]).select([*COUNTED, "count_all_sum"])
            for *names, count in zip(*(one.to_pylist() for one in table.columns), strict=True):
                rows[tuple(names)] += count
        found: dict[Key, Counter[str]] = {}
        for (backend, schema, name, operation), count in rows.items():
            if name is not None:
                key = backend, f"{schema}.{name}" if schema else name
                found.setdefault(key, Counter())[operation] += count
        self._rank(found)
        applied: dict[Key, Counter[str]] = {}
        for (backend, name), counts in found.items():
            shown = name if name in self._named[backend] else OTHER
            applied.setdefault((backend, shown), Counter()).update(counts)
        return [
            {"backend": backend, "table": name, "applied": counts}
            for (backend, name), counts in applied.items()
        ]

    def _rank(self, found: dict[Key, Counter[str]]) -> None:
        for (backend, name), counts in found.items():
            self._totals.setdefault(backend, Counter())[name] += counts.total()
            named = self._named.setdefault(backend, set())
            if len(named) < NAMED:
                named.add(name)
        for backend in {backend for backend, _ in found}:
            totals, named = self._totals[backend], self._named[backend]
            others = [name for of, name in found if of == backend and name not in named]
            if others:
                busiest = max(others, key=totals.__getitem__)
                idlest = min(named, key=totals.__getitem__)
                if totals[busiest] > totals[idlest]:
                    named.remove(idlest)
                    named.add(busiest)
