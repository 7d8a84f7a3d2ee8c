"""The last state of each document, and which documents differ."""

from typing import Any

from penstock.compare.comparison import Comparison
from penstock.compare.fold import Fold


def identity(change: Any) -> str:
    return str(change["key"]["id"] if change.get("key") else change["document_id"])


def change(operation: str, key: int | None, **fields: Any) -> dict[str, Any]:
    found = {"key": None if key is None else {"id": key}, "document_id": None, "data": None}
    return {"operation": operation, "before": None, "unchanged": [], **found, **fields}


def fold(*changes: dict[str, Any]) -> Fold:
    found = Fold(identity)
    for each in changes:
        found.apply(each)
    return found


def test_the_last_state_of_each_document_is_kept() -> None:
    found = fold(
        change("INSERT", 1, data={"id": 1, "a": "x", "b": "large"}),
        change("INSERT", 2, data={"id": 2, "a": "y", "b": None}),
        change("UPDATE", 1, data={"id": 1, "a": "z"}, unchanged=["b"]),
        change("DELETE", 2, before={"id": 2}),
        change("MESSAGE", None),
    )
    assert found.documents == {"1": {"id": 1, "a": "z", "b": "large"}}
    assert found.changes == 5


def test_a_key_that_changed_removes_the_old_document() -> None:
    found = fold(
        change("INSERT", 1, data={"id": 1, "a": "x"}),
        change("UPDATE", 7, data={"id": 7}, before={"id": 1}, unchanged=["a"]),
    )
    assert found.documents == {"7": {"id": 7, "a": "x"}}


def test_truncate_removes_all_and_an_update_without_a_document_leaves_it() -> None:
    found = fold(change("INSERT", 1, data={"id": 1}), change("UPDATE", 1))
    assert found.documents == {"1": {"id": 1}}
    found.apply(change("TRUNCATE", None))
    assert found.documents == {}


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
