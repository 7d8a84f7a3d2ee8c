"""The SQL of docs/reference/spark.md about documents gives what the page says."""

import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.timestamp import Timestamp
from pyspark.sql import DataFrame, SparkSession

from penstock.wire.changestream.decoder import ChangeStreamDecoder
from tests.docs.pages import DOCS, section, statements
from tests.wire.changestream.made import event, page

PAGE = section((DOCS / "reference" / "spark.md").read_text(), "Look into documents with SQL")
SINCE = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
# Those of the page.
DOCUMENTS: list[dict[str, Any]] = [
    {
        "_id": 1, "name": "Ann", "address": {"city": "Ulm"}, "visits": 7,
        "price": Decimal128("1.50"), "since": SINCE, "seen": Timestamp(int(SINCE.timestamp()), 1),
        "tags": ["a", 2], "note": "x",
    },
    {"_id": 2, "name": "Bo", "visits": Int64(2**53 + 1), "tags": [], "note": {"a": 1}},
]  # fmt: skip


@pytest.fixture
def changes(spark: SparkSession) -> DataFrame:
    """The view `changes`: the documents, and a delete."""
    found = [
        event(2 * number, fullDocument=document, documentKey={"_id": document["_id"]})
        for number, document in enumerate(DOCUMENTS)
    ]
    decoder = ChangeStreamDecoder(backend="b")
    batches = decoder.decode(page(*found, event(9, "delete", documentKey={"_id": 1})))
    frame = spark.createDataFrame(pa.Table.from_batches(batches))
    frame.createOrReplaceTempView("changes")
    return frame


def _shown(value: Any) -> str:
    match value:
        case None:
            return "null"
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M:%S")
        case Decimal():
            return str(value)
        case _:
            return str(value)


def test_the_sql_of_the_page_gives_what_the_page_says(
    spark: SparkSession, changes: DataFrame
) -> None:
    one, several = statements(PAGE)
    assert [tuple(row) for row in spark.sql(one).collect()] == [
        ("INSERT", "1", "Ulm"), ("INSERT", "2", None), ("DELETE", "1", None),
    ]  # fmt: skip
    head, _, *rows = re.findall(r"^\|(.*)\|$", PAGE, re.MULTILINE)
    found = spark.sql(several)
    assert found.columns == [name.strip() for name in head.split("|")]
    expected = [[cell.strip() for cell in row.split("|")] for row in rows]
    assert [[_shown(value) for value in row] for row in found.collect()] == expected


def test_an_integer_that_is_text_reads_as_null_where_it_is_declared_as_a_number(
    spark: SparkSession, changes: DataFrame
) -> None:
    rows = spark.sql("SELECT from_json(after, 'visits BIGINT').visits AS v FROM changes").collect()
    assert [row.v for row in rows] == [7, None, None]
