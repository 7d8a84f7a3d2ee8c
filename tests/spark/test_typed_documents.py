"""Typed rows of documents under real Spark: what drivers write is what comes, column by column."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, ObjectId
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from penstock.spark import PenstockDataSource
from tests.cosmos.server import CosmosServer
from tests.dynamodb.endpoints import table_on
from tests.dynamodb.server import StreamsServer
from tests.mongo import mongodb, shop_on

_META = "_operation STRING, _sequence STRING, _committed_at TIMESTAMP, _unsent ARRAY<STRING>"
_AT = datetime(2026, 1, 2, 3, 4, 5, 678000)
# Text, number, wide number, decimal, double, flag, time, bytes, tags, place, more.
_COLUMNS = (
    "text STRING, n INT, wide BIGINT, price DECIMAL(20,2), ratio DOUBLE, flag BOOLEAN,"
    " tags ARRAY<STRING>, place STRUCT<city: STRING, at: STRUCT<x: DOUBLE>>,"
    " counts MAP<STRING, BIGINT>"
)


@dataclass
class Source:
    """`insert(key, document)`, `update(key, fields)`, `delete(key)`; documents have plain values,
    and the columns of `schema` besides those that all have. `name`: the key's field."""

    options: dict[str, str]
    schema: str
    name: str
    table: str
    insert: Callable[[str, dict[str, Any]], Any]
    update: Callable[[str, dict[str, Any]], Any]
    delete: Callable[[str], Any]
    # The same for a driver's types, and what comes of them.
    given: dict[str, Any] = field(default_factory=dict)
    expected: dict[str, Any] = field(default_factory=dict)
    has_deletes: bool = True


def plain() -> dict[str, Any]:
    return {
        "text": "ü", "n": 3, "wide": 2**40, "price": Decimal("12.50"), "ratio": 0.1, "flag": True,
        "tags": ["a", "b"], "place": {"city": "Ulm", "at": {"x": 1.5}}, "counts": {"a": 1},
        "more": {"x": [1]},
    }  # fmt: skip


@contextmanager
def mongo() -> Iterator[Source]:
    with mongodb() as url, shop_on(url) as shop:
        users = shop.db.create_collection("users")
        yield Source(
            {"backend": "mongodb", "connection": url, "database": shop.name},
            "seen TIMESTAMP, raw BINARY, ref STRING, long BIGINT", "_id", f"{shop.name}.users",
            lambda key, document: users.insert_one({"_id": key, **_as_bson(document)}),
            lambda key, fields: users.update_one({"_id": key}, {"$set": fields}),
            lambda key: users.delete_one({"_id": key}),
            {"seen": _AT, "raw": b"\0\xff", "ref": ObjectId("6b039f830000001c6b039f83"),
             "long": Int64(2**53 + 1), "uuid": Binary(b"\0" * 16, 4)},
            {"seen": _AT, "raw": b"\0\xff", "ref": "6b039f830000001c6b039f83", "long": 2**53 + 1},
        )  # fmt: skip


def _as_bson(document: dict[str, Any]) -> dict[str, Any]:
    return {name: Decimal128(value) if isinstance(value, Decimal) else value
            for name, value in document.items()}  # fmt: skip


@contextmanager
def dynamo() -> Iterator[Source]:
    from boto3.dynamodb.types import TypeSerializer

    def typed(document: dict[str, Any]) -> dict[str, Any]:
        return {name: TypeSerializer().serialize(_decimals(each))
                for name, each in document.items()}  # fmt: skip

    with StreamsServer() as server, table_on(server) as table:
        yield Source(
            {"backend": "dynamodb", "reads": "1000", **table.given},
            "raw BINARY, digits DECIMAL(38,0), names ARRAY<STRING>", "id", table.name,
            lambda key, document: table.put(key, **typed(document)),
            lambda key, fields: table.put(key, **typed({**plain(), **fields})),
            table.delete,
            {"raw": b"\0\xff", "digits": Decimal("9" * 38), "names": {"b", "a"}},
            {"raw": b"\0\xff", "digits": Decimal("9" * 38), "names": ["a", "b"]},
        )  # fmt: skip


def _decimals(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _decimals(each) for name, each in value.items()}
    return Decimal(repr(value)) if isinstance(value, float) else value


@contextmanager
def cosmos() -> Iterator[Source]:
    with CosmosServer() as server:
        orders = server.container("shop", "orders")

        def put(key: str, document: dict[str, Any]) -> None:
            shown = {name: float(each) if isinstance(each, Decimal) else each
                     for name, each in document.items()}  # fmt: skip
            orders.put({"id": key, "pk": key, **shown})

        yield Source(
            {"backend": "cosmos", "endpoint": server.url, "key": server.key, "database": "shop",
             "container": "orders", "feed.start": "beginning"},
            "seen TIMESTAMP, day DATE", "id", "shop.orders",
            put,
            lambda key, fields: put(key, {**plain(), **fields}),
            lambda _: None,
            {"seen": "2026-01-02T03:04:05.6780000Z", "day": "2026-01-02"},
            {"seen": _AT, "day": _AT.date()}, has_deletes=False,
        )  # fmt: skip


SOURCES = {"mongodb": mongo, "dynamodb": dynamo, "cosmos": cosmos}


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest) -> Iterator[Source]:
    with SOURCES[request.param]() as made:
        yield made


# tests/typed has the values of each source.
one_source = pytest.mark.parametrize(
    "source",
    [
        "dynamodb",
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("mongodb", "cosmos")),
    ],
    indirect=True,
)


def frame(spark: SparkSession, source: Source, schema: str = "", **more: str) -> DataFrame:
    whole = schema or f"{source.name} STRING, {_COLUMNS}, {source.schema}, {_META}"
    reader = spark.readStream.format("penstock").schema(whole)
    return reader.options(**{"patience": "100ms", **source.options, **more}).load()


def run(spark: SparkSession, changes: DataFrame, folder: Path) -> list[Any]:
    """All rows of the lake after a run to its end."""
    writer = changes.writeStream.format("parquet").option("path", str(folder / "lake"))
    query = writer.option("checkpointLocation", str(folder / "checkpoint"))
    assert query.trigger(availableNow=True).start().awaitTermination(300), "it does not end"
    return spark.read.parquet(str(folder / "lake")).orderBy("_sequence").collect()


def test_what_the_driver_writes_comes_column_by_column(
    spark: SparkSession, source: Source, tmp_path: Path
) -> None:
    changes = frame(spark, source)
    run(spark, changes, tmp_path)
    source.insert("a", {**plain(), **source.given})
    source.insert("b", {})
    source.update("a", {"text": "new", "n": None})
    source.delete("b")
    rows = [row.asDict(recursive=True) for row in run(spark, changes, tmp_path)]
    by_key = {key: [row for row in rows if row[source.name] == key] for key in "ab"}
    own = [each.split()[0] for each in _COLUMNS.split(", ") if each[0].islower()]
    expected = {name: value for name, value in plain().items() if name != "more"}
    first, last = by_key["a"][0], by_key["a"][-1]
    if source.has_deletes:  # else only the latest version comes
        assert {name: first[name] for name in expected} == expected
        assert {name: first[name] for name in source.expected} == source.expected
        assert [row["_operation"] for row in by_key["a"]] == ["INSERT", "UPDATE"]
        assert [row["_operation"] for row in by_key["b"]] == ["INSERT", "DELETE"]
        assert first["_sequence"] < last["_sequence"]
    assert {name: last[name] for name in expected} == {**expected, "text": "new", "n": None}
    assert not last["_unsent"]
    assert by_key["b"][0]["text"] is None
    assert len(own) >= 9
    assert all(row["_committed_at"] is not None for row in rows)


@one_source
def test_what_does_not_fit_ends_the_query_or_is_null_and_kept(
    spark: SparkSession, source: Source, tmp_path: Path
) -> None:
    schema = f"{source.name} STRING, n INT, _corrupt STRING, _rest MAP<STRING, STRING>, {_META}"
    changes = frame(spark, source, schema)
    run(spark, changes, tmp_path)
    source.insert("a", {"n": "secret", "other": 1})
    with pytest.raises(StreamingQueryException) as raised:
        run(spark, changes, tmp_path)
    text = str(raised.value)
    assert f"{source.table} has text in n" in text
    assert "typed.misfit" in text
    assert "secret" not in text
    kept = frame(spark, source, schema, on_misfit="PERMISSIVE")
    (row,) = run(spark, kept, tmp_path)
    assert (row["n"], row["_rest"]["n"], row["_rest"]["other"]) == (None, "secret", "1")
    assert '"n":"secret"' in row["_corrupt"]


def run_into_batches(spark: SparkSession, changes: DataFrame, folder: Path, fails: int) -> Any:
    """All rows after a run whose sink fails in its micro-batch with the number `fails`; each
    micro-batch is stored once, by its number."""

    def store(batch: DataFrame, number: int) -> None:
        if number == fails:
            raise InterruptedError
        batch.write.mode("overwrite").parquet(str(folder / "lake" / f"batch={number}"))

    writer = changes.writeStream.foreachBatch(store)
    writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
    assert writer.trigger(availableNow=True).start().awaitTermination(300), "it does not end"
    return spark.read.parquet(str(folder / "lake")).orderBy("_sequence").collect()


@one_source
def test_rows_of_before_come_first_and_then_the_changes_also_after_runs_that_failed(
    spark: SparkSession, source: Source, tmp_path: Path
) -> None:
    documents = {f"k{number:03}": number for number in range(300)}
    for key, number in documents.items():
        source.insert(key, {"n": number})
    schema = f"{source.name} STRING, n INT, {_META}"
    changes = frame(spark, source, schema, snapshot="initial", max_events="100")
    for fails in (0, 1):
        with pytest.raises(StreamingQueryException):
            run_into_batches(spark, changes, tmp_path, fails)
    rows = run_into_batches(spark, changes, tmp_path, fails=-1)
    assert {row["_operation"] for row in rows} == {"READ"}
    assert {row[source.name]: row["n"] for row in rows} == documents
    assert len(rows) == len(documents)
    source.insert("new", {"n": 1})
    source.update("k007", {"n": 1_000})
    source.delete("k008")
    rows = run_into_batches(spark, changes, tmp_path, fails=-1)
    later = [row for row in rows if row["_operation"] != "READ"]
    assert len(rows) == len(documents) + len(later)
    assert len(later) == (3 if source.has_deletes else 2)
    newest = {row[source.name]: row for row in rows}  # in the order of `_sequence`
    assert (newest["new"]["n"], newest["k007"]["n"]) == (1, 1_000)
    assert newest["k006"]["_operation"] == "READ"
    assert not source.has_deletes or newest["k008"]["_operation"] == "DELETE"


def test_without_a_schema_columns_are_those_of_changes(source: Source) -> None:
    assert {"after", "key", "operation"} <= {*PenstockDataSource(source.options).schema().names}
