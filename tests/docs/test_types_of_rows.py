"""The reference's table of types is what typed rows have."""

import re
from pathlib import Path

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.typed.lines import TYPES, arrow_type

_PAGE = Path(__file__).parents[2] / "docs/reference/spark.md"


def _table() -> dict[str, str]:
    text = (
        _PAGE.read_text().partition("| PostgreSQL | Spark |\n|---|---|\n")[2].partition("\n\n")[0]
    )
    found: dict[str, str] = {}
    for line in text.splitlines():
        types, spark = (cell.strip() for cell in line.strip("| ").split(" | "))
        names = re.findall("`([^`]+)`", types)
        kinds = ["string"] if types.startswith("all others") else spark.split(", ")
        for number, name in enumerate(names):
            found[name] = kinds[min(number, len(kinds) - 1)]
    return found


def _spark(kind: pa.DataType) -> str:
    (field,) = from_arrow_schema(pa.schema([("a", kind)]))
    return field.dataType.typeName().partition("(")[0]


def test_the_table_of_types() -> None:
    table = _table()
    shown = {
        "timestamp without time zone": "timestamp", "timestamp with time zone": "timestamptz",
    }  # fmt: skip
    names = {"integer": "int", "long": "long", "short": "short"}
    for name in TYPES:
        spark = _spark(arrow_type(name))
        assert table[shown.get(name, name)] == names.get(spark, spark), name
    assert _spark(arrow_type("numeric(12,4)")) == table["numeric(p,s)"].partition("(")[0]
    assert _spark(arrow_type("numeric")) == table["numeric"]
    for name in ("json", "jsonb", "uuid", "interval", "time", "inet"):
        assert _spark(arrow_type(name)) == table[name] == "string"
