"""How changes go through Spark: as rows, in planned micro-batches, or in open ones."""

import pytest

from penstock.config import parse_pipeline
from penstock.spark.query import mode

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
