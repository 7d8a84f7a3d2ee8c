"""What goes around a transform comes back: undecodable changes in their places, late columns."""

from collections.abc import Collection, Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.feeds.memory import MemoryFeed, MemoryFeedSettings
from penstock.microbatch.late import Attempt, SideChannel
from penstock.model.change import COLUMNS
from penstock.model.position import START, PartitionId
from penstock.sinks.intake import Order

ROWS = 5_000
LATE = frozenset(COLUMNS) - {"collection", "ordinal"}
TASK = Attempt(stage=3, number=7, is_first=True)


def changes(errors: Iterable[int], partition: str = "p0") -> pa.Table:
    """ROWS changes; those of these rows could not be decoded."""
    feed = MemoryFeed(MemoryFeedSettings(changes=ROWS, page=300, partitions=2))
    following = feed.follow(PartitionId(partition), START)
    decoder = feed.decoder("json")
    batches: list[pa.RecordBatch] = []
    while sum(batch.num_rows for batch in batches) < ROWS:
        for page in following.read(0):
            batches += decoder.decode(page)
    table = pa.Table.from_batches(batches)
    operations, keys = table.column("operation").to_pylist(), table.column("key").to_pylist()
    for row in errors:
        operations[row], keys[row] = "ERROR", None
    for name, column in {"operation": operations, "key": keys}.items():
        at = table.schema.get_field_index(name)
        field = table.schema.field(name)
        table = table.set_column(at, field, pa.array(column, field.type))
    return table.combine_chunks()


def write(folder: Path, table: pa.Table, late: Collection[str], task: Attempt = TASK) -> pa.Table:
    """What a transform sees of these."""
    written = list(SideChannel(folder, late, task).write(table.to_batches(max_chunksize=300)))
    return pa.Table.from_batches(written) if written else table.slice(0, 0)


def arrived(side_channel: SideChannel, rows: pa.Table) -> list[str]:
    """The event ids that reach the sink, in the order in which it stores them."""
    order = Order()
    found: list[str] = []
    whole = rows.combine_chunks().to_batches(max_chunksize=777) if rows.num_rows else []
    batches = [
        *(each for batch in whole for each in side_channel.join(batch)),
        *side_channel.remaining(),
    ]
    for batch in batches:
        for part in order.arrange(batch):
            found += part.batch.column("event_id").to_pylist()
    return found


def ids(table: pa.Table, rows: Iterable[int]) -> list[str]:
    return [str(each) for each in table.column("event_id").take(list(rows)).to_pylist()]


NONE = pa.Table.from_batches([], schema=changes([]).schema)


@pytest.mark.parametrize("late", [LATE, ()], ids=["stubs", "whole rows"])
@pytest.mark.parametrize("kept", [range(ROWS), range(0, ROWS, 700), []], ids=["all", "few", "none"])
@pytest.mark.parametrize(
    "errors",
    [[0], [ROWS - 1], [2999, 3000, 3001], [5, 7, 9, 3500, 4400], range(300), range(ROWS)],
    ids=["first", "last", "over an edge", "some", "a page", "all"],
)
def test_no_transform_sees_or_drops_what_cannot_be_decoded(
    tmp_path: Path, late: Collection[str], errors: list[int], kept: list[int]
) -> None:
    table = changes(errors)
    seen = sorted(set(range(ROWS)) - set(errors))
    rows = write(tmp_path, table, late)
    assert rows.num_rows == len(seen)
    wanted = sorted(set(kept) - set(errors))
    at = {row: number for number, row in enumerate(seen)}
    sink = SideChannel(tmp_path, late, TASK)
    found = arrived(sink, rows.take([at[row] for row in wanted]) if wanted else NONE)
    assert found == ids(table, sorted({*wanted, *errors}))
    sink.clear()
    assert list(tmp_path.iterdir()) == []


def test_errors_are_found_while_the_other_task_still_decodes(tmp_path: Path) -> None:
    table = changes([299, 301])
    writing = SideChannel(tmp_path, (), TASK).write(table.to_batches(max_chunksize=300))
    sink = SideChannel(tmp_path, (), TASK)
    (first,) = sink.join(next(writing))
    assert first.num_rows == 299, "the error comes after the last row"
    (second,) = sink.join(next(writing))
    assert second.num_rows == 301
    assert list(sink.remaining()) == []


def test_a_task_merges_its_own_errors_only(tmp_path: Path) -> None:
    table = changes([5])
    write(tmp_path, table, ())
    other = SideChannel(tmp_path, (), Attempt(stage=3, number=70, is_first=True))
    assert arrived(other, NONE) == []
    other.clear()
    assert arrived(SideChannel(tmp_path, (), TASK), NONE) == ids(table, [5])


def test_after_a_shuffle_the_first_task_of_the_later_stage_merges_all(tmp_path: Path) -> None:
    one, other = changes([5, 4000]), changes([6], "p1")
    write(tmp_path, one, (), Attempt(stage=3, number=7, is_first=True))
    write(tmp_path, other, (), Attempt(stage=3, number=8, is_first=False))
    second = SideChannel(tmp_path, (), Attempt(stage=4, number=10, is_first=False))
    assert arrived(second, NONE) == []
    first = SideChannel(tmp_path, (), Attempt(stage=4, number=9, is_first=True))
    found = arrived(first, pa.concat_tables([one.slice(10, 10), other.slice(10, 10)]))
    wanted = [*ids(one, [5, *range(10, 20), 4000]), *ids(other, [6, *range(10, 20)])]
    assert sorted(found) == sorted(wanted)
    assert list(tmp_path.iterdir()) == []


def test_what_was_not_wanted_is_removed_and_nothing_of_another_task(tmp_path: Path) -> None:
    write(tmp_path, changes([5]), LATE)
    write(tmp_path, changes([5]), LATE, Attempt(stage=3, number=70, is_first=False))
    SideChannel(tmp_path, LATE, TASK).clear()
    left = [path.name for path in tmp_path.iterdir()]
    assert left
    assert all(name.startswith("70-") for name in left)
