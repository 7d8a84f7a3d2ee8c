"""A transform without its pipeline: what is wrong with statements is said before any row."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.model.errors import SettingsError
from penstock.snapshots.preview import previews, tables_of
from penstock.spark import preview
from penstock.spark.preview import local_statements
from tests.spark.queries.test_statements import pipeline_of


@pytest.fixture(autouse=True)
def session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Previews use the session of the tests; what they would open one with."""
    asked: dict[str, Any] = {}
    monkeypatch.setattr(
        preview, "open_session", lambda plan: asked.update(master=plan.master) or spark
    )
    monkeypatch.setattr(preview, "close_session", nullcontext)
    yield asked


def test_a_statement_that_no_change_passes_is_an_error() -> None:
    for sql, says in (
        ("SELECT * FROM chnges", "TABLE_OR_VIEW_NOT_FOUND"),
        ("SELECT * EXCEPT (key, route) FROM changes", "leaves out the columns key, route"),
    ):
        with pytest.raises(SettingsError, match=says) as caught, local_statements(pipeline_of(sql)):
            pass
        assert caught.value.code == "spark.transform-invalid"
        assert caught.value.hint


def test_a_value_that_a_statement_fails_at_is_a_problem_without_the_value() -> None:
    pipeline = pipeline_of(
        "SELECT * EXCEPT (document_id), CAST(CAST(after AS int) AS string) AS document_id"
        " FROM changes"
    )
    with local_statements(pipeline) as statements:
        (found,) = previews(pipeline, tables_of(pipeline, [], ""), 2, statements)
    assert found.problem is not None
    assert found.problem.message.endswith("CAST_INVALID_INPUT")


def test_an_aggregate_is_shown_and_refuses_snapshots() -> None:
    pipeline = pipeline_of("SELECT DISTINCT * EXCEPT (event_id), 'x' AS event_id FROM changes")
    with local_statements(pipeline) as statements:
        (found,) = previews(pipeline, tables_of(pipeline, [], ""), 2, statements)
        assert "Distinct" in statements.refusal
    assert [len(row.made) for row in found.rows] == [0, 0, 2]


def test_a_pipeline_of_a_cluster_has_a_local_spark_of_its_own(session: dict[str, Any]) -> None:
    pipeline = pipeline_of("SELECT * FROM changes")
    spark = pipeline.spark.model_copy(update={"master": "spark://host:7077"})
    with local_statements(pipeline.model_copy(update={"spark": spark})):
        assert session["master"] == "local[1]"
