"""Late columns: laid down by one task, put together again behind a transform."""

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.change import COLUMNS, Images
from penstock.errors import Malformed, Unavailable
from penstock.feeds.memory import MemoryFeed, MemoryFeedSettings
from penstock.position import PartitionId
from penstock.tasks.late.side_files import CARRIER, SideFiles, columns_of, stub_schema

LATE = frozenset(COLUMNS) - {"collection", "ordinal"}
ROWS = 5_000


def changes(images: Images = "json") -> list[pa.RecordBatch]:
    """ROWS changes, in batches of 300."""
    feed = MemoryFeed(MemoryFeedSettings(changes=ROWS, page=300))
    decoder = feed.decoder(images)
    following = feed.follow(PartitionId("p0"))
    batches: list[pa.RecordBatch] = []
    while sum(batch.num_rows for batch in batches) < ROWS:
        for page in following.read(0):
            batches += decoder.decode(page)
    return batches


def depots(folder: Path) -> tuple[SideFiles, SideFiles]:
    """Of the task that decodes, and of the one that writes; nearly."""
    return SideFiles(folder / "depot", LATE, 7), SideFiles(folder / "depot", LATE, 7)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "depot").iterdir())


def test_only_what_is_read_goes_through_spark(tmp_path: Path) -> None:
    stubs = list(SideFiles(tmp_path / "depot", LATE, 7).lay(changes()))
    assert [stub.num_rows for stub in stubs] == [2100, 2100, 800]
    for stub in stubs:
        assert stub.schema == stub_schema(changes()[0].schema, LATE)
        assert stub.schema.names == ["ordinal", "collection", CARRIER]
    assert names(tmp_path) == ["7-0", "7-1", "7-2"]
    assert (tmp_path / "depot").stat().st_mode & 0o777 == 0o700


def with_errors(batches: list[pa.RecordBatch], rows: list[int]) -> pa.Table:
    """All changes; those of these rows could not be decoded."""
    table = pa.Table.from_batches(batches)
    operations, keys = table.column("operation").to_pylist(), table.column("key").to_pylist()
    for row in rows:
        operations[row], keys[row] = "ERROR", None
    for name, column in {"operation": operations, "key": keys}.items():
        at = table.schema.get_field_index(name)
        field = table.schema.field(name)
        table = table.set_column(at, field, pa.array(column, field.type))
    return table


@pytest.mark.parametrize("kept", [range(ROWS), range(0, ROWS, 700), []], ids=["all", "few", "none"])
@pytest.mark.parametrize(
    "errors",
    [[0], [ROWS - 1], [2999, 3000, 3001], [5, 7, 9, 3500, 4400], range(300), range(ROWS)],
    ids=["first", "last", "over an edge", "some", "a page", "all"],
)
def test_no_transform_sees_or_drops_what_cannot_be_decoded(
    tmp_path: Path, errors: list[int], kept: list[int]
) -> None:
    source, sink = depots(tmp_path)
    laid = with_errors(changes(), list(errors))
    stubs = list(source.lay(laid.to_batches(max_chunksize=300)))
    wanted = sorted(set(kept) - set(errors))
    seen = sorted(set(range(ROWS)) - set(errors))
    assert sum(stub.num_rows for stub in stubs) == len(seen)
    fetched = []
    if wanted:
        at = {row: number for number, row in enumerate(seen)}
        through = pa.Table.from_batches(stubs).take([at[row] for row in wanted])
        for batch in through.combine_chunks().to_batches(max_chunksize=777):
            fetched += list(sink.fetch(batch))
    fetched += list(sink.rest())
    expected = laid.take(sorted({*wanted, *errors}))
    assert pa.Table.from_batches(fetched).equals(expected)
    sink.clear()
    assert names(tmp_path) == []


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
    source, sink = depots(tmp_path)
    laid = changes(images)
    stubs = pa.Table.from_batches(list(source.lay(laid))).take(list(kept))
    # Spark cuts its batches elsewhere.
    fetched = [
        whole
        for batch in stubs.combine_chunks().to_batches(max_chunksize=777)
        for whole in sink.fetch(batch)
    ]
    assert pa.Table.from_batches(fetched).equals(pa.Table.from_batches(laid).take(list(kept)))
    sink.clear()
    assert names(tmp_path) == []


def test_a_column_that_is_read_comes_from_the_transform(tmp_path: Path) -> None:
    source, sink = depots(tmp_path)
    batch = changes()[0]
    (stub,) = source.lay([batch])
    made = pa.array(["made"] * stub.num_rows, pa.large_string())
    stub = stub.set_column(stub.schema.get_field_index("collection"), "collection", made)
    (whole,) = sink.fetch(stub)
    assert whole.schema == batch.schema
    assert set(whole.column("collection").to_pylist()) == {"made"}
    assert whole.drop_columns("collection").equals(batch.drop_columns("collection"))


def test_files_go_when_they_are_read_or_not_wanted_and_no_other_task_s(tmp_path: Path) -> None:
    source, sink = depots(tmp_path)
    stubs = list(source.lay(changes()))
    list(SideFiles(tmp_path / "depot", LATE, 70).lay(changes()[:1]))
    list(sink.fetch(stubs[0]))
    assert names(tmp_path) == ["7-1", "7-2", "70-0"]
    sink.clear()
    assert names(tmp_path) == ["70-0"]


@pytest.mark.parametrize("places", [[1, 0], [0, 0], [0, None], [-5, 0]])
def test_stubs_that_lead_nowhere_are_refused(tmp_path: Path, places: list[int | None]) -> None:
    source, sink = depots(tmp_path)
    (stub,) = source.lay([changes()[0].slice(0, 2)])
    at = stub.schema.get_field_index(CARRIER)
    with pytest.raises((Malformed, Unavailable)):
        list(sink.fetch(stub.set_column(at, CARRIER, pa.array(places, pa.int64()))))


def test_a_file_that_is_gone_ends_the_query_which_starts_again(tmp_path: Path) -> None:
    source, sink = depots(tmp_path)
    (stub,) = source.lay([changes()[0]])
    (tmp_path / "depot" / "7-0").unlink()
    with pytest.raises(Unavailable, match="are gone"):
        list(sink.fetch(stub))


def test_the_option_names_columns() -> None:
    assert columns_of("") == frozenset()
    assert columns_of("after,relation_id") == {"after", "relation_id"}
