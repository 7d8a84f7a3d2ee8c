"""Documents as Arrow columns: nothing is lost, and what does not fit is told."""

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from penstock.model.errors import SettingsError
from penstock.typed.documents import DocumentColumns

_US, _UTC = pa.timestamp("us"), pa.timestamp("us", tz="UTC")
# Type, value of an image, value of the column.
FITS: list[tuple[Any, Any, Any]] = [
    (pa.string(), "x", "x"),
    (pa.string(), 12, "12"),
    (pa.string(), True, "true"),
    (pa.string(), b"\0", "AA=="),
    (pa.string(), {"a": [1, b"\0"]}, '{"a":[1,"AA=="]}'),
    (pa.bool_(), False, False),
    (pa.int8(), -128, -128),
    (pa.int32(), 7.0, 7),
    (pa.int64(), "9007199254740993", 2**53 + 1),
    (pa.int64(), "-9223372036854775808", -(2**63)),
    (pa.float64(), 3, 3.0),
    (pa.float64(), 0.1, 0.1),
    (pa.float64(), "Infinity", float("inf")),
    (pa.float64(), "0.10", 0.1),
    (pa.float32(), 0.5, 0.5),
    (pa.decimal128(20, 2), "1.50", Decimal("1.50")),
    (pa.decimal128(20, 2), 12, Decimal(12)),
    (pa.decimal128(20, 2), 0.25, Decimal("0.25")),
    (pa.decimal128(38, 0), "9" * 38, Decimal("9" * 38)),
    (pa.decimal128(5, 1), "1.5E+2", Decimal(150)),
    (_UTC, "2026-01-02T03:04:05.678Z", datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)),
    (_UTC, "2026-01-02T03:04:05.1234567+02:00", datetime(2026, 1, 2, 1, 4, 5, 123456, UTC)),
    (_US, "2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5)),
    (_US, "2026-01-02T03:04:05", datetime(2026, 1, 2, 3, 4, 5)),
    (pa.date32(), "2026-01-02", date(2026, 1, 2)),
    (pa.date32(), "2026-01-02T00:00:00.000Z", date(2026, 1, 2)),
    (pa.binary(), b"\0\1", b"\0\1"),
    (pa.binary(), {"$binary": {"base64": "AAE=", "subType": "80"}}, b"\0\1"),
    (pa.list_(pa.int32()), [1, None, 2.0], [1, None, 2]),
    (pa.list_(pa.list_(pa.string())), [["a"], [], None], [["a"], [], None]),
    (pa.map_(pa.string(), pa.int64()), {"a": 1, "b": None}, [("a", 1), ("b", None)]),
    (pa.struct({"a": pa.int8(), "b": _UTC}), {"a": 1, "c": 0}, {"a": 1, "b": None}),
    (pa.struct({"a": pa.list_(pa.struct({"b": pa.decimal128(3, 1)}))}), {"a": [{"b": "1.5"}, {}]},
     {"a": [{"b": Decimal("1.5")}, {"b": None}]}),
]  # fmt: skip
# Type, value of an image, where, what was found.
MISFITS: list[tuple[Any, Any, str, str]] = [
    (pa.bool_(), 1, "x", "a number"),
    (pa.bool_(), "true", "x", "text"),
    (pa.int8(), 128, "x", "a number"),
    (pa.int32(), True, "x", "a boolean"),
    (pa.int64(), 1.5, "x", "a number"),
    (pa.int64(), "007", "x", "text"),
    (pa.int64(), "9223372036854775808", "x", "text"),
    (pa.int64(), "1" * 5000, "x", "text"),
    (pa.float64(), "9007199254740993", "x", "text"),
    (pa.float64(), 2**53 + 1, "x", "a number"),
    (pa.float64(), "0.12345678901234567890", "x", "text"),
    (pa.float64(), " 1", "x", "text"),
    (pa.float64(), "1_0", "x", "text"),
    (pa.float64(), {}, "x", "a document"),
    (pa.float32(), 1e300, "x", "a number"),
    (pa.decimal128(3, 1), "1.25", "x", "text"),
    (pa.decimal128(3, 1), 100, "x", "a number"),
    (pa.decimal128(3, 1), "NaN", "x", "text"),
    (_UTC, "2026-01-02T03:04:05", "x", "text"),
    (_UTC, "+012000-01-01T00:00:00.000Z", "x", "text"),
    (_UTC, 1767323045, "x", "a number"),
    (_US, "2026-01-02T03:04:05+02:00", "x", "text"),
    (pa.date32(), "2026-01-02T00:00:01Z", "x", "text"),
    (pa.binary(), "AAE=", "x", "text"),
    (pa.list_(pa.int8()), [1, [2]], "x[]", "an array"),
    (pa.list_(pa.int8()), {"a": 1}, "x", "a document"),
    (pa.map_(pa.string(), pa.int8()), {"a": b""}, "x{}", "binary data"),
    (pa.struct({"a": pa.struct({"b": pa.int8()})}), {"a": {"b": "z"}}, "x.a.b", "text"),
    (pa.struct({"a": pa.int8()}), [1], "x", "an array"),
]


def columns_of(kind: Any) -> DocumentColumns:
    return DocumentColumns(pa.schema([("x", kind)]))


@pytest.mark.parametrize(("kind", "given", "expected"), FITS, ids=str)
def test_a_value_fits(kind: Any, given: Any, expected: Any) -> None:
    [column], misfits = columns_of(kind).columns([{"x": given}, None, {}, {"x": None}])
    assert column.type == kind
    assert column.to_pylist() == [expected, None, None, None]
    assert not misfits


@pytest.mark.parametrize(("kind", "given", "path", "found"), MISFITS, ids=str)
def test_a_value_that_does_not_fit_is_null_and_told(
    kind: Any, given: Any, path: str, found: str
) -> None:
    [column], misfits = columns_of(kind).columns([{}, {"x": given}])
    [misfit] = misfits["x"]
    assert (misfit.row, misfit.path, misfit.found) == (1, path, found)
    inner = column.to_pylist()[1]
    assert not inner or "None" in str(inner)


def test_all_values_of_a_column_are_as_each_alone() -> None:
    """Columns of one type are read at once, others value by value: with the same result."""
    random.seed(4)
    for kind in {kind for kind, *_ in FITS}:
        given = [each for wanted, *each in [*FITS, *((k, v, None) for k, v, *_ in MISFITS)]
                 if wanted == kind]  # fmt: skip
        for _ in range(20):
            mixed = random.sample(given, random.randint(1, len(given)))
            [column], misfits = columns_of(kind).columns([{"x": value} for value, _ in mixed])
            alone = [columns_of(kind).columns([{"x": value}]) for value, _ in mixed]
            assert column.to_pylist() == [found.to_pylist()[0] for (found,), _ in alone]
            rows = {each.row for each in misfits.get("x", ())}
            assert rows == {row for row, (_, each) in enumerate(alone) if each}


_VARIANT = pa.struct([pa.field("value", pa.binary(), nullable=False)])  # as Spark has it


@pytest.mark.parametrize(
    "kind", [pa.duration("us"), pa.list_(pa.time64("us")), pa.null(), _VARIANT], ids=str
)
def test_a_type_that_documents_have_not_is_refused(kind: Any) -> None:
    with pytest.raises(SettingsError, match="declare it as a string"):
        columns_of(kind)
