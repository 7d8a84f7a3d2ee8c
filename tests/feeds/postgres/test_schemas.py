"""Schemas of tables: what the log announces and what the catalogue says are one schema."""

import itertools
import threading
import time
from collections.abc import Sequence
from typing import Any

import psycopg
import pytest

from penstock.feeds.postgres import PostgresFeed, PostgresSettings
from penstock.feeds.postgres.schemas import _RELATIONS
from penstock.model.errors import Unavailable
from penstock.model.table_schema import TableSchema
from tests.feeds.postgres.reading import Reader, Recorded
from tests.servers import Database

# What pgoutput announces of each (proto.c, logicalrep_write_attrs; RelationGetIdentityKeyBitmap).
TABLES = (
    "CREATE TABLE plain (id int PRIMARY KEY, v varchar(9) NOT NULL DEFAULT 'x', n numeric(9,2))",
    "CREATE TABLE two (a text, b int, v text, PRIMARY KEY (b, a))",
    "CREATE TABLE whole (id int PRIMARY KEY, v text); ALTER TABLE whole REPLICA IDENTITY FULL",
    "CREATE TABLE by_index (a int NOT NULL, b int, v text, extra int);"
    "CREATE UNIQUE INDEX by_a ON by_index (a) INCLUDE (extra);"
    "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_a",
    "CREATE TABLE keyless (v text)",
    "CREATE TABLE late (id int PRIMARY KEY DEFERRABLE, v text)",
    "CREATE TABLE made (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED, v text)",
    "CREATE TYPE mood AS ENUM ('a', 'b'); CREATE TABLE own (id int PRIMARY KEY, m mood, ms mood[])",
    "CREATE TABLE gone (x int, id int PRIMARY KEY, v text); ALTER TABLE gone DROP COLUMN x",
    "CREATE TABLE more (id int, v text, PRIMARY KEY (id) INCLUDE (v));"
    "ALTER TABLE more REPLICA IDENTITY FULL",
    "CREATE TABLE swap (id int PRIMARY KEY DEFERRABLE, v text);"
    "ALTER TABLE swap REPLICA IDENTITY FULL",
)
NAMES = (
    "plain", "two", "whole", "by_index", "keyless", "late", "made", "own", "gone", "more", "swap",
)  # fmt: skip


def test_the_log_and_the_catalogue_agree_about_versions(reader_any: Reader) -> None:
    announced = Recorded()
    for table in TABLES:
        reader_any.database.execute(table)
    reader_any.feed.announce_schemas(announced)
    reader_any.prepare()
    for name in NAMES:
        column = {"two": "b", "by_index": "a", "keyless": "v"}.get(name, "id")
        value: Any = "1" if name == "keyless" else 1
        more = (", a", ", 'k'") if name == "two" else ("", "")
        reader_any.database.execute(
            f"INSERT INTO {name} ({column}{more[0]}) VALUES (%s{more[1]})", (value,)
        )
    rows = reader_any.take(len(NAMES))
    found = {one.table: one for one in reader_any.feed.schemas()}
    assert {name: one.version for name, one in found.items()} == {
        row["collection"]: row["schema_version"] for row in rows
    }
    assert {one.table for one in announced} == found.keys()
    for one in announced:
        now = found[one.table]
        assert (one.version, one.name, one.columns) == (now.version, now.name, now.columns)
    keys = {
        name: [each["name"] for each in one.columns if each["key"]] for name, one in found.items()
    }
    assert keys == {
        "plain": ["id"], "two": ["a", "b"], "whole": ["id"], "by_index": ["a"], "keyless": [],
        "late": [], "made": ["id"], "own": ["id"], "gone": ["id"], "more": ["id"], "swap": [],
    }  # fmt: skip
    assert {row["collection"]: list(row["key"] or ()) for row in rows} == keys
    assert found["plain"].name == ("plain",)
    assert found["plain"].columns[1] == {
        "name": "v", "position": 2, "data_type": "character varying(9)",
        "base_type": "character varying(9)", "is_nullable": False,
        "column_default": "'x'::character varying", "key": False, "number": 2, "type": 1043,
        "has_missing": False, "is_generated": False,
    }  # fmt: skip
    assert "twice" not in [each["name"] for each in found["made"].columns]


def test_a_schema_is_announced_before_the_page_that_needs_it(reader: Reader) -> None:
    announced = Recorded()
    reader.prepare("CREATE TABLE t (id int PRIMARY KEY, v text)")
    reader.feed.announce_schemas(announced)
    reader.database.execute("INSERT INTO t VALUES (1, 'a')")
    (row,) = reader.take(1)
    assert [one.version for one in announced] == [row["schema_version"]]
    assert announced[0].position == f"{row['cursor']}:0"
    reader.database.execute("ALTER TABLE t ADD w int NOT NULL DEFAULT 3")
    reader.database.execute("INSERT INTO t VALUES (2, 'b')")
    (row,) = reader.take(1)
    assert announced[-1].version == row["schema_version"] != announced[0].version
    assert [each["name"] for each in announced[-1].columns] == ["id", "v", "w"]


def test_what_cannot_be_recorded_is_read_again(reader: Reader) -> None:
    class Away(Recorded):
        def record(self, schema: TableSchema) -> None:
            super().record(schema)
            if len(self) == 1:
                raise Unavailable("the bucket is away")

    asked = Away()
    reader.prepare("CREATE TABLE t (id int PRIMARY KEY, v text)")
    reader.feed.announce_schemas(asked)
    reader.database.execute("INSERT INTO t VALUES (1, 'a')")
    with pytest.raises(Unavailable, match="the bucket is away"):
        reader.take(1)
    reader.close()
    reader.take(1)
    assert [one.table for one in asked] == ["t", "t"]


def test_tables_of_one_name_are_named_with_their_schemas(reader: Reader) -> None:
    reader.prepare(
        "CREATE SCHEMA shop; CREATE TABLE t (id int PRIMARY KEY);"
        "CREATE TABLE shop.t (id int PRIMARY KEY); CREATE TABLE shop.u (id int PRIMARY KEY)"
    )
    names = {(one.schema, one.table): one.name for one in reader.feed.schemas()}
    assert names == {
        ("public", "t"): ("public", "t"), ("shop", "t"): ("shop", "t"), ("shop", "u"): ("u",),
    }  # fmt: skip


def test_a_column_list_is_the_schema(reader_any: Reader) -> None:
    reader_any.prepare(
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text);"
        "CREATE PUBLICATION p FOR TABLE t (id, b)"
    )
    reader_any.database.execute("INSERT INTO t VALUES (1, 'a', 'b')")
    (row,) = reader_any.take(1)
    (schema,) = reader_any.feed.schemas()
    assert [each["name"] for each in schema.columns] == ["id", "b"]
    assert schema.version == row["schema_version"]


def test_a_table_that_somebody_has_locked_holds_up_no_changes(
    reader_any: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    """Printing a default locks its table in new servers (ruleutils.c, pg_get_expr_worker)."""
    announced = Recorded()
    reader_any.prepare("CREATE TABLE t (id int PRIMARY KEY, v text DEFAULT 'x')")
    reader_any.feed.announce_schemas(announced)
    reader_any.database.execute("INSERT INTO t VALUES (1)")
    with psycopg.connect(reader_any.database.url) as connection:
        connection.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        started = time.monotonic()
        reader_any.take(1)
        assert time.monotonic() - started < 20, "it waited until the statement's time was over"
    assert len(announced) + len(caplog.records) == 1


def test_a_partition_is_seen_with_the_transaction_that_attached_it(database: Database) -> None:
    """One statement mixes times: functions of the catalogue see more than its own snapshot."""
    database.execute(
        "CREATE TABLE t (id int, d int, PRIMARY KEY (id, d)) PARTITION BY RANGE (d);"
        "CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root = true)"
    )
    over = threading.Event()

    def come_and_go() -> None:
        with psycopg.connect(database.url, autocommit=True) as writer:
            for n in itertools.takewhile(lambda _: not over.is_set(), itertools.count()):
                bounds = f"FOR VALUES FROM ({n}) TO ({n + 1})"
                writer.execute(f"CREATE TABLE p{n} PARTITION OF t {bounds}".encode())
                writer.execute(f'DROP TABLE IF EXISTS "p{n - 5}"'.encode())

    writing = threading.Thread(target=come_and_go)
    writing.start()
    seen = []
    with psycopg.connect(database.url, autocommit=True) as reader:
        for _ in range(400):
            rows = reader.execute(_RELATIONS.encode(), ["p", *[None] * 5]).fetchall()
            seen += [leaf[1] for row in rows if row[-1] for leaf in row[-1]["partitions"]]
    over.set()
    writing.join()
    assert len(seen) > 10
    assert [file for file in seen if len(file.split()) != 2] == []


def test_before_a_publication_is_made_schemas_are_those_that_it_will_send(
    database_any: Database,
) -> None:
    for table in TABLES:
        database_any.execute(table)
    feed = PostgresFeed(PostgresSettings(
        name=database_any.name, connection=database_any.url, tables=[*NAMES, "added"]
    ))  # fmt: skip

    def described(schemas: Sequence[TableSchema]) -> dict[str, Any]:
        return {
            each.table: (each.columns, each.version, each.unsent, each.sends_all)
            for each in schemas
            if each.table not in ("keyless", "late")  # without an identity: not published
        }

    before = described(feed.schemas_to_be())
    assert (feed.schemas(), before["made"][2]) == ([], ("twice",))
    feed.begin()
    assert described(feed.schemas_to_be()) == before
    now = {name: (*one[:2], (), one[3]) for name, one in before.items()}
    assert described(feed.schemas()) == now
    database_any.execute("CREATE TABLE added (id int PRIMARY KEY)")
    assert described(feed.schemas_to_be()).keys() - before.keys() == {"added"}
    assert [each.table for each in feed.schemas() if each.table == "added"] == []
