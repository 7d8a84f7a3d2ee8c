"""What goes around a transform comes back: undecodable changes in their places, late columns."""

from collections.abc import Collection, Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from penstock.feeds.memory import MemoryFeed, MemoryFeedSettings
from penstock.microbatch.late import (
    CARRIER,
    Attempt,
    SideChannel,
    SideFiles,
    columns_of,
    stub_schema,
)
from penstock.model.change import COLUMNS, Images
from penstock.model.errors import Malformed, Unavailable
from penstock.model.position import START, PartitionId
from penstock.sinks.rows.intake import Order

ROWS = 5_000
LATE = frozenset(COLUMNS) - {"collection", "ordinal"}
TASK = Attempt(stage=3, number=7, is_first=True)


def batches_of(images: Images = "json", partition: str = "p0") -> list[pa.RecordBatch]:
    """ROWS changes, in batches of 300."""
    feed = MemoryFeed(MemoryFeedSettings(changes=ROWS, page=300, partitions=2))
    following = feed.follow(PartitionId(partition), START)
    decoder = feed.decoder(images)
    batches: list[pa.RecordBatch] = []
    while sum(batch.num_rows for batch in batches) < ROWS:
        for page in following.read(0):
            batches += decoder.decode(page)
    return batches


def changes(errors: Iterable[int], partition: str = "p0") -> pa.Table:
    """ROWS changes; those of these rows could not be decoded."""
    table = pa.Table.from_batches(batches_of(partition=partition))
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


@pytest.mark.slow
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


def two_tasks(folder: Path) -> tuple[SideFiles, SideFiles]:
    """Of the task that decodes, and of the one that writes; nearly."""
    return SideFiles(folder / "side_channel", LATE, 7), SideFiles(folder / "side_channel", LATE, 7)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "side_channel").iterdir())


@pytest.mark.slow
def test_only_what_is_read_goes_through_spark(tmp_path: Path) -> None:
    stubs = list(SideFiles(tmp_path / "side_channel", LATE, 7).write(batches_of()))
    assert [stub.num_rows for stub in stubs] == [2100, 2100, 800]
    for stub in stubs:
        assert stub.schema == stub_schema(batches_of()[0].schema, LATE)
        assert stub.schema.names == ["ordinal", "collection", CARRIER]
    assert names(tmp_path) == ["7-0", "7-1", "7-2"]
    assert (tmp_path / "side_channel").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("images", ["json", "msgpack"])
@pytest.mark.parametrize(
    "kept",
    [
        range(ROWS),
        range(0, ROWS, 3),
        range(2090, 2110),
        [0],
        [2099, 2100, 4199, 4200, 4999],
        [*range(10), *range(4300, 4400)],
    ],
    ids=["all", "some", "over an edge", "one", "at edges", "none of a file"],
)
def test_what_a_transform_keeps_is_whole_again(
    tmp_path: Path, images: Images, kept: list[int]
) -> None:
    source, sink = two_tasks(tmp_path)
    written = batches_of(images)
    stubs = pa.Table.from_batches(list(source.write(written))).take(list(kept))
    # Spark cuts its batches elsewhere.
    fetched = [
        whole
        for batch in stubs.combine_chunks().to_batches(max_chunksize=777)
        for whole in sink.fetch(batch)
    ]
    assert pa.Table.from_batches(fetched).equals(pa.Table.from_batches(written).take(list(kept)))


def test_a_column_that_is_read_comes_from_the_transform(tmp_path: Path) -> None:
    source, sink = two_tasks(tmp_path)
    batch = batches_of()[0]
    (stub,) = source.write([batch])
    made = pa.array(["made"] * stub.num_rows, pa.large_string())
    stub = stub.set_column(stub.schema.get_field_index("collection"), "collection", made)
    (whole,) = sink.fetch(stub)
    assert whole.schema == batch.schema
    assert set(whole.column("collection").to_pylist()) == {"made"}
    assert whole.drop_columns("collection").equals(batch.drop_columns("collection"))


def test_a_file_is_removed_when_it_is_opened(tmp_path: Path) -> None:
    source, sink = two_tasks(tmp_path)
    stubs = list(source.write(batches_of()))
    list(sink.fetch(stubs[0]))
    assert names(tmp_path) == ["7-1", "7-2"]


@pytest.mark.parametrize("places", [[1, 0], [0, 0], [0, None], [-5, 0]])
def test_stubs_that_lead_nowhere_are_refused(tmp_path: Path, places: list[int | None]) -> None:
    source, sink = two_tasks(tmp_path)
    (stub,) = source.write([batches_of()[0].slice(0, 2)])
    at = stub.schema.get_field_index(CARRIER)
    with pytest.raises((Malformed, Unavailable)):
        list(sink.fetch(stub.set_column(at, CARRIER, pa.array(places, pa.int64()))))


def test_a_file_that_is_gone_ends_the_query_which_starts_again(tmp_path: Path) -> None:
    source, sink = two_tasks(tmp_path)
    (stub,) = source.write([batches_of()[0]])
    (tmp_path / "side_channel" / "7-0").unlink()
    with pytest.raises(Unavailable, match="are gone"):
        list(sink.fetch(stub))


def test_the_option_names_columns() -> None:
    assert columns_of("") == frozenset()
    assert columns_of("after,relation_id") == {"after", "relation_id"}


def test_whole_rows_have_no_carrier() -> None:
    whole = batches_of()[0].schema
    assert CARRIER not in COLUMNS
    assert stub_schema(whole, []) == whole
