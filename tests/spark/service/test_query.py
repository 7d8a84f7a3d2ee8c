"""How changes go through Spark: as rows, in planned micro-batches, or in open ones."""

import pytest
from pyspark.sql import SparkSession

from penstock.config import parse_pipeline
from penstock.errors import SettingsError
from penstock.spark.service.query import _transformed, mode

TRANSFORM = '[{sql: "SELECT * FROM changes"}]'


@pytest.mark.parametrize(
    ("spark", "transform", "meant"),
    [
        ("{}", "[]", "realtime"),
        ("{trigger: 0s}", "[]", "realtime"),
        ("{trigger: realtime}", "[]", "realtime"),
        ("{trigger: 1s}", "[]", "packed"),
        ("{mode: packed}", "[]", "packed"),
        ("{mode: rows}", "[]", "rows"),
        ("{}", TRANSFORM, "rows"),
        ("{trigger: 1s}", TRANSFORM, "rows"),
    ],
)
def test_micro_batches_stay_open_unless_rows_or_an_interval_are_wanted(
    spark: str, transform: str, meant: str
) -> None:
    text = f"""
        backends: [{{name: default, type: memory}}]
        sink: {{type: memory}}
        transform: {transform}
        spark: {spark}
    """
    assert mode(parse_pipeline(text, environment={})) == meant


@pytest.mark.spark
@pytest.mark.parametrize(
    ("sql", "said"),
    [("SELEC * FROM changes", "PARSE_SYNTAX_ERROR"), ("SELECT nobody FROM changes", "nobody")],
)
def test_a_transform_that_spark_refuses_says_why(spark: SparkSession, sql: str, said: str) -> None:
    with pytest.raises(SettingsError, match=said) as caught:
        _transformed(spark, spark.range(1), sql)
    assert sql in caught.value.hint
