"""Statements of a transform over rows of snapshots, by Spark: as over changes."""

import json
from typing import Any

import orjson
import ormsgpack
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from penstock.config import Pipeline, parse_pipeline
from penstock.model.change import COLUMNS, schema
from penstock.model.errors import Rejected, SettingsError
from penstock.snapshots.statements import through
from penstock.spark.queries.engine import SparkStatements


def pipeline_of(*statements: str) -> Pipeline:
    document = {
        "backends": [{"name": "default", "type": "memory"}], "sink": {"type": "memory"},
        "transform": [{"sql": statement} for statement in statements],
    }  # fmt: skip
    return parse_pipeline(json.dumps(document), environment={})


def rows_of(count: int, **more: Any) -> pa.RecordBatch:
    """Rows as a decoder makes them of a snapshot's pages: PostgreSQL's are inserts."""
    row = dict.fromkeys(COLUMNS) | {
        "backend": "shop", "partition": "s", "cursor": "A", "ordinal": 0, "event_id": "shop:A:0",
        "operation": "INSERT", "namespace": "public", "collection": "t",
    }  # fmt: skip
    rows = [
        {
            **row,
            "key": f'{{"id":{n}}}',
            "after": f'{{"id":{n},"ssn":"123-45-{n % 10_000:04}"}}',
            **more,
        }
        for n in range(count)
    ]
    return pa.RecordBatch.from_pylist(rows, schema=schema())


MASKED = (
    "SELECT * EXCEPT (after), regexp_replace(after, '[0-9]{3}-[0-9]{2}-[0-9]{4}', '***') AS after"
    " FROM changes WHERE collection <> 'secrets'"
)


def test_rows_are_masked_and_left_out_as_changes_are(spark: SparkSession) -> None:
    few = "SELECT * FROM changes WHERE operation = 'READ' AND key <> '{\"id\":7}'"
    statements = SparkStatements(spark, pipeline_of(MASKED, few))
    assert statements.refusal == ""
    readers: list[tuple[Any, Any]] = [("json", orjson.loads), ("msgpack", ormsgpack.unpackb)]
    for images, read in readers:
        found = through(statements, rows_of(15_000), images)
        assert [read(one) for one in found["after"].to_pylist()] == [
            {"id": n, "ssn": "***"} for n in range(15_000) if n != 7
        ]
        assert read(found["key"][7].as_py()) == {"id": 8}
        left_out = through(statements, rows_of(3, collection="secrets"), images)
        assert (left_out.num_rows, left_out.schema) == (0, found.schema)


def test_rows_that_the_statements_delete_are_none(spark: SparkSession) -> None:
    sql = (
        "SELECT * EXCEPT (operation), CASE WHEN key = '{\"id\":1}' THEN 'DELETE' ELSE 'UPDATE' END"
        " AS operation FROM changes"
    )
    found = through(SparkStatements(spark, pipeline_of(sql)), rows_of(3), "json")
    assert found["key"].to_pylist() == ['{"id":0}', '{"id":2}']


# Statements, and what their refusal says.
REFUSED = [
    ("SELECT c.* FROM changes c JOIN (VALUES ('t')) AS w (n) ON c.collection = w.n", "Join"),
    ("SELECT DISTINCT * FROM changes", "Distinct"),
    ("SELECT * FROM changes LIMIT 3", "Limit"),
    ("SELECT * FROM changes UNION ALL SELECT * FROM changes", "Union"),
    ("SELECT * FROM changes WHERE key IN (SELECT key FROM changes)", "subquery"),
    (
        "SELECT * EXCEPT (tenant, one), one AS tenant FROM"
        " (SELECT *, explode(split(after, ',')) AS one FROM changes)",
        "Generate",
    ),
    (
        f"SELECT {', '.join(f'max({name}) AS {name}' for name in COLUMNS)} FROM changes",
        "Aggregate",
    ),
    ("SELECT collection, after FROM changes", "lacks the columns backend, partition"),
    ("SELECT nothing FROM changes", "UNRESOLVED_COLUMN"),
]


def test_what_does_not_take_rows_one_by_one_says_why_and_others_have_another_identity(
    spark: SparkSession,
) -> None:
    found = {sql: SparkStatements(spark, pipeline_of(sql)).refusal for sql, _ in REFUSED}
    assert [(sql, found[sql]) for sql, why in REFUSED if why not in found[sql]] == []
    identities = {
        SparkStatements(spark, pipeline_of(*[MASKED] * count)).identity for count in (1, 2)
    }
    assert len(identities) == 2


def test_rows_that_no_chunk_can_have_are_an_error(spark: SparkSession) -> None:
    refused: list[tuple[str, type[Exception], str]] = [
        ("collection", SettingsError, "another collection"),
        ("namespace", SettingsError, "another namespace"),
        ("operation", SettingsError, "an operation that rows do not have"),
        ("after", Rejected, "broken JSON"),
    ]
    for made, error, says in refused:
        sql = f"SELECT * EXCEPT ({made}), 'other' AS {made} FROM changes"
        with pytest.raises(error, match=says):
            through(SparkStatements(spark, pipeline_of(sql)), rows_of(3), "json")
    sql = "SELECT * EXCEPT (after), nullif(after, after) AS after FROM changes"
    with pytest.raises(SettingsError, match="without `after`"):
        through(SparkStatements(spark, pipeline_of(sql)), rows_of(3), "json")


def test_an_error_of_a_statement_has_no_value_of_a_row(spark: SparkSession) -> None:
    sql = "SELECT * EXCEPT (ordinal), CAST(after AS int) AS ordinal FROM changes"
    sql += " WHERE CAST(after AS int) > 0"
    with pytest.raises(SettingsError, match="CAST_INVALID_INPUT") as caught:
        through(SparkStatements(spark, pipeline_of(sql)), rows_of(3), "json")
    assert "123-45" not in str(caught.value)
    assert caught.value.__cause__ is None
