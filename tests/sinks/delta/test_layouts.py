"""What cannot be in one Delta table is said, and nothing is written."""

from copy import deepcopy
from typing import Any

import pytest

from penstock.sinks.delta import lake
from tests.progress import Noted
from tests.sinks.delta.lake import Lake
from tests.sinks.delta.test_commits import SinkOf, sink_of, states, there
from tests.sinks.postgres.test_write import ITEMS, rows_of

__all__ = ["sink_of", "there"]


@pytest.mark.parametrize(
    ("settings", "kind", "name", "says"),
    [
        ({}, "clone", "__gone", "penstock has beside them: __gone"),
        ({"buckets": 2}, "clone", "_Bucket", "penstock has beside them: _bucket"),
        ({}, "log", "_operation", "penstock has beside them: _operation"),
        ({}, "log", "_day", "penstock has beside them: _day"),
        ({}, "clone", "ID", "differ only by case: id"),
    ],
)
def test_a_table_with_a_name_that_is_taken_waits(
    there: Lake, sink_of: SinkOf, settings: dict[str, Any], kind: str, name: str, says: str
) -> None:
    relation = deepcopy(ITEMS)
    relation["columns"][1]["name"] = name
    sink = sink_of(settings, type=kind)
    sink.write([rows_of("INSERT 1 one", relation=relation)], Noted())
    assert says in states(sink)["waiting"]
    assert not there.is_there("items")


def test_names_of_another_kind_of_table_are_the_users(there: Lake, sink_of: SinkOf) -> None:
    relation = deepcopy(ITEMS)
    relation["columns"][1]["name"] = "_operation"
    sink_of(type="clone").write([rows_of("INSERT 1 one", relation=relation)], Noted())
    assert there.rows("items") == [(1, "one")]


@pytest.mark.parametrize(
    ("settings", "kind"), [({"buckets": 4}, "clone"), ({}, "clone"), ({"buckets": 2}, "log")]
)
def test_a_table_is_not_written_otherwise_than_it_was_made(
    there: Lake, sink_of: SinkOf, settings: dict[str, Any], kind: str
) -> None:
    """A key would be looked for in another bucket, and be there twice."""
    first = [rows_of(*[f"INSERT {number} one" for number in range(9)], commit=1)]
    sink_of({"buckets": 2}, type="clone").write(first, Noted())
    before = there.rows("items")
    sink = sink_of(settings, type=kind)
    sink.write([rows_of(*[f"UPDATE {n} uno" for n in range(9)], commit=2)], Noted())
    assert "was made by penstock, in 2 buckets" in states(sink)["waiting"]
    assert there.rows("items") == before


def test_a_panic_of_the_library_is_an_error_of_the_table(
    sink_of: SinkOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    panic = type("PanicException", (BaseException,), {})

    def panics(*_: Any) -> None:
        raise panic("called `Result::unwrap()` on an `Err` value")

    sink = sink_of(type="clone")
    sink.write([rows_of("INSERT 1 one", commit=1)], Noted())
    with monkeypatch.context() as patch:
        patch.setattr(lake, "merge", panics)
        sink.write([rows_of("INSERT 2 two", commit=2)], Noted())
    assert "unwrap" in str(states(sink))
