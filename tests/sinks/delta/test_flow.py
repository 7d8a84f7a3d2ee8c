"""Tables of a real server are in Delta tables as they are there, read by delta-rs and DuckDB."""

from pathlib import Path
from typing import Any

import pytest

from tests.servers import Database, Postgres
from tests.sinks.delta.lake import Lake, change, ordered, same
from tests.sinks.postgres.flow import Flow
from tests.sinks.tables.kept import Kept
from tests.waiting import until

ITEMS = """
CREATE TABLE items (id int PRIMARY KEY, name text, n numeric(12,2), large text);
ALTER TABLE items ALTER large SET STORAGE EXTERNAL;
INSERT INTO items SELECT g, 'old', g, repeat(g::text, CASE WHEN g % 3 = 0 THEN 3000 ELSE 1 END)
FROM generate_series(1, 50) g
"""


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


@pytest.mark.parametrize("sink", [{}, {"buckets": 4}, {"partition_by": ["name"]}], ids=str)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_table_is_as_its_source_after_random_transactions(
    database: Database, lake: Lake, sink: dict[str, Any], seed: int
) -> None:
    database.execute(ITEMS)
    with Flow(database, lake.folder, {"items": None}, sink=sink) as flow:
        change(database, seed, 40)
        flow.loaded()
        names = "id, name, n, large"
        same(flow, database, lake, "items", names)
        change(database, seed + 100, 40)
        same(flow, database, lake, "items", names)
    want = ordered(database.execute(f"SELECT {names} FROM items"))
    assert lake.by_duckdb("items", names.split(", ")) == want
    assert lake.by_polars("items", names.split(", ")) == want


TYPES = """
CREATE TYPE mood AS ENUM ('sad', 'happy, very');
CREATE DOMAIN positive AS integer CHECK (VALUE > 0);
CREATE TABLE kinds (
    id uuid PRIMARY KEY, b boolean, i2 smallint, i4 int, i8 bigint, f4 real, f8 float8,
    d numeric(38, 10), wide numeric, t text, v varchar(20), c char(5), by bytea, day date,
    at timestamp, atz timestamptz, j json, jb jsonb, m mood, p positive, r int4range,
    ints int[], texts text[], moods mood[], days date[], decimals numeric(6,2)[], boxes box[]
);
"""
VALUES = """
INSERT INTO kinds VALUES (
    '00000000-0000-0000-0000-00000000000#', true, -32768, #, 9223372036854775807, 0.5,
    '-Infinity', 1234567890.0000000001, 1e50, E'a\\tb\\\\c\\nd', 'v', 'c', '\\x00ff', '2026-02-28',
    '2026-02-28 01:02:03.000004', '2026-02-28 01:02:03.5+02', '{"a": 1}', '{"b": [1]}',
    'happy, very', 5, '[1,5)', '{1,NULL,3}', '{"a,b",c}', '{sad}', '{2026-01-01}',
    '{1.50}', '{(1,1),(0,0);(3,3),(2,2)}'
);
INSERT INTO kinds (id) VALUES ('10000000-0000-0000-0000-00000000000#')
"""
COLUMNS = (
    "id::text, b, i2, i4, i8, f4, f8, d, wide::text, t, v, c, by, day, at, atz, j::text,"
    " jb::text, m::text, p::text, r::text, ints, texts, moods::text[], days, decimals, boxes::text"
)


def test_each_type_is_the_same_of_rows_and_of_changes(database: Database, lake: Lake) -> None:
    database.execute(TYPES)
    database.execute(VALUES.replace("#", "1"))
    with Flow(database, lake.folder, {"kinds": None}) as flow:
        flow.loaded()
        database.execute(VALUES.replace("#", "2"))
        columns = COLUMNS.replace(", boxes::text", "")
        same(flow, database, lake, "kinds", columns)
        database.execute("UPDATE kinds SET i4 = 7, ints = '{4}'")
        same(flow, database, lake, "kinds", columns)
    boxes = {tuple(row[0] or ()) for row in lake.rows("kinds", ["boxes"])}
    assert boxes == {("(1,1),(0,0)", "(3,3),(2,2)"), ()}


def test_a_log_has_a_row_for_each_change(database: Database, lake: Lake) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, name text, large text)")
    database.execute("ALTER TABLE items ALTER large SET STORAGE EXTERNAL")
    database.execute("CREATE TABLE notes (name text); ALTER TABLE notes REPLICA IDENTITY FULL")
    database.execute("INSERT INTO items VALUES (1, 'one', repeat('x', 3000))")
    log = {"type": "log"}
    tables, sink = {"items": log, "notes": log}, {"partition_by": ["_day"]}
    with Flow(database, lake.folder, tables, sink=sink) as flow:
        flow.loaded()
        for statement in (
            "UPDATE items SET name = 'eins' WHERE id = 1", "UPDATE items SET id = 2",
            "INSERT INTO items VALUES (3, NULL, 'y')", "DELETE FROM items WHERE id = 2",
            "TRUNCATE items", "INSERT INTO notes VALUES ('a'), ('a')", "DELETE FROM notes",
        ):  # fmt: skip
            database.execute(statement)
        columns = ["_sequence", "_operation", "id", "name", "_unsent", "_key_before"]
        until(lambda: flow.check() or len(lake.rows("items", columns)) == 6, 60)
        until(lambda: flow.check() or len(lake.rows("notes")) == 4, 60)
    assert [row[1:] for row in lake.rows("items", columns)] == [
        ("READ", 1, "one", None, None),
        ("UPDATE", 1, "eins", ["large"], None),
        ("UPDATE", 2, "eins", ["large"], {"id": 1}),
        ("INSERT", 3, None, [], None),
        ("DELETE", 2, None, ["name", "large"], None),
        ("TRUNCATE", None, None, [], None),
    ]
    assert [row[0] for row in lake.rows("notes", ["_operation", "name"])] == [
        "DELETE", "DELETE", "INSERT", "INSERT",
    ]  # fmt: skip
    assert lake.table("items").metadata().partition_columns == ["_day"]


@pytest.mark.parametrize("sink", [{}, {"buckets": 2, "partition_by": ["name"]}], ids=str)
def test_a_table_follows_the_columns_of_its_source(
    database: Database, lake: Lake, sink: dict[str, Any]
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, name text, n numeric(4,1))")
    database.execute("INSERT INTO items VALUES (1, 'one', 1.5)")
    with Flow(database, lake.folder, {"items": None}, sink=sink) as flow:
        flow.loaded()
        database.execute("ALTER TABLE items ADD more numeric(5,1)")
        database.execute("ALTER TABLE items ADD size int DEFAULT 7")
        database.execute("INSERT INTO items VALUES (2, 'two', 2.5, 2.5, 2)")
        same(flow, database, lake, "items", "id, name, n, more, size")
        database.execute("ALTER TABLE items DROP more")
        database.execute("UPDATE items SET name = 'zwei' WHERE id = 2")
        same(flow, database, lake, "items", "id, name, n, size")
        database.execute("ALTER TABLE items ALTER id TYPE bigint, ALTER n TYPE numeric(12,2)")
        database.execute("ALTER TABLE items RENAME name TO called; ALTER TABLE items ADD z date")
        database.execute("UPDATE items SET n = 1234567.25 WHERE id = 1")
        database.execute("INSERT INTO items VALUES (3000000000, 'three', 3)")
        same(flow, database, lake, "items", "id, called, n, size, z")
    schema = lake.table("items").to_pyarrow_dataset().schema
    assert [str(schema.field(name).type) for name in ("id", "n")] == ["int64", "decimal128(12, 2)"]
    assert lake.table("items").metadata().partition_columns == [
        *(["called", "_bucket"] if sink else [])
    ]


def test_a_log_follows_the_columns_of_its_source(database: Database, lake: Lake) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    with Flow(database, lake.folder, {"items": {"type": "log"}}) as flow:
        flow.loaded()
        database.execute("INSERT INTO items VALUES (1, 'one'); UPDATE items SET id = 2")
        until(lambda: flow.check() or len(lake.rows("items")) == 2, 60)
        database.execute("ALTER TABLE items ALTER id TYPE bigint; ALTER TABLE items RENAME id TO k")
        database.execute("UPDATE items SET k = 3000000000")
        columns = ["k", "name", "_key_before"]
        until(lambda: flow.check() or len(lake.rows("items", columns)) == 3, 60)
    assert lake.rows("items", columns) == [
        (1, "one", None), (2, "one", {"k": 1}), (3000000000, "one", {"k": 2}),
    ]  # fmt: skip


def test_a_type_that_does_not_hold_the_old_values_makes_the_table_wait(
    database: Database, lake: Lake
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, size bigint)")
    with Flow(database, lake.folder, {"items": None}) as flow:
        flow.loaded()
        database.execute("ALTER TABLE items ALTER size TYPE int")
        database.execute("INSERT INTO items VALUES (3, 3)")
        until(lambda: flow.check() or "waiting" in dict(flow.states()), 60)
        assert "size is integer now, was bigint" in flow.states()[0][1]
        flow.reload("items")
        same(flow, database, lake, "items")


def test_several_sources_share_a_table(database: Database, postgres: Postgres, lake: Lake) -> None:
    with postgres.database() as other:
        sources = {"eu": database, "us": other}
        for each in sources.values():
            each.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
            each.execute("INSERT INTO items VALUES (1, 'one'), (2, 'two')")
        sink = {"sid_column": "sid", "buckets": 2}
        with Kept(sources, lake.folder, {"items": None}, lake.folder / "p.db", sink=sink) as flow:
            flow.loaded()
            database.execute("TRUNCATE items; INSERT INTO items VALUES (5, 'five')")
            other.execute("UPDATE items SET id = 3 WHERE id = 2")
            want = [("eu", 5, "five"), ("us", 1, "one"), ("us", 3, "two")]
            columns = ["sid", "id", "name"]
            until(lambda: flow.check() or lake.rows("items", columns) == want, 60,
                  problem=lambda: lake.rows("items"))  # fmt: skip


def test_a_table_without_a_key_waits_unless_it_is_a_log(database: Database, lake: Lake) -> None:
    database.execute("CREATE TABLE notes (name text); ALTER TABLE notes REPLICA IDENTITY FULL")
    with Flow(database, lake.folder, {"notes": None}) as flow:
        until(lambda: flow.check() or "waiting" in dict(flow.states()), 60)
        assert "its source has no key" in flow.states()[0][1]
        assert [each.code for each in flow.findings()] == ["delta.key-missing"]


def test_a_value_that_no_column_holds_is_a_letter(database: Database, lake: Lake) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, at timestamp)")
    database.execute("INSERT INTO items VALUES (1, 'infinity'), (2, '2026-01-01')")
    with Flow(database, lake.folder, {"items": None}, on_error="dead-letter") as flow:
        flow.loaded()
        database.execute("INSERT INTO items VALUES (3, '-infinity'), (4, '2026-01-02')")
        until(lambda: flow.check() or [row[0] for row in lake.rows("items")] == [2, 4], 60)
        until(lambda: flow.check() or len(list(flow.letters())) == 2, 60)
