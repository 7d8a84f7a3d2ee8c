"""What requests may ask for, and which of them are the same; without servers."""

from typing import Any

import pytest

from penstock.config import SnapshotSettings
from penstock.feeds import RowSelection
from penstock.feeds.memory import MemoryFeed, MemoryFeedSettings
from penstock.feeds.postgres import PostgresFeed, PostgresSettings
from penstock.model.errors import SettingsError
from penstock.model.table_schema import TableSchema
from penstock.snapshots.followed_tables import FollowedTable, SnapshotSource
from penstock.snapshots.options import SnapshotOptions

SETTINGS = SnapshotSettings(where=True, chunk_rows=100)
FEED = PostgresFeed(PostgresSettings(connection="postgresql://host/db", slot="s", publication="p"))


def table(feed: Any = FEED) -> FollowedTable:
    columns = tuple({"name": name, "key": name == "id"} for name in ("name", "id", "age"))
    schema = TableSchema(schema="public", table="t", name=("t",), version="1", columns=columns)
    return FollowedTable(source=SnapshotSource(backend="shop", feed=feed, prefix=()), schema=schema)


def given(**options: Any) -> dict[str, Any]:
    return SnapshotOptions.read(options).of(table(), SETTINGS).given


def test_equal_requests_have_equal_options() -> None:
    assert given() == given(chunk_rows=100, columns=["age", "id", "name"]) == {}
    assert given(columns=["age", "id", "age"]) == {"columns": ["id", "age"]}
    assert given(chunk_bytes="8KiB") == given(chunk_bytes=8192) == {"chunk_bytes": 8192}
    assert given(chunk_rows=7, where="id < 3") == {"chunk_rows": 7, "where": "id < 3"}


def test_options_are_read_from_their_own_document() -> None:
    found = SnapshotOptions.read({"where": "id < 3", "columns": ["id"], "chunk_rows": 5})
    assert SnapshotOptions.read(found.given) == found
    assert found.selection == RowSelection(where="id < 3", columns=("id",))
    assert found.settings(SETTINGS) == SETTINGS.model_copy(update={"chunk_rows": 5})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"wher": "id < 3"}, "wher: unknown key; did you mean 'where'?"),
        ({"columns": "id"}, "columns: must be a list"),
        ({"columns": []}, "columns"),
        ({"columns": ["id", 3]}, "columns[1]: must be text"),
        ({"chunk_rows": 0}, "chunk_rows"),
        ({"chunk_bytes": "1KiB"}, "chunk_bytes"),
        ({"chunk_bytes": "many"}, "is not a size"),
        ({"where": ""}, "where"),
        ({"columns": ["id", "nmae"]}, "t has no column 'nmae'; did you mean 'name'?"),
        ({"columns": ["name"]}, "the key of t is missing in `columns`: id"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError) as raised:
        given(**options)
    assert text in str(raised.value)


def test_a_condition_has_to_be_allowed() -> None:
    options = SnapshotOptions(where="id < 3")
    with pytest.raises(SettingsError, match="may not have a condition") as raised:
        options.of(table(), SnapshotSettings())
    assert "snapshot.where" in raised.value.hint


def test_a_source_that_has_whole_tables_only_says_so() -> None:
    feed = MemoryFeed(MemoryFeedSettings())
    with pytest.raises(SettingsError, match="shop are of whole tables"):
        SnapshotOptions(columns=("id",)).of(table(feed), SETTINGS)
    assert SnapshotOptions(chunk_rows=5).of(table(feed), SETTINGS).chunk_rows == 5
