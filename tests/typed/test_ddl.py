"""DDL text is read as Spark reads it."""

import pyarrow as pa
import pytest

from penstock.model.errors import SettingsError
from penstock.typed.ddl import schema_of_ddl


def test_types_are_those_of_arrow() -> None:
    found = schema_of_ddl("id BIGINT, at TIMESTAMP, tags ARRAY<STRING>, m MAP<STRING, STRING>")
    assert found == pa.schema([
        ("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC")), ("tags", pa.list_(pa.string())),
        ("m", pa.map_(pa.string(), pa.string())),
    ])  # fmt: skip


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "there is its end in place of a name"),
        ("id", "its end is no type"),
        ("id BIGINT,", "there is its end in place of a name"),
        ("id FOO", "FOO is no type"),
        ("id INT b INT", "there is b in place of , or its end"),
        ("a ARRAY<INT", "there is its end in place of >"),
        ("a INT; b INT", "'; b INT' is none of its words"),
        ("a DECIMAL(x)", "DECIMAL is no type"),
        ("a DECIMAL(50, 2)", "DECIMAL is no type"),
        ("a STRUCT<>", "there is > in place of a name"),
    ],
)
def test_what_is_no_ddl_is_refused(text: str, says: str) -> None:
    with pytest.raises(SettingsError) as refused:
        schema_of_ddl(text)
    assert says in refused.value.message
