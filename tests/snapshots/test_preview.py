"""What statements make of sampled rows, and which of them is which; by statements in Python."""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from penstock.config import Backend, parse_pipeline
from penstock.feeds import Feed
from penstock.model.errors import SettingsError
from penstock.snapshots.preview import TablePreview, previews, tables_of

Row = dict[str, Any]


class Statements:
    """Rows of changes -> rows, by a function of each."""

    refusal, identity = "", "test"

    def __init__(self, make: Callable[[Row], Sequence[Row]]) -> None:
        self._make = make

    def made(self, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.Table:
        rows = [each for row in batch.to_pylist() for each in self._make(row)]
        return pa.Table.from_pylist(rows, schema=batch.schema).select(list(columns))


def previewed(make: Callable[[Row], Sequence[Row]]) -> TablePreview:
    pipeline = parse_pipeline("backends: [{type: memory}]\nsink: {type: memory}")
    tables = tables_of(pipeline, ["memory.items"], "")
    (found,) = previews(pipeline, tables, 3, Statements(make))
    return found


def test_a_row_may_become_several_or_none() -> None:
    found = previewed(lambda row: {0: [], 1: [row], 2: [row, row]}[int(row["key"][6])])
    assert [len(row.made) for row in found.rows] == [0, 1, 2]
    assert [row.left_out_by for row in found.rows] == ["transform", "", ""]


def test_rows_with_another_event_id_are_of_no_single_row() -> None:
    """Then it is not known which are left out, either."""
    found = previewed(lambda row: [{**row, "event_id": "sum"}])
    assert [(row.before is None, len(row.made), row.left_out_by) for row in found.rows] == [
        (False, 0, ""), (False, 0, ""), (False, 0, ""), (True, 3, ""),
    ]  # fmt: skip


def test_broken_json_is_a_problem_of_its_row() -> None:
    found = previewed(lambda row: [{**row, "after": "{" if row["ordinal"] == 1 else row["after"]}])
    assert [row.problem and row.problem.message for row in found.rows] == [
        None, "transform makes broken JSON of it", None,
    ]  # fmt: skip


def test_what_statements_fail_at_is_a_problem_of_the_table() -> None:
    def fail(row: Row) -> Sequence[Row]:
        raise SettingsError("transform fails", "spark")

    found = previewed(fail)
    assert (found.rows, str(found.problem)) == ((), "transform fails [spark.settings]")


def test_a_feed_without_samples_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare(Feed):
        """Has what every feed has."""

    monkeypatch.setattr(Backend, "feed", lambda _: Bare())
    pipeline = parse_pipeline("backends: [{type: memory}]\nsink: {type: memory}")
    with pytest.raises(SettingsError, match="type memory cannot be sampled") as caught:
        tables_of(pipeline, [], "")
    assert caught.value.code == "snapshots.no-samples"
    assert caught.value.hint
