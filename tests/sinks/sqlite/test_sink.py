"""The SQLite sink, given batches of lines and rows of a load; what it does as the PostgreSQL sink
does, `tests/sinks/test_contract.py` and `tests/tables/test_staging.py` hold of both."""

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import Rejected, SettingsError, Unavailable
from penstock.model.position import PartitionId, Place
from penstock.model.table_schema import TableSchema
from penstock.sinks.sqlite import SqliteSink, SqliteSinkSettings
from tests.progress import Noted
from tests.sinks.postgres.test_check import NOT_ONE
from tests.sinks.postgres.test_load import COLUMNS, Point, load_of, loaded
from tests.sinks.postgres.test_write import ITEMS, applied_of, moved_row, rows_of

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


@pytest.mark.parametrize("text", NOT_ONE)
def test_an_expression_that_is_not_one_is_not_run(file: File, sink_of: "SinkOf", text: str) -> None:
    file.execute(TARGET)
    sink = sink_of(filter=text)
    sink.write(iter([rows_of("INSERT 1 one")]), Noted())
    ((state, error),) = [(each["state"], each["error"]) for each in sink.tables()]
    assert (state, "is not SQL over its columns" in error) == ("waiting", True)
    assert not file.items


@pytest.fixture
def sink_of(file: File) -> SinkOf:
    """`sink_of(settings, **options of the table items)`: a sink with a map of that table."""

    def make(settings: dict[str, Any] | None = None, **options: Any) -> SqliteSink:
        entries = [{"backend": "default", "tables": {"items": options}}]
        found = {"file": file.path, "map": entries, "commit": {"wait": "20ms"}, **(settings or {})}
        return SqliteSink(SqliteSinkSettings.model_validate(found))

    return make


def test_a_change_that_is_refused_is_set_aside_and_replayed(file: File, sink_of: SinkOf) -> None:
    file.execute(TARGET)
    noted, sink = Noted(), sink_of({"on_error": "dead-letter"})
    sink.write([rows_of("INSERT 1 one", "INSERT 2 too-long", "INSERT 3 three")], noted)
    assert file.items == [(1, "one"), (3, "three")]
    assert applied_of(noted) == {"INSERT": 2}
    (letter,) = sink.dead_letters()
    assert letter["error"] == (
        "the destination refuses a row: CHECK constraint failed: length(name) <= 5"
    )
    assert letter["stored_at"].endswith("+00:00")


@pytest.mark.parametrize(
    ("sets", "trigger"),
    [
        ("json_extract(name, '$.a')", ""),
        ("abs(-9223372036854775807 - id)", ""),  # an overflow, for the row 1
        ("name", "SELECT RAISE(ABORT, 'no') WHERE NEW.id = 1"),
    ],
)
def test_what_sqlite_fails_at_in_one_row_is_a_letter_of_it(
    file: File, sink_of: SinkOf, sets: str, trigger: str
) -> None:
    file.execute("CREATE TABLE items (id integer PRIMARY KEY, name text)")
    if trigger:
        file.execute(f"CREATE TRIGGER judge BEFORE INSERT ON items BEGIN {trigger}; END")
    sink = sink_of({"on_error": "dead-letter"}, set={"id": "id", "name": sets})
    sink.write([rows_of("INSERT 1 {", "INSERT 0 {}", "INSERT -3 {}")], Noted())
    assert [id for id, _ in file.items] == [-3, 0]
    assert [each["reason"] for each in sink.dead_letters()] == ["refused"]


def test_a_table_that_is_suspended_holds_its_changes_until_it_is_resumed(
    file: File, sink_of: SinkOf
) -> None:
    file.execute(TARGET)
    sink = sink_of({"on_error": "suspend"})
    sink.write([rows_of("INSERT 1 one", "INSERT 2 too-long", "UPDATE 1 uno")], Noted())
    (table,) = sink.tables()
    assert (table["state"], table["held"]) == ("suspended", 2)
    file.execute("DROP TABLE items")
    file.execute(TARGET.replace("5", "9"))
    sink.resume_table("default", "public.items")
    load_of(sink).settle("suspend")  # type: ignore[arg-type]
    assert file.items == [(1, "uno"), (2, "too-long")]
    assert sink.tables()[0]["state"] == "live"


@pytest.mark.slow
def test_rows_are_loaded_and_changes_wait_for_them(file: File, sink_of: SinkOf) -> None:
    sink = sink_of({"initial": True}, create=True)
    sink.enter("default", SHOP, initial=True)
    sink.write([rows_of("INSERT 1 old"), rows_of("UPDATE 1 new", "DELETE 2", commit=3)], Noted())
    load, point = load_of(sink), Point(2)  # type: ignore[arg-type]
    assert load.begin(point) is None
    loaded(load, point, b"1\told\n2\tb", b"3\ta\\nb\\\\\n4\t\\N")
    again = load_of(sink)  # type: ignore[arg-type]
    assert again.begin(point) == [], "a part would be loaded again"
    assert again.finish()
    load_of(sink).settle("stop")  # type: ignore[arg-type]
    assert file.items == [(1, "new"), (3, "a\nb\\"), (4, None)]
    assert sink.reload("items", "shop") == ["public.items of default/shop"]
    assert sink.tables()[0]["state"] == "loading"
    load = load_of(sink)  # type: ignore[arg-type]
    assert load.begin(Point(9)) is None
    loaded(load, Point(9), b"7\tx")
    assert load.finish()
    load_of(sink).settle("stop")  # type: ignore[arg-type]
    assert file.items == [(7, "x")]


def test_rows_that_are_there_keep_a_load_waiting(file: File, sink_of: SinkOf) -> None:
    file.execute(TARGET)
    file.execute("INSERT INTO items VALUES (9, 'mine')")
    sink = sink_of({"initial": True})
    sink.enter("default", SHOP, initial=True)
    with pytest.raises(SettingsError, match="has rows already"):
        load_of(sink).plan(Point(), [1])  # type: ignore[arg-type]
    schema = TableSchema(
        schema="public", table="items", name=("items",), version="1", columns=tuple(COLUMNS)
    )
    (found,) = sink.check_tables("default", [schema], [SHOP])
    assert (found.level, found.subject) == ("error", "target main.items")


def test_each_source_has_its_rows_where_there_is_a_column_for_its_name(
    file: File, sink_of: SinkOf
) -> None:
    file.execute("CREATE TABLE items (sid text, id int, name text, PRIMARY KEY (sid, id))")
    sink = sink_of()
    sink.write([rows_of("INSERT 1 a", "INSERT 2 b", partition="it's")], Noted())
    sink.write([rows_of("INSERT 1 c", partition="us")], Noted())
    sink.write([rows_of("UPDATE 1 d", "DELETE 2", partition="it's", commit=2)], Noted())
    assert file.items == [("it's", 1, "d"), ("us", 1, "c")]
    sink.write([rows_of("TRUNCATE", key=[None], partition="it's", commit=3)], Noted())
    assert file.items == [("us", 1, "c")]


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


def test_equal_rows_without_a_key_are_counted(file: File, sink_of: SinkOf) -> None:
    file.execute("CREATE TABLE items (id int, name text, _rowid_ int)")
    columns = [{**each, "key": False} for each in ITEMS["columns"]]
    keyless: dict[str, Any] = {"key": [None] * 4, "relation": {**ITEMS, "columns": columns}}
    sink = sink_of()
    sink.write([rows_of(*["INSERT 1 a"] * 4, **keyless)], Noted())
    gone = rows_of("DELETE 1", commit=2, before=["1\ta"], key=[None], relation=keyless["relation"])
    sink.write([gone], Noted())
    assert file.items == [(1, "a", None)] * 3


def test_a_target_that_penstock_made_follows_its_source(file: File, sink_of: SinkOf) -> None:
    columns, sink = ITEMS["columns"], sink_of(create=True)
    numbers: list[list[Any]] = [[1, "id", None], [2, "name", None]]
    catalog = {"last": 2, "file": "1", "columns": numbers, "gone": []}
    sink.write([rows_of("INSERT 1 one", relation={**ITEMS, "catalog": catalog})], Noted())
    columns = [columns[0], {**columns[1], "name": "title"}]
    columns.append({"name": "size", "type": 20, "modifier": -1, "key": False})
    catalog |= {"last": 3, "columns": [numbers[0], [2, "title", None], [3, "size", "5"]]}
    wider = {**ITEMS, "version": "2", "columns": columns, "catalog": catalog}
    sink.write([rows_of("INSERT 2 two 7", commit=2, relation=wider)], Noted())
    assert file.items == [(1, "one", 5), (2, "two", 7)]
    assert file.execute("SELECT name FROM pragma_table_info('items')") == [
        ("id",), ("title",), ("size",),
    ]  # fmt: skip


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


def never(page: Any) -> Any:
    """Decodes nothing: a letter of a decoded change is not decoded."""
    raise AssertionError(page)


def test_a_dead_letter_is_applied_once_its_cause_is_gone(file: File, sink_of: SinkOf) -> None:
    file.execute(TARGET)
    sink = sink_of({"on_error": "dead-letter"})
    bad = rows_of("INSERT 1 one", "INSERT 2 too-long", "INSERT 3 three", "UPDATE 1 uno")
    sink.write([bad], Noted())
    (letter,) = sink.dead_letters()
    assert sink.dead_letter("default:00000000/00000001:1")["id"] == letter["id"]
    with pytest.raises(Rejected, match="CHECK constraint failed"):
        sink.replay(str(letter["id"]), never)
    assert list(sink.dead_letters()) == [letter], "it went without being applied"
    file.execute("ALTER TABLE items RENAME TO old")
    file.execute(TARGET.replace("5", "9"))
    file.execute("INSERT INTO items SELECT * FROM old")
    assert sink.replay(str(letter["id"]), never)["target"] == "main.items"
    assert file.items == [(1, "uno"), (2, "too-long"), (3, "three")]
    assert list(sink.dead_letters()) == []
    with pytest.raises(SettingsError, match="no dead letter"):
        sink.replay(str(letter["id"]), never)


def test_a_row_of_a_load_is_a_dead_letter_that_is_replayed(file: File, sink_of: SinkOf) -> None:
    file.execute(TARGET)
    sink = sink_of({"initial": True, "on_error": "dead-letter"})
    sink.enter("default", SHOP, initial=True)
    loaded(load_of(sink), Point(), b"1\ta\n2\ttoo-long\n3\tc", on_error="dead-letter")  # type: ignore[arg-type]
    assert file.items == [(1, "a"), (3, "c")]
    assert load_of(sink).finish()  # type: ignore[arg-type]
    load_of(sink).settle("stop")  # type: ignore[arg-type]
    (letter,) = sink.dead_letters()
    assert (letter["operation"], letter["reason"]) == ("READ", "refused")
    file.execute("DROP TABLE items")
    file.execute(TARGET.replace("5", "9"))
    sink.replay(str(letter["id"]), never)
    assert file.items == [(2, "too-long")]


def test_a_dead_letter_keeps_what_was_not_sent(file: File, sink_of: SinkOf) -> None:
    file.execute("CREATE TABLE items (id integer PRIMARY KEY CHECK (id < 9), name text)")
    file.execute("INSERT INTO items VALUES (1, 'long ago')")
    sink = sink_of({"on_error": "dead-letter"})
    sink.write([rows_of("UPDATE 10 \\U", before=["1\t\\U"], unchanged=[["name"]])], Noted())
    (letter,) = sink.dead_letters()
    file.execute("ALTER TABLE items RENAME TO old")
    file.execute("CREATE TABLE items (id integer PRIMARY KEY, name text)")
    file.execute("INSERT INTO items SELECT * FROM old")
    sink.replay(str(letter["id"]), never)
    assert file.items == [(10, "long ago")]


@pytest.mark.parametrize("alike", [True, False])
def test_a_row_that_moves_between_partitions_is_one_row(
    file: File, sink_of: SinkOf, *, alike: bool
) -> None:
    sink = sink_of(partitions="items_.", create=True)
    sink.write([moved_row(alike=alike)], Noted())
    assert file.execute("SELECT id, name FROM items") == [(1, "one")]


@pytest.mark.slow
def test_a_truncated_partition_is_loaded_anew_with_the_others(file: File, sink_of: SinkOf) -> None:
    file.execute(TARGET)
    sink = sink_of(partitions="items(_.*)?")
    truncate = rows_of("INSERT 2 two", "TRUNCATE", commit=2, collection="items_a")
    for each in (rows_of("INSERT 1 one"), truncate):
        sink.write([each], Noted())
    assert sink.tables()[0]["state"] == "loading"
    assert file.items == [(1, "one")], "rows of other partitions went"
    assert sink.tables()[0]["held"] == 2
    load = load_of(sink)  # type: ignore[arg-type]
    parts = [
        Point(3, schema=replace(Point().schema, table=name)) for name in ("items_a", "items_b")
    ]
    for number, point in enumerate(parts):
        assert load.begin(point) is None
        loaded(load, point, b"%d\ta" % (number + 7))
    assert load.finish()
    load_of(sink).settle("stop")  # type: ignore[arg-type]
    assert file.items == [(7, "a"), (8, "a")]


@pytest.mark.parametrize("options", [{}, {"filter": "id < 9"}])
def test_a_reload_of_an_append_without_a_key_adds_what_is_missing(
    file: File, sink_of: SinkOf, options: dict[str, str]
) -> None:
    file.execute("CREATE TABLE items (sid text, id int, name text)")
    file.execute("INSERT INTO items VALUES ('other', 1, 'a')")
    sink, point = sink_of({"initial": True}, type="append", **options), Point()
    sink.enter("default", SHOP, initial=True)
    columns = tuple({**column, "key": False} for column in COLUMNS)
    point.schema = replace(point.schema, columns=columns)
    loaded(load_of(sink), point, b"1\ta\n1\ta\n2\tb\n3\t\\N\n9\tx")  # type: ignore[arg-type]
    load_of(sink).finish()  # type: ignore[arg-type]
    load_of(sink).settle("stop")  # type: ignore[arg-type]
    sink.reload("items", None)
    loaded(load_of(sink), point, b"1\ta\n1\ta\n1\ta\n3\t\\N\n4\td")  # type: ignore[arg-type]
    found = file.execute(
        "SELECT sid, id, name, count(*) FROM items WHERE id < 9 GROUP BY 1, 2, 3 ORDER BY 1, 2"
    )
    assert found == [
        ("other", 1, "a", 1), ("shop", 1, "a", 3), ("shop", 2, "b", 1), ("shop", 3, None, 1),
        ("shop", 4, "d", 1),
    ]  # fmt: skip
    assert file.execute("SELECT count(*) FROM items WHERE id = 9") == [(0 if options else 1,)]


@pytest.mark.slow
def test_a_filter_follows_rows_into_it_and_out_of_it(file: File, sink_of: SinkOf) -> None:
    sink = sink_of({"initial": True, "on_error": "dead-letter"}, create=True,
                   filter="length(name) < 4 AND _operation <> 'no'")  # fmt: skip
    sink.enter("default", SHOP, initial=True)
    loaded(load_of(sink), Point(), b"1\tin\n2\tlonger\n3\t\\N")  # type: ignore[arg-type]
    assert file.items == [(1, "in")]
    load_of(sink).finish()  # type: ignore[arg-type]
    load_of(sink).settle("stop")  # type: ignore[arg-type]
    sink.write([rows_of("UPDATE 1 longer", "UPDATE 2 in", "INSERT 4 out-of", commit=2)], Noted())
    assert file.items == [(2, "in")]
    unsent = rows_of("UPDATE 2 \\U", "UPDATE 1 \\U", unchanged=[["name"]] * 2, commit=3)
    sink.write([unsent], Noted())
    assert file.items == [(2, "in")]
    assert [each["reason"] for each in sink.dead_letters()] == ["unsent-value"]
    sink.write([rows_of("DELETE 2", "DELETE 1", commit=4)], Noted())
    assert file.items == []
