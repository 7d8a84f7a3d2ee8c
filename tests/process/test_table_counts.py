"""Changes by table: counted from columns, by name for the busiest."""

from collections import Counter

import pyarrow as pa
import pytest

from penstock.process.table_counts import NAMED, OTHER, TableCounts


def batch(*changes: tuple[str | None, str | None, str]) -> pa.RecordBatch:
    schemas, names, operations = zip(*changes, strict=True)
    columns = {"backend": ["a"] * len(changes), "namespace": schemas, "collection": names}
    text = {name: pa.array(values, pa.string()) for name, values in columns.items()}
    return pa.RecordBatch.from_pydict({**text, "operation": pa.array(operations, pa.string())})


def applied(counts: TableCounts) -> dict[str, Counter[str]]:
    return {row["table"]: row["applied"] for row in counts.take()}


def test_changes_are_counted_by_table_and_operation_until_they_are_taken() -> None:
    counts = TableCounts()
    counts.add([batch(("public", "t", "INSERT"), ("public", "t", "INSERT"), (None, "u", "DELETE"))])
    counts.add([batch(("public", "t", "UPDATE"), (None, None, "MESSAGE"))])
    assert applied(counts) == {"public.t": {"INSERT": 2, "UPDATE": 1}, "u": {"DELETE": 1}}
    assert applied(counts) == {}


@pytest.mark.slow
def test_the_busiest_are_named_and_none_is_counted_twice() -> None:
    counts, total = TableCounts(), Counter[str]()
    for busy in range(300):
        names = [f"t{number}" for number in range(300)] + [f"t{299 - busy % 20}"] * 5
        counts.add([batch(*(("s", name, "INSERT") for name in names))])
        found = applied(counts)
        assert len(found) <= NAMED + 1
        total.update({name: count["INSERT"] for name, count in found.items()})
    assert total.total() == 300 * 305
    assert {f"s.t{number}" for number in range(280, 300)} < found.keys()
    assert found[OTHER].total() >= 100


def test_batches_may_differ_in_what_is_nullable() -> None:
    counts, one = TableCounts(), batch(("s", "t", "INSERT"))
    strict = pa.schema([field.with_nullable(False) for field in one.schema])
    counts.add([one, pa.RecordBatch.from_arrays(one.columns, schema=strict)])
    counts.add([pa.RecordBatch.from_arrays(one.columns, schema=strict)])
    assert applied(counts) == {"s.t": {"INSERT": 3}}
