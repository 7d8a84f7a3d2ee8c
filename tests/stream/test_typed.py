"""Batches and tables of the iterator with a table's own columns."""

from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice
from typing import Any

import polars
import pyarrow as pa
import pytest

import penstock
from penstock.model.errors import SettingsError
from tests.mongo import mongodb, shop_on
from tests.servers import Database

DOCUMENTS = pa.schema([("id", pa.int64()), ("text", pa.string()), ("_operation", pa.string()),
                       ("_sequence", pa.string())])  # fmt: skip


def memory(at: Any = "trim_horizon") -> Any:
    return penstock.stream("memory", at=at, changes=1000, partitions=2)


def test_documents_have_the_columns_of_a_schema_in_the_order_of_iterating() -> None:
    stream = memory()
    first = stream.table(rows=300, schema=DOCUMENTS)
    assert first.schema == DOCUMENTS
    token = stream.token
    rest = pa.Table.from_batches(stream.batches(rows=1700, schema=DOCUMENTS))
    records = list(islice(memory().follow(), 2000))
    found = pa.concat_tables([first, rest]).to_pylist()
    assert [row["_operation"] for row in found] == [each["meta"]["operation"] for each in records]
    assert [row["text"] for row in found] == [(each["new"] or {}).get("text") for each in records]
    assert memory(token).table(rows=5, schema=DOCUMENTS).equals(rest.slice(0, 5))
    assert stream.table(seconds=0, schema=DOCUMENTS).num_rows == 0


def test_documents_without_a_schema_and_a_table_that_is_not_there_are_refused() -> None:
    with pytest.raises(SettingsError, match="give the columns"):
        memory().table(of="users")


def test_what_does_not_fit_is_an_error_that_loses_no_row_or_null() -> None:
    schema = pa.schema([("text", pa.int64()), ("_corrupt", pa.string())])
    stream = memory()
    with pytest.raises(SettingsError, match="text in text"):
        stream.table(rows=3, schema=schema)
    table = stream.table(rows=3, schema=schema, on_misfit="PERMISSIVE")
    assert table.column("text").null_count == 3
    assert '"text":"change 0"' in table.column("_corrupt")[0].as_py()


def test_a_collection_of_mongodb_among_others() -> None:
    schema = pa.schema([("_id", pa.int32()), ("since", pa.timestamp("us", tz="UTC"))])
    with mongodb() as url, shop_on(url) as shop:
        shop.db.create_collection("users")
        given = {"connection": shop.url, "database": shop.name}
        with penstock.stream("mongodb", at="latest", **given) as stream:
            now = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
            shop.db.users.insert_many([{"_id": 1, "since": now}])
            shop.db.others.insert_many([{"_id": "x", "since": 5}])
            shop.db.users.insert_many([{"_id": 2}])
            table = stream.table(rows=2, seconds=60, of=f"{shop.name}.users", schema=schema)
    assert table.to_pylist() == [{"_id": 1, "since": now}, {"_id": 2, "since": None}]


def test_a_table_of_postgresql_has_its_own_columns(database: Database) -> None:
    database.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, price numeric(10,2), tags text[], at timestamptz)"
    )
    database.execute("CREATE TABLE others (id int PRIMARY KEY)")
    settings: dict[str, Any] = {
        "connection": database.url, "slot": f"t_{abs(hash(database.url))}", "publication": "p",
        "create_publication": True,
    }  # fmt: skip
    with penstock.stream("postgres", at="latest", **settings) as stream:
        database.execute("INSERT INTO orders VALUES (1, 1.50, '{a,NULL}', '2026-01-02T03:04:05Z')")
        database.execute("INSERT INTO others VALUES (1)")
        database.execute("UPDATE orders SET id = 2")
        database.execute("DELETE FROM orders")
        with pytest.raises(SettingsError, match=r"no table public\.none"):
            stream.table(of="public.none")
        with pytest.raises(SettingsError, match="no column prise"):
            stream.table(of="public.orders", schema=pa.schema([("prise", pa.string())]))
        table = stream.table(rows=1, seconds=60, of="public.orders")
        rows = stream.table(rows=2, seconds=60, of="public.orders").to_pylist()
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    first = table.to_pylist()[0]
    own = {"id": 1, "price": Decimal("1.50"), "tags": ["a", None], "at": at}
    assert {name: first[name] for name in own} == own
    assert [(row["_operation"], row["id"], row["_key_before"]) for row in rows] == [
        ("UPDATE", 2, {"id": 1}), ("DELETE", 2, None),
    ]  # fmt: skip
    assert first["_sequence"] < rows[0]["_sequence"] < rows[1]["_sequence"]
    as_polars: Any = polars.from_arrow(table)
    assert as_polars["price"].to_list() == [Decimal("1.50")]
