"""Which documents differ, and when a difference is none: a message's value is the table's value
only as the message format writes it.
"""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest

from penstock.consumer.compare import Comparison, differing, same
from penstock.model.images import JsonText
from tests.consumer.test_fold import change, identity


def test_differences_are_named_and_resolve_when_the_stream_comes_to_them() -> None:
    comparison = Comparison(identity)
    comparison.fold.apply(change("INSERT", 1, data={"id": 1, "a": 1, "b": 2}))
    rows = [("1", {"id": 1, "a": 5, "b": 3}), ("2", {"id": 2})]
    comparison.add(rows, every=True)
    assert comparison.differences == {"1": "a, b", "2": "missing in the stream"}
    comparison.apply(change("INSERT", 2, data={"id": 2}))
    comparison.apply(change("UPDATE", 1, data={"id": 1, "a": 5, "b": 3}))
    assert comparison.differences == {}
    comparison.apply(change("UPDATE", 1, data={"id": 1, "a": 6, "b": 3}))
    assert comparison.differences == {}
    assert comparison.compared == 2


def test_a_document_that_only_the_stream_has_differs_if_all_were_read() -> None:
    for every, expected in ((False, {}), (True, {"1": "missing in the source"})):
        comparison = Comparison(identity)
        comparison.fold.apply(change("INSERT", 1, data={"id": 1}))
        comparison.add([], every=every)
        assert comparison.differences == expected
    comparison.apply(change("DELETE", 1))
    assert comparison.differences == {}


UTC2 = timezone(timedelta(hours=2))
TOKEN = "0f0e0d0c-0b0a-0908-0706-050403020100"


@pytest.mark.parametrize(
    ("value", "copy"),
    [
        (None, None),
        (True, True),
        (2**62, 2**62),
        (1.5, 1.5),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
        (Decimal("12.3400"), "12.3400"),
        (Decimal("NaN"), "NaN"),
        ("ü", "ü"),
        (b"\x00\xff", b"\x00\xff"),
        (b"\x00\xff", "AP8="),
        (UUID(TOKEN), TOKEN),
        (date(2026, 1, 2), "2026-01-02"),
        (datetime(2026, 1, 2, 5, 4, 5, 600000, tzinfo=UTC2), "2026-01-02T03:04:05.6Z"),
        (datetime(2026, 1, 2, 3, 4, 5), "2026-01-02T03:04:05"),
        ([[1, None], [3, 4]], [[1, None], [3, 4]]),
        ({"a": [1, {"b": 2.5}]}, {"a": [1, {"b": 2.5}]}),
        ([], []),
        (JsonText('{"a": [1.50, null]}'), {"a": [1.5, None]}),
        (JsonText('{"a": 1.50}'), '{"a": 1.50}'),
        (JsonText('"x"'), '"x"'),
        (JsonText("null"), "null"),
        (JsonText("true"), True),
        ([JsonText("[1]"), None], ["[1]", None]),
    ],
)
def test_the_same_value_is_the_same(value: object, copy: object) -> None:
    assert same(value, copy)


@pytest.mark.parametrize(
    ("value", "copy"),
    [
        (None, ""),
        (None, "null"),
        (JsonText("null"), None),
        (JsonText('{"a": 1.50}'), '{"a": 1.5}'),
        (JsonText('{"a": 1}'), {"a": 2}),
        (JsonText("true"), 1),
        (True, 1),
        (1, True),
        (1, 1.0),
        (1, "1"),
        (float("nan"), None),
        (Decimal("12.3400"), "12.34"),
        (Decimal("12.34"), 12.34),
        ("a", "b"),
        (b"a", "a"),
        (UUID(TOKEN), TOKEN.upper()),
        (date(2026, 1, 2), "2026-01-02T00:00:00"),
        (datetime(2026, 1, 2, 3, tzinfo=UTC), "2026-01-02T03:00:00"),
        (datetime(2026, 1, 2, 3), "2026-01-02T03:00:00Z"),
        (datetime(2026, 1, 2, 3), "soon"),
        ([1], [1, 2]),
        ([1, None], [1, 2]),
        ({"a": None}, {}),
        ({}, {"a": 1}),
        ({}, None),
    ],
)
def test_anything_else_is_not(value: object, copy: object) -> None:
    assert not same(value, copy)


def test_differing_columns_are_named_whichever_side_has_them() -> None:
    assert differing({"a": 1, "b": 2, "c": None}, {"a": 1, "b": 3, "d": 4}) == ["b", "c", "d"]
