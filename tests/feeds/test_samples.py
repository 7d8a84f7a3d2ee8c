"""Some rows of a table, of each source that gives them without a snapshot."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import orjson
import pytest

from penstock.feeds import SamplesRows
from penstock.feeds.dynamodb import DynamodbFeed, DynamodbSettings
from penstock.feeds.postgres import PostgresFeed, PostgresSettings
from penstock.model.errors import SettingsError
from tests.cosmos.reading import feed_of
from tests.cosmos.server import CosmosServer
from tests.dynamodb.endpoints import WHOLE, table_on
from tests.servers import Database


def rows_of(feed: Any, schema: str, table: str, rows: int) -> list[dict[str, Any]]:
    assert isinstance(feed, SamplesRows)
    decoder = feed.decoder("json", "stop")  # type: ignore[attr-defined]
    pages = feed.sample(schema, table, rows)
    found = [row for page in pages for batch in decoder.decode(page) for row in batch.to_pylist()]
    return [orjson.loads(row["after"]) for row in found]


@pytest.mark.live
def test_rows_of_postgresql_are_read_as_the_publication_sends_them(database_any: Database) -> None:
    """By the key, also where one is an older row; a table without rows or columns has none."""
    database_any.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text);"
        "INSERT INTO t SELECT n, 'a', 'b' FROM generate_series(1, 100) n;"
        "UPDATE t SET a = E'\\t' WHERE id < 3;"
        "CREATE TABLE parts (id int, n int) PARTITION BY RANGE (id);"
        "CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (9);"
        "INSERT INTO parts VALUES (1, 2); CREATE TABLE bare (); CREATE TABLE empty (a int);"
        "CREATE PUBLICATION p FOR TABLE t (id, a) WHERE (id <> 1)"
        " WITH (publish_via_partition_root = true)"
    )
    feed = PostgresFeed(PostgresSettings(connection=database_any.url, slot="none", publication="p"))
    assert rows_of(feed, "public", "t", 2) == [{"id": 2, "a": "\t"}, {"id": 3, "a": "a"}]
    assert rows_of(feed, "public", "parts", 2) == [{"id": 1, "n": 2}]
    assert rows_of(feed, "public", "bare", 2) == rows_of(feed, "public", "empty", 2) == []
    assert database_any.execute("SELECT FROM pg_replication_slots WHERE slot_name = 'none'") == []
    with pytest.raises(SettingsError, match="does not exist"):
        rows_of(feed, "public", "none", 2)


@pytest.mark.parametrize("server", WHOLE)
@pytest.mark.live
def test_items_of_dynamodb_are_the_first_of_a_scan(
    server: Callable[[], AbstractContextManager[Any]],
) -> None:
    with server() as endpoint, table_on(endpoint) as table:
        table.fill(20)
        feed = DynamodbFeed(DynamodbSettings.model_validate(table.given))
        assert 3 <= len(rows_of(feed, "", feed.settings.table_name, 3)) < 20


@pytest.mark.parametrize("mode", ["latest_version", "all_versions_and_deletes"])
def test_items_of_cosmos_db_are_the_first_of_the_latest_versions(mode: str) -> None:
    """Of all versions there is no beginning."""
    with CosmosServer() as server:
        orders = server.container("shop", "orders")
        for n in range(20):
            orders.put({"id": f"k{n}", "pk": "p", "n": n})
        feed = feed_of(server, mode=mode)
        found = rows_of(feed, *feed.tables()[0], 3)
        assert 3 <= len(found) < 20
        assert found[0]["n"] == 0
