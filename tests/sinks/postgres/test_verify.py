"""A target is compared with its source, also while changes are on their way, and mended."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from penstock.cli import main
from penstock.config import load_pipeline
from penstock.model.errors import SettingsError
from penstock.model.table_schema import TableSchema
from penstock.sinks.postgres import PostgresSink
from penstock.sinks.postgres.settings import PostgresSinkSettings
from penstock.sinks.postgres.verify import PostgresComparison
from penstock.sinks.tables.comparing import Difference, Verdict
from tests.servers import Database, Postgres

ITEMS = TableSchema(
    schema="public", table="items", name=("items",), version="1",
    columns=(
        {"name": "id", "data_type": "integer", "key": True},
        {"name": "name", "data_type": "text", "key": False},
    ),
)  # fmt: skip
ROWS = "INSERT INTO items (id, name) SELECT n, 'n' || n FROM generate_series(1, 100) n"

Compared = Callable[..., PostgresComparison]


@pytest.fixture
def target(postgres: Postgres) -> Iterator[Database]:
    with postgres.database() as database:
        database.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
        database.execute(ROWS)
        yield database


@pytest.fixture
def compared(database: Database, target: Database) -> Iterator[Compared]:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    database.execute(ROWS)
    with psycopg.connect(database.url, autocommit=True) as source:
        opened = []

        def make(
            settle: Callable[[], None] = lambda: None,
            schemas: Sequence[TableSchema] = (ITEMS,),
            sid_column: str = "sid",
            **options: Any,
        ) -> PostgresComparison:
            settings = PostgresSinkSettings(
                sid_column=sid_column,
                connection=target.url,  # type: ignore[arg-type]
                map=[{"backend": "shop", "tables": {"items": options}}],  # type: ignore[list-item]
            )
            PostgresSink(settings).prepare()
            database = settings.database()
            opened.append(database.connect())
            (table,) = settings.tables()
            return PostgresComparison(
                source,
                opened[-1],
                table=table,
                schemas=schemas,
                sid="eu",
                settle=settle,
                database=database,
            )

        yield make
        for each in opened:
            each.close()


def test_equal_tables_are_equal(compared: Compared) -> None:
    assert compared().run() == Verdict(differences=[])


def test_a_column_of_the_user_s_that_is_called_as_ours_is_compared(
    compared: Compared, database: Database, target: Database
) -> None:
    for each in (database, target):
        each.execute("ALTER TABLE items ADD sid text; UPDATE items SET sid = 's' || id")
    columns = (*ITEMS.columns, {"name": "sid", "data_type": "text", "key": False})
    schemas = [replace(ITEMS, columns=columns)]
    with pytest.raises(SettingsError, match="the source's own column sid would be lost"):
        compared(schemas=schemas)
    target.execute("UPDATE items SET sid = 'eu' WHERE id = 1")
    assert compared(schemas=schemas, sid_column="shop").run().differences == [
        Difference("(1)", "changed", ("sid",))
    ]
    target.execute("ALTER TABLE items ADD shop text DEFAULT 'eu'; UPDATE items SET sid = 's' || id")
    target.execute("INSERT INTO items (id, shop) VALUES (101, 'us')")
    assert compared(schemas=schemas, sid_column="shop").run() == Verdict(differences=[])


def test_rows_that_differ_are_named_and_mended(compared: Compared, target: Database) -> None:
    target.execute("DELETE FROM items WHERE id = 1")
    target.execute("UPDATE items SET name = 'x' WHERE id = 2")
    target.execute("INSERT INTO items VALUES (101, 'y')")
    comparison = compared()
    found = comparison.run().differences
    assert found == [
        Difference("(1)", "missing"), Difference("(101)", "extra"),
        Difference("(2)", "changed", ("name",)),
    ]  # fmt: skip
    comparison.repair(found)
    assert comparison.run() == Verdict(differences=[])
    assert target.execute("SELECT name FROM items WHERE id <= 2 ORDER BY id") == [("n1",), ("n2",)]


def test_a_change_that_is_on_its_way_is_no_difference(
    compared: Compared, database: Database, target: Database
) -> None:
    database.execute("UPDATE items SET name = 'new' WHERE id <= 2")

    def arrive() -> None:
        target.execute("UPDATE items SET name = 'new' WHERE id <= 1")
        database.execute("UPDATE items SET name = name || '!' WHERE id = 2")

    # The second changes all the time: nobody can tell.
    assert compared(arrive).run() == Verdict(differences=[], unsettled=1)


def test_how_a_session_writes_values_is_no_difference(
    compared: Compared, database: Database, target: Database
) -> None:
    for each in (database, target):
        each.execute("ALTER TABLE items ALTER name TYPE interval USING '1 day -2:00'")
    database.execute(f'ALTER DATABASE "{database.name}" SET intervalstyle = iso_8601')
    assert compared().run() == Verdict(differences=[])


def test_rows_of_other_sources_are_left_out(compared: Compared, target: Database) -> None:
    target.execute("ALTER TABLE items ADD sid text DEFAULT 'eu', DROP CONSTRAINT items_pkey")
    target.execute("ALTER TABLE items ADD PRIMARY KEY (sid, id)")
    target.execute("INSERT INTO items VALUES (1, 'other', 'us')")
    assert compared().run() == Verdict(differences=[])


def test_an_append_may_have_more(compared: Compared, database: Database) -> None:
    database.execute("DELETE FROM items WHERE id = 5")
    assert compared(type="append").run() == Verdict(differences=[])


def test_expressions_are_the_targets(compared: Compared, target: Database) -> None:
    target.execute("DELETE FROM items WHERE id > 50")
    target.execute("UPDATE items SET name = upper(name)")
    comparison = compared(filter="id <= 50", set={"id": "id", "name": "upper(name)"})
    assert comparison.run() == Verdict(differences=[])
    target.execute("UPDATE items SET name = 'x' WHERE id = 7")
    (found,) = comparison.run().differences
    assert found == Difference("(7)", "changed", ("name",))
    with pytest.raises(SettingsError, match="has `set`, `filter` or no key"):
        comparison.repair([found])


def test_all_partitions_are_together_what_the_target_has(
    compared: Compared, database: Database
) -> None:
    database.execute("CREATE TABLE items_b (name text, id int PRIMARY KEY)")
    database.execute("WITH gone AS (DELETE FROM items WHERE id > 50 RETURNING name, id)"
                     " INSERT INTO items_b SELECT * FROM gone")  # fmt: skip
    both = [ITEMS, replace(ITEMS, table="items_b")]
    assert compared(schemas=both, partitions="items.*").run() == Verdict(differences=[])


def test_a_target_that_is_missing_is_told(compared: Compared, target: Database) -> None:
    target.execute("DROP TABLE items")
    with pytest.raises(SettingsError, match=r"there is no table public\.items"):
        compared()


def test_of_a_history_the_current_versions_are_compared(
    compared: Compared, target: Database
) -> None:
    target.execute(
        "ALTER TABLE items ADD kvsz_start timestamptz DEFAULT '1900-01-01Z',"
        " ADD kvsz_end timestamptz DEFAULT '9999-01-01Z', ADD kvsz_deleted boolean DEFAULT false,"
        " DROP CONSTRAINT items_pkey, ADD PRIMARY KEY (id, kvsz_start)"
    )
    target.execute("UPDATE items SET kvsz_start = '2026-01-01Z' WHERE id = 1")
    old = "INSERT INTO items (id, name, kvsz_end) VALUES (1, 'old', '2026-01-01Z')"
    target.execute(f"{old}, (200, 'gone', '2026-01-01Z')")
    mapped = {"set": {"id": "id", "name": "name"}}
    for options in ({}, mapped):
        assert compared(type="history", **options).run() == Verdict(differences=[])
    target.execute("UPDATE items SET name = 'x' WHERE id = 2")
    found = compared(type="history").run().differences
    assert found == [Difference("(2)", "changed", ("name",))]
    with pytest.raises(SettingsError, match="is a history"):
        compared(type="history").repair(found)


def pipeline(database: Database, target: Database, folder: Path, tables: str) -> Path:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    database.execute(ROWS)
    database.execute("CREATE PUBLICATION p FOR TABLE items")
    file = folder / "pipeline.yaml"
    file.write_text(f"""
name: p
state: {folder}
backends: [{{name: shop, type: postgres, connection: "{database.url}", publication: p, slot: s}}]
sink:
  type: postgres
  connection: "{target.url}"
  map: [{{backend: shop, tables: {{{tables}}}}}]
""")
    return file


def test_a_row_that_changes_at_each_look_is_not_called_equal(
    database: Database, target: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = pipeline(database, target, tmp_path, "items: null")
    change = "UPDATE items SET name = name || '!' WHERE id = 1"
    database.execute(change)
    monkeypatch.setattr("penstock.feeds.postgres.slot.settle", lambda *_: database.execute(change))
    found = CliRunner().invoke(main, ["verify", str(file)])
    assert found.exit_code == 3, found.output
    assert found.output.split()[0] == "unsettled"
    target.execute("DELETE FROM items WHERE id = 2")
    found = CliRunner().invoke(main, ["verify", str(file)])
    assert found.exit_code == 1, found.output
    assert found.output.startswith("different ")
    assert "(1 rows changed all the time)" in found.output
    load_pipeline(file).sink.sink().prepare()
    found = CliRunner().invoke(main, ["verify", str(file), "--repair"])
    assert found.exit_code == 3, found.output
    assert found.output.startswith("repaired ")


def test_a_table_that_the_source_does_not_send_is_named(
    database: Database, target: Database, tmp_path: Path
) -> None:
    file = pipeline(database, target, tmp_path, "items: null, lost: {target: items_too}")
    found = CliRunner().invoke(main, ["verify", str(file)])
    assert found.exit_code == 1, found.output
    assert [line.split()[0] for line in found.output.splitlines()] == ["equal", "missing"]
    assert "public.lost" in found.output
    assert CliRunner().invoke(main, ["verify", str(file), "items"]).exit_code == 0


def test_a_partition_that_the_source_does_not_send_is_compared(
    database: Database, target: Database, tmp_path: Path
) -> None:
    """Also one with partitions of its own, once."""
    file = pipeline(database, target, tmp_path, 'ev: {partitions: "ev_.*", target: ev}')
    database.execute(
        "CREATE TABLE ev (id int PRIMARY KEY, name text) PARTITION BY RANGE (id);"
        "CREATE TABLE ev_1 PARTITION OF ev FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE ev_2 PARTITION OF ev FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id);"
        "CREATE TABLE ev_2a PARTITION OF ev_2 FOR VALUES FROM (10) TO (20);"
        "INSERT INTO ev VALUES (1, 'a'), (11, 'b')"
    )
    target.execute(
        "CREATE TABLE ev (id int PRIMARY KEY, name text); INSERT INTO ev VALUES (1, 'a')"
    )
    found = CliRunner().invoke(main, ["verify", str(file)])
    assert (found.exit_code, found.output.split()[0]) == (1, "missing"), found.output
    database.execute("ALTER PUBLICATION p ADD TABLE ev_1")
    found = CliRunner().invoke(main, ["verify", str(file)])
    assert found.exit_code == 1, found.output
    assert "missing (11)" in found.output
    target.execute("INSERT INTO ev VALUES (11, 'b')")
    found = CliRunner().invoke(main, ["verify", str(file)])
    assert (found.exit_code, found.output.split()[0]) == (0, "equal"), found.output
    database.execute("ALTER PUBLICATION p ADD TABLE ev")
    assert CliRunner().invoke(main, ["verify", str(file)]).exit_code == 0
