"""The SQLite sink, given batches of lines and rows of a load; what it does as the PostgreSQL sink
does, `tests/sinks/test_contract.py` and `tests/tables/test_staging.py` hold of both."""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import SettingsError, Unavailable
from penstock.model.position import PartitionId, Place
from penstock.model.table_schema import TableSchema
from penstock.sinks.sqlite import SqliteSink, SqliteSinkSettings
from tests.progress import Noted
from tests.sinks.postgres.test_load import COLUMNS, Point, load_of, loaded
from tests.sinks.postgres.test_write import rows_of

SHOP = PartitionId("shop")
TARGET = "CREATE TABLE items (id integer PRIMARY KEY, name text CHECK (length(name) <= 5))"


class File:
    """The destination."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()

    @property
    def items(self) -> list[tuple[Any, ...]]:
        return self.execute("SELECT * FROM items ORDER BY 1, 2")


@pytest.fixture
def file(tmp_path: Path) -> File:
    return File(tmp_path / "target.db")


SinkOf = Callable[..., SqliteSink]


@pytest.fixture
def sink_of(file: File) -> SinkOf:
    """`sink_of(settings, **options of the table items)`: a sink with a map of that table."""

    def make(settings: dict[str, Any] | None = None, **options: Any) -> SqliteSink:
        entries = [{"backend": "default", "tables": {"items": options}}]
        found = {"file": file.path, "map": entries, "commit": {"wait": "20ms"}, **(settings or {})}
        return SqliteSink(SqliteSinkSettings.model_validate(found))

    return make


@pytest.mark.parametrize(
    "sets",
    ["json_extract(name, '$.a')", "abs(-9223372036854775807 - id)"],  # an overflow, for the row 1
)
def test_what_sqlite_fails_at_in_one_row_is_a_letter_of_it(
    file: File, sink_of: SinkOf, sets: str
) -> None:
    file.execute("CREATE TABLE items (id integer PRIMARY KEY, name text)")
    sink = sink_of({"on_error": "dead-letter"}, set={"id": "id", "name": sets})
    sink.write([rows_of("INSERT 1 {", "INSERT 0 {}", "INSERT -3 {}")], Noted())
    assert [id for id, _ in file.items] == [-3, 0]
    assert [each["reason"] for each in sink.dead_letters()] == ["refused"]


def test_append_keeps_rows_and_filter_and_set_are_sql_of_sqlite(
    file: File, sink_of: SinkOf
) -> None:
    file.execute(
        "CREATE TABLE items (id int, name text, size int, sid text, PRIMARY KEY (id, sid))"
    )
    expressions = {"id": "id * 10", "name": "upper(name)", "size": "iif(id > 9, 1, 0)"}
    sink = sink_of(type="append", set=expressions, filter="name <> 'no' AND _sid = 'shop'")
    sink.write([rows_of("INSERT 1 one", "INSERT 2 no", "INSERT 30 x", "DELETE 1")], Noted())
    assert file.items == [(10, "ONE", 0, "shop"), (300, "X", 1, "shop")]


def test_a_commit_waits_for_another_program(file: File, sink_of: SinkOf) -> None:
    file.execute(TARGET)
    sink = sink_of()
    sink.prepare()
    noted = Noted()
    with closing(sqlite3.connect(file.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        writing = threading.Thread(target=sink.write, args=([rows_of("INSERT 1 one")], noted))
        writing.start()
        other.execute("INSERT INTO items VALUES (5, 'mine')")
        assert not noted.position
        other.execute("COMMIT")
    writing.join(60)
    assert file.items == [(1, "one"), (5, "mine")]
    assert noted.position == {SHOP: Place("00000000/00000001", 0)}


def test_a_file_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    entries = [{"backend": "default", "tables": {"items": None}}]
    settings = {"file": tmp_path / "no" / "target.db", "map": entries}
    sink = SqliteSink(SqliteSinkSettings.model_validate(settings))
    (found,) = sink.check()
    assert (found.level, "unable to open database file" in found.message) == ("error", True)
    with pytest.raises((SettingsError, Unavailable)):
        sink.prepare()


def test_check_names_what_would_keep_rows_out(file: File, sink_of: SinkOf) -> None:
    assert [each.message for each in sink_of().check()] == [
        "the destination answers", "it does not exist, and public.items goes there",
    ]  # fmt: skip
    assert [each.level for each in sink_of(create=True).check()] == ["ok"]
    file.execute("CREATE TABLE items (id int, name text)")
    schema = TableSchema(
        schema="public", table="items", name=("items",), version="1", columns=tuple(COLUMNS)
    )
    (found,) = sink_of().check_tables("default", [schema])
    assert found.remedy == 'CREATE UNIQUE INDEX "items_key" ON "items" (id);'
    file.execute(found.remedy)
    assert sink_of().check_tables("default", [schema]) == []
    (found,) = sink_of(filter="nme = 1").check_tables("default", [schema])
    assert "no such column: nme" in found.message


@pytest.mark.parametrize(
    ("settings", "options", "said"),
    [
        ({"workers": 2}, {}, "a SQLite file has one writer"),
        ({"map": "sqlite:///map.db"}, {}, "a file is for a sink of type postgres"),
        ({}, {"type": "history"}, "write clone or append"),
        ({}, {"target": "a.b"}, "SQLite has no schemas: write a_b"),
    ],
)
def test_what_it_cannot_do_is_said_by_the_file(
    sink_of: SinkOf, settings: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        sink_of(settings, **options)


@pytest.mark.slow
def test_a_filter_follows_rows_into_it_and_out_of_it(file: File, sink_of: SinkOf) -> None:
    sink = sink_of({"initial": True, "on_error": "dead-letter"}, create=True,
                   filter="length(name) < 4 AND _operation <> 'no'")  # fmt: skip
    sink.enter("default", SHOP, initial=True)
    loaded(load_of(sink), Point(), b"1\tin\n2\tlonger\n3\t\\N")  # type: ignore[arg-type]
    assert file.items == [(1, "in")]
    load_of(sink).finish([("public", "items")])  # type: ignore[arg-type]
    load_of(sink).settle("stop")  # type: ignore[arg-type]
    sink.write([rows_of("UPDATE 1 longer", "UPDATE 2 in", "INSERT 4 out-of", commit=2)], Noted())
    assert file.items == [(2, "in")]
    unsent = rows_of("UPDATE 2 \\U", "UPDATE 1 \\U", unchanged=[["name"]] * 2, commit=3)
    sink.write([unsent], Noted())
    assert file.items == [(2, "in")]
    assert [each["reason"] for each in sink.dead_letters()] == ["unsent-value"]
    sink.write([rows_of("DELETE 2", "DELETE 1", commit=4)], Noted())
    assert file.items == []
