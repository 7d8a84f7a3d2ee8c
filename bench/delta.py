"""Changes into Delta tables: the sink alone, and plain `deltalake` as a user would write it.

Both get the same batches, made before. The plain way reads lines by Arrow, and takes the last of
each key; 100,000 changes are one merge, or one append. At the end both tables have the same rows,
or there is no result.
"""

import gc
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, write_deltalake
from pyarrow import csv
from rich.console import Console
from rich.table import Table

from penstock.sinks import ignore
from penstock.sinks.delta import DeltaSink, DeltaSinkSettings
from penstock.testing.sinks import batch_of

_COMMIT, _BATCH = 100_000, 10_000  # changes
_BUCKETS = 16
_SCHEMA = pa.schema([
    ("id", pa.int64()), ("name", pa.string()), ("note", pa.string()), ("quantity", pa.int32()),
    ("active", pa.bool_()), ("price", pa.decimal128(12, 4)), ("ratio", pa.float64()),
    ("changed", pa.timestamp("us", tz="UTC")),
])  # fmt: skip
# PostgreSQL's types of these columns, and the modifier of numeric(12, 4).
_TYPES = (20, 25, 25, 23, 16, 1700, 701, 1184)
_MODIFIER = (12 << 16 | 4) + 4
_RELATION = orjson.dumps({
    "schema": "public", "table": "items", "relation_id": 16385, "version": "1",
    "columns": [
        {"name": name, "type": oid, "modifier": _MODIFIER if oid == 1700 else -1,
         "key": name == "id"}
        for name, oid in zip(_SCHEMA.names, _TYPES, strict=True)
    ],
}).decode()  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """Changes a second, and seconds of CPU for 100,000 of them: of penstock, and of plain
    `deltalake`. `rows`: in the table before."""

    what: str
    rows: int
    changes: int
    rate: float
    plain: float
    cpu: float
    plain_cpu: float

    @property
    def ratio(self) -> float:
        """Of the plain one's rate."""
        return self.rate / self.plain


def delta(folder: Path, *, rows: int) -> list[Committed]:
    """A log of so many inserts; these inserts into a clone, then random updates of a fifth."""
    _figures(folder / "warm", min(rows, 1000))  # what the first use costs is not counted
    return _figures(folder, rows)


def _figures(folder: Path, rows: int) -> list[Committed]:
    chance, updated = random.Random(1), max(rows // 5, 1)
    inserts = _batches("INSERT", range(1, rows + 1), 1)
    updates = _batches("UPDATE", [chance.randint(1, rows) for _ in range(updated)], rows)
    log, clone = folder / "log", folder / "clone"
    found = [
        _measured("log: inserts", 0, inserts, _sink(log, "log"), _Plain(log, merges=False)),
        _measured("clone: inserts", 0, inserts, _sink(clone, "clone"), _Plain(clone, merges=True)),
        _measured(
            "clone: updates",
            rows,
            updates,
            _sink(clone, "clone"),
            _Plain(clone, merges=True),
        ),
    ]
    _compare(log)
    _compare(clone)
    return found


def _batches(operation: str, ids: Sequence[int], first: int) -> list[pa.RecordBatch]:
    found = []
    for start in range(0, len(ids), _BATCH):
        some = ids[start : start + _BATCH]
        found.append(batch_of(
            len(some), first + start, images="text", operation=operation,
            key=[str(each) for each in some], document_id=None,
            after=[_line(each, first + start) for each in some],
            delta=[_RELATION, *[None] * (len(some) - 1)],
        ))  # fmt: skip
    return found


def _line(number: int, version: int) -> str:
    return (
        f"{number}\tcustomer {number}\ta note of ordinary length for row {number}\t{version}"
        f"\t{'tf'[number % 2]}\t{number % 9999999}.2500\t{number / 7}\t2026-11-01 00:00:00.5+00"
    )


def _sink(folder: Path, kind: str) -> Callable[[Sequence[pa.RecordBatch]], object]:
    sink = DeltaSink(DeltaSinkSettings.model_validate({
        "location": f"{folder}/{{table}}", "every": "1h", "clean": 0, "buckets": _BUCKETS,
        "commit": {"rows": _COMMIT},
        "map": [{"backend": "default", "tables": {"items": {"type": kind}}}],
    }))  # fmt: skip
    return lambda batches: sink.write(batches, ignore)


class _Plain:
    """What a user would write."""

    def __init__(self, folder: Path, *, merges: bool) -> None:
        self._location, self._merges = str(folder / "plain"), merges

    def __call__(self, batches: Sequence[pa.RecordBatch]) -> None:
        each = _COMMIT // _BATCH
        for start in range(0, len(batches), each):
            self._commit(batches[start : start + each])

    def _commit(self, batches: Iterable[pa.RecordBatch]) -> None:
        lines = [line for batch in batches for line in batch.column("after").to_pylist()]
        rows = csv.read_csv(
            pa.BufferReader("\n".join(lines).encode()),
            csv.ReadOptions(column_names=_SCHEMA.names), csv.ParseOptions(delimiter="\t"),
            csv.ConvertOptions(column_types=_SCHEMA, true_values=["t"], false_values=["f"]),
        )  # fmt: skip
        if not self._merges:
            write_deltalake(self._location, rows, mode="append")
            return
        numbered = rows.append_column("number", pa.array(range(len(rows))))
        last = numbered.group_by("id").aggregate([("number", "max")])
        rows = rows.take(last.column("number_max"))
        table = DeltaTable.create(self._location, _SCHEMA, mode="ignore")
        merger = table.merge(rows, "t.id = s.id", source_alias="s", target_alias="t")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()


def _measured(
    what: str, rows: int, batches: Sequence[pa.RecordBatch], *ways: Callable[[Any], object]
) -> Committed:
    changes = sum(map(len, batches))
    spent = []
    for way in ways:
        gc.collect()
        gc.disable()  # as in the workers that a pipeline writes in
        try:
            wall, cpu = time.monotonic(), time.process_time()
            way(batches)
            spent.append((time.monotonic() - wall, time.process_time() - cpu))
        finally:
            gc.enable()
    (wall, cpu), (plain, plain_cpu) = spent
    return Committed(
        what=what, rows=rows, changes=changes, rate=changes / wall, plain=changes / plain,
        cpu=cpu / changes * 100_000, plain_cpu=plain_cpu / changes * 100_000,
    )  # fmt: skip


def _compare(folder: Path) -> None:
    ours, theirs = (_sums(folder / name) for name in ("items", "plain"))
    if ours != theirs:
        raise RuntimeError(f"the tables in {folder} differ: {ours}, plain {theirs}")


def _sums(location: Path) -> list[Any]:
    rows = DeltaTable(str(location)).to_pyarrow_dataset().to_table(columns=["id", "quantity"])
    products = pc.multiply(rows.column("id"), rows.column("quantity").cast(pa.int64()))
    return [len(rows), pc.sum(rows.column("id")).as_py(), pc.sum(products).as_py()]


def show_commits(console: Console, found: Sequence[Committed]) -> None:
    """One line each."""
    shown = Table(title="Delta tables", title_justify="left")
    shown.add_column("what")
    for name in (
        "rows before", "changes", "penstock, /s", "plain, /s", "ratio", "CPU s per 100,000",
        "plain, CPU s",
    ):  # fmt: skip
        shown.add_column(name, justify="right")
    for one in found:
        shown.add_row(
            one.what, f"{one.rows:,}", f"{one.changes:,}", f"{one.rate:,.0f}", f"{one.plain:,.0f}",
            f"{one.ratio:.2f}", f"{one.cpu:.2f}", f"{one.plain_cpu:.2f}",
        )  # fmt: skip
    console.print(shown)
