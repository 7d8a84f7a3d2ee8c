"""Which documents differ, and when a difference is none."""

from typing import Any

from penstock.consumer.compare.comparison import Comparison
from penstock.consumer.mirror.fold import Fold


def identity(change: Any) -> str:
    return str(change["key"]["id"] if change.get("key") else change["document_id"])


def change(operation: str, key: int | None, **fields: Any) -> dict[str, Any]:
    found = {"key": None if key is None else {"id": key}, "document_id": None, "data": None}
    return {"operation": operation, "before": None, "unchanged": [], **found, **fields}


def fold(*changes: dict[str, Any]) -> Fold[str]:
    found = Fold(identity)
    for each in changes:
        found.apply(each)
    return found


def test_differences_are_named_and_resolve_when_the_stream_comes_to_them() -> None:
    comparison = Comparison(fold(change("INSERT", 1, data={"id": 1, "a": 1, "b": 2})))
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
    known = fold(change("INSERT", 1, data={"id": 1}))
    for every, expected in ((False, {}), (True, {"1": "missing in the source"})):
        comparison = Comparison(known)
        comparison.add([], every=every)
        assert comparison.differences == expected
    comparison.apply(change("DELETE", 1))
    assert comparison.differences == {}
