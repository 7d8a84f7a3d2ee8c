"""A table as its changes give it."""

from typing import Any

import pytest

from penstock.consumer.compare import Fold

LARGE = {"id": 1, "a": "x", "b": "large"}


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


def test_the_last_state_of_each_row_is_kept() -> None:
    found = fold(
        change("INSERT", 1, data=LARGE),
        change("READ", 2, data={"id": 2, "a": "y", "b": None}),
        change("UPDATE", 1, data={"id": 1, "a": "z"}, unchanged=["b"]),
        change("REPLACE", 2, data={"id": 2}),
        change("INSERT", 3, data={"id": 3}),
        change("DELETE", 3, before={"id": 3}),
        change("MESSAGE", None),
    )
    assert found.rows == {"1": {"id": 1, "a": "z", "b": "large"}, "2": {"id": 2}}
    assert found.changes == 7


def test_a_key_that_changed_removes_the_old_row_and_keeps_what_is_unchanged() -> None:
    found = fold(change("INSERT", 1, data={"id": 1, "a": "x"}))
    moved = change("UPDATE", 7, data={"id": 7}, before={"id": 1}, unchanged=["a"])
    assert found.keys(moved) == ("1", "7")
    assert found.apply(moved) == {"1": {"id": 1, "a": "x"}, "7": None}
    assert found.rows == {"7": {"id": 7, "a": "x"}}


def test_a_whole_old_row_is_no_change_of_the_key() -> None:
    found = fold(change("INSERT", 1, data=LARGE))
    update = change("UPDATE", 1, data={**LARGE, "a": "y"}, before=LARGE)
    assert found.apply(update) == {"1": LARGE}
    assert found.rows == {"1": {**LARGE, "a": "y"}}


@pytest.mark.parametrize("operation", ["TRUNCATE", "DROP"])
def test_a_table_is_emptied(operation: str) -> None:
    found = fold(change("INSERT", 1, data=LARGE))
    assert found.apply(change(operation, None)) == {"1": LARGE}
    assert found.rows == {}


def test_an_update_without_a_document_leaves_it() -> None:
    assert fold(change("INSERT", 1, data=LARGE), change("UPDATE", 1)).rows == {"1": LARGE}
    assert fold(change("UPDATE", 1)).rows == {}


def test_a_document_may_be_known_by_its_id() -> None:
    inserted = change("INSERT", None, document_id="d", data={"a": 1})
    assert fold(inserted).rows == {"d": {"a": 1}}
    assert fold(inserted, change("DELETE", None, document_id="d")).rows == {}
