"""Late columns: written by one task, joined with their rows again after a transform."""

from pathlib import Path

import pyarrow as pa
import pytest

from penstock.feeds.memory import MemoryFeed, MemoryFeedSettings
from penstock.microbatch.late import CARRIER, SideFiles, columns_of, stub_schema
from penstock.model.change import COLUMNS, Images
from penstock.model.errors import Malformed, Unavailable
from penstock.model.position import PartitionId

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


def two_tasks(folder: Path) -> tuple[SideFiles, SideFiles]:
    """Of the task that decodes, and of the one that writes; nearly."""
    return SideFiles(folder / "side_channel", LATE, 7), SideFiles(folder / "side_channel", LATE, 7)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "side_channel").iterdir())


def test_only_what_is_read_goes_through_spark(tmp_path: Path) -> None:
    stubs = list(SideFiles(tmp_path / "side_channel", LATE, 7).write(changes()))
    assert [stub.num_rows for stub in stubs] == [2100, 2100, 800]
    for stub in stubs:
        assert stub.schema == stub_schema(changes()[0].schema, LATE)
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
    written = changes(images)
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
    batch = changes()[0]
    (stub,) = source.write([batch])
    made = pa.array(["made"] * stub.num_rows, pa.large_string())
    stub = stub.set_column(stub.schema.get_field_index("collection"), "collection", made)
    (whole,) = sink.fetch(stub)
    assert whole.schema == batch.schema
    assert set(whole.column("collection").to_pylist()) == {"made"}
    assert whole.drop_columns("collection").equals(batch.drop_columns("collection"))


def test_a_file_is_removed_when_it_is_opened(tmp_path: Path) -> None:
    source, sink = two_tasks(tmp_path)
    stubs = list(source.write(changes()))
    list(sink.fetch(stubs[0]))
    assert names(tmp_path) == ["7-1", "7-2"]


@pytest.mark.parametrize("places", [[1, 0], [0, 0], [0, None], [-5, 0]])
def test_stubs_that_lead_nowhere_are_refused(tmp_path: Path, places: list[int | None]) -> None:
    source, sink = two_tasks(tmp_path)
    (stub,) = source.write([changes()[0].slice(0, 2)])
    at = stub.schema.get_field_index(CARRIER)
    with pytest.raises((Malformed, Unavailable)):
        list(sink.fetch(stub.set_column(at, CARRIER, pa.array(places, pa.int64()))))


def test_a_file_that_is_gone_ends_the_query_which_starts_again(tmp_path: Path) -> None:
    source, sink = two_tasks(tmp_path)
    (stub,) = source.write([changes()[0]])
    (tmp_path / "side_channel" / "7-0").unlink()
    with pytest.raises(Unavailable, match="are gone"):
        list(sink.fetch(stub))


def test_the_option_names_columns() -> None:
    assert columns_of("") == frozenset()
    assert columns_of("after,relation_id") == {"after", "relation_id"}


def test_whole_rows_have_no_carrier() -> None:
    whole = changes()[0].schema
    assert CARRIER not in COLUMNS
    assert stub_schema(whole, []) == whole
