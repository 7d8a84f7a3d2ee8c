"""spark.read over collections of MongoDB, tables of DynamoDB and containers of Cosmos DB."""

import datetime
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import SparkSession

from tests.cosmos.server import CosmosServer
from tests.dynamodb.server import StreamsServer, settings_of
from tests.mongo import Shop

pytestmark = pytest.mark.spark

_USERS = "id string, n int, doc struct<tags: array<string>>, _operation string, _sequence string"


def mongo(spark: SparkSession, shop: Shop, **options: str) -> Any:
    given = {"backend": "mongodb", "connection": shop.url, "database": shop.name, **options}
    return spark.read.format("penstock").options(**given)


def test_documents_come_under_a_users_schema(spark: SparkSession, shop: Shop) -> None:
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 678000)
    documents = [
        {"_id": n, "n": n * 2, "name": f"n{n}", "at": at, "doc": {"tags": ["a", str(n)]}}
        for n in range(3000)
    ]
    shop.db["users"].insert_many(documents)
    shop.db["other"].insert_one({"_id": 1})
    schema = "_id int, n bigint, name string, at timestamp, doc struct<tags: array<string>>"
    frame = mongo(spark, shop, table=f"{shop.name}.users", range_size="64KiB").schema(
        f"{schema}, _operation string, _sequence string"
    )
    loaded = frame.load()
    assert loaded.rdd.getNumPartitions() > 1
    rows = loaded.orderBy("_id").collect()
    assert [(each["_id"], each["n"], each["name"]) for each in rows] == [
        (each["_id"], each["n"], each["name"]) for each in documents
    ]
    assert [each["doc"]["tags"] for each in rows] == [each["doc"]["tags"] for each in documents]
    assert {each["_operation"] for each in rows} == {"READ"}
    (sequence,) = {each["_sequence"] for each in rows}
    assert sequence
    assert loaded.where("unix_millis(at) = 1767323045678").count() == 3000


def test_without_a_schema_documents_are_changes(spark: SparkSession, shop: Shop) -> None:
    shop.db["users"].insert_many([{"_id": n, "v": str(n)} for n in range(10)])
    rows = mongo(spark, shop, table="users").load().collect()
    assert {each["after"] for each in rows} == {f'{{"_id":{n},"v":"{n}"}}' for n in range(10)}
    assert {each["operation"] for each in rows} == {"READ"}
    assert len({each["event_id"] for each in rows}) == 10


def test_what_does_not_fit_ends_the_query_or_is_null(spark: SparkSession, shop: Shop) -> None:
    shop.db["users"].insert_many([{"_id": 1, "n": 5}, {"_id": 2, "n": "five"}])
    frame = mongo(spark, shop, table="users").schema("_id int, n int").load()
    with pytest.raises(PythonException, match=r"typed\.misfit"):
        frame.collect()
    permissive = mongo(spark, shop, table="users", on_misfit="PERMISSIVE")
    rows = permissive.schema("_id int, n int, _corrupt string").load().orderBy("_id").collect()
    assert [each["n"] for each in rows] == [5, None]
    assert rows[1]["_corrupt"] == '{"_id":2,"n":"five"}'


def test_a_collection_that_is_not_there_and_a_condition_are_refused(
    spark: SparkSession, shop: Shop
) -> None:
    shop.db["users"].insert_one({"_id": 1})
    with pytest.raises(AnalysisException, match=r"spark\.table-missing.*|there are: .*users"):
        mongo(spark, shop, table="nothing").schema("_id int").load().collect()
    with pytest.raises(AnalysisException, match=r"spark\.no-selection"):
        mongo(spark, shop, table="users", where="n > 1").schema("_id int").load().collect()


def test_items_come_under_a_users_schema(spark: SparkSession) -> None:
    with StreamsServer() as server:
        server.stream("users").shard()
        server.items = {
            f"k{n:03}": {"n": {"N": str(n)}, "doc": {"M": {"tags": {"L": [{"S": "a"}]}}}}
            for n in range(100)
        }
        server.item_count = 100
        settings = settings_of(server)
        frame = (
            spark.read.format("penstock")
            .options(
                backend="dynamodb", table="users", endpoint=settings.endpoint,
                region=settings.region, access_key="a", secret_key="b",
            )
            .schema(_USERS)
            .load()
        )  # fmt: skip
        rows = frame.orderBy("id").collect()
    assert [(each["id"], each["n"]) for each in rows] == [(f"k{n:03}", n) for n in range(100)]
    assert [each["doc"]["tags"] for each in rows] == [["a"]] * 100
    assert {each["_operation"] for each in rows} == {"READ"}


def test_items_of_a_container_of_several_ranges_come_under_a_users_schema(
    spark: SparkSession,
) -> None:
    with CosmosServer() as server:
        orders = server.container("shop", "orders")
        for n in range(100):
            orders.put({"id": f"k{n:03}", "pk": f"k{n:03}", "n": n, "doc": {"tags": ["a"]}})
        orders.split()
        options = {"endpoint": server.url, "key": server.key, "database": "shop"}
        reader = spark.read.format("penstock").options(backend="cosmos", container="orders")
        frame = reader.options(**options).schema(_USERS)
        loaded = frame.load(table="shop.orders")
        assert loaded.rdd.getNumPartitions() > 1
        rows = loaded.orderBy("id").collect()
    assert [(each["id"], each["n"]) for each in rows] == [(f"k{n:03}", n) for n in range(100)]
    assert [each["doc"]["tags"] for each in rows] == [["a"]] * 100
    assert {each["_operation"] for each in rows} == {"READ"}
    assert rows[0]["_sequence"]
