"""Lines become rows of a table: each step, in PostgreSQL and in SQLite."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.tables.fold import Merge, Move, RowStep
from penstock.tables.lines import UNSENT, RelationColumn, SourceRelation
from penstock.tables.sqlite_staging import SqliteConnection, SqliteStagedTable
from penstock.tables.sqlite_staging import find_destination as find_in_sqlite
from penstock.tables.staged import RowMapping, StagedRows, UnsentValue, widened
from penstock.tables.staging import SESSION, StagedTable, find_destination, set_session
from tests.servers import Database

ITEM = SourceRelation(
    schema="public",
    table="item",
    columns=(
        RelationColumn("name", "text"), RelationColumn("id", "integer", is_key=True),
        RelationColumn("large", "text"),
    ),
)  # fmt: skip
LOG = SourceRelation(
    schema="public", table="log",
    columns=(RelationColumn("line", "json"), RelationColumn("n", "integer")),
)  # fmt: skip


@pytest.fixture
def postgres(database: Database) -> Iterator[Any]:
    with psycopg.connect(database.url, autocommit=True) as opened:
        set_session(opened, SESSION)
        yield opened


@pytest.fixture(params=["postgres", "sqlite"])
def connection(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    if request.param == "postgres":
        yield request.getfixturevalue("postgres")
        return
    options: Any = {"isolation_level": None, "factory": SqliteConnection}
    with closing(sqlite3.connect(tmp_path / "target.db", **options)) as opened:
        yield opened


def staged(
    connection: Any, create: str, relation: SourceRelation = ITEM, **mapping: Any
) -> StagedRows:
    table: StagedRows
    if isinstance(connection, SqliteConnection):
        connection.execute(create)
        found = find_in_sqlite(connection, "main", "Target")
        assert found is not None
        table = SqliteStagedTable(relation, found, RowMapping(**mapping), 0, "_rowid_")
    else:
        connection.execute(create.encode())
        found = find_destination(connection, "public", "Target")
        assert found is not None
        table = StagedTable(relation, found, RowMapping(**mapping), 0)
    table.make(connection.cursor())
    return table


def apply(connection: Any, table: StagedRows, *steps: RowStep) -> list[tuple[Any, ...]]:
    with connection.transaction():
        table.apply(connection.cursor(), steps)
    return list(connection.execute('SELECT * FROM "Target" ORDER BY 1 NULLS LAST'))


PLAIN = 'CREATE TABLE "Target" (id int PRIMARY KEY, name text, large text)'


ALWAYS = "GENERATED ALWAYS AS IDENTITY"


@pytest.mark.parametrize("note", ["", ", note text DEFAULT 'mine'"])
def test_a_key_that_no_update_may_set(postgres: Any, note: str) -> None:
    kept = ("mine",) if note else ()
    table = staged(
        postgres,
        f'CREATE TABLE "Target" (id int {ALWAYS} PRIMARY KEY, name text, large text{note})',
    )
    whole = Merge(whole=["a\t1\tx", "b\t2\ty"])
    assert apply(postgres, table, whole) == [(1, "a", "x", *kept), (2, "b", "y", *kept)]
    if note:
        postgres.execute("""UPDATE "Target" SET note = 'own'""")
        kept = ("own",)
    assert apply(postgres, table, Merge(parts={(2,): ["c\t1\t\\N"]}, whole=["d\t2\tz"])) == [
        (1, "c", "x", *kept), (2, "d", "z", *kept),
    ]  # fmt: skip
    assert apply(postgres, table, Move("1", f"e\t7\t{UNSENT}"), Move("2", "f\t1\tw")) == [
        (1, "f", "w", *kept), (7, "e", "x", *kept),
    ]  # fmt: skip


def test_a_column_that_no_update_may_set_is_written_where_it_changes(postgres: Any) -> None:
    kept = """note text DEFAULT 'mine', twice int GENERATED ALWAYS AS (id * 2) STORED,
              row_id int UNIQUE"""
    numbered = replace(ITEM, columns=(*ITEM.columns, RelationColumn("number", "integer")))
    table = staged(
        postgres,
        'CREATE TABLE "Target" (id int PRIMARY KEY, name text, large text, '
        f"number int {ALWAYS} UNIQUE, {kept})",
        numbered,
    )
    apply(postgres, table, Merge(whole=["a\t1\tx\t10", "b\t2\ty\t20"]))
    postgres.execute("""UPDATE "Target" SET note = 'own', row_id = id + 100""")
    assert apply(postgres, table, Merge(whole=["c\t1\tx\t10", "d\t2\tz\t30"])) == [
        (1, "c", "x", 10, "own", 2, 101), (2, "d", "z", 30, "own", 4, 102),
    ]  # fmt: skip
    swapped = Merge(parts={(2,): ["e\t1\t\\N\t30", "f\t2\t\\N\t10"]})
    assert apply(postgres, table, swapped) == [
        (1, "e", "x", 30, "own", 2, 101), (2, "f", "z", 10, "own", 4, 102),
    ]  # fmt: skip
    moved = Move("1", f"g\t5\t{UNSENT}\t40")
    assert apply(postgres, table, moved) == [
        (2, "f", "z", 10, "own", 4, 102), (5, "g", "x", 40, "own", 10, 101),
    ]  # fmt: skip


FILTERED = 'CREATE TABLE "Target" (id text PRIMARY KEY, upper text, kind text)'
MADE = {"id": "'x' || id", "upper": "upper(name)", "kind": "_operation"}


def lines(*texts: str) -> list[str]:
    return [f"{text.partition(' ')[0]}\t2026-01-01Z\t{text.partition(' ')[2]}" for text in texts]


def test_expressions_make_columns_and_a_filter_says_which_rows_there_are(connection: Any) -> None:
    table = staged(connection, FILTERED, computed=MADE, filter="large <> 'no' AND _operation <> ''")
    assert table.relation == widened(ITEM)
    whole = lines("INSERT a\t1\tyes", "INSERT b\t2\tno", "INSERT c\t3\t\\N", "INSERT d\t4\t")
    assert apply(connection, table, Merge(whole=whole)) == [
        ("x1", "A", "INSERT"), ("x4", "D", "INSERT"),
    ]  # fmt: skip
    whole = lines("UPDATE a\t1\tno", "UPDATE b\t2\tyes")
    assert apply(connection, table, Merge(gone=["4"], whole=whole)) == [("x2", "B", "UPDATE")]


def test_a_filter_sees_values_that_were_not_sent(connection: Any) -> None:
    table = staged(connection, PLAIN, filter="large <> 'no'")
    apply(connection, table, Merge(whole=lines("INSERT a\t1\tyes", "INSERT b\t2\tyes")))
    parts = {(4,): lines("UPDATE c\t1\t\\N")}
    assert apply(connection, table, Merge(parts=parts)) == [(1, "c", "yes"), (2, "b", "yes")]
    moved = lines(f"UPDATE d\t7\t{UNSENT}")[0]
    assert apply(connection, table, Move("2", moved)) == [(1, "c", "yes"), (7, "d", "yes")]


def parts_of(*texts: str) -> Merge:
    """Updates that lack `large`."""
    return Merge(parts={(4,): lines(*(f"{text}\t\\N" for text in texts))})


def test_an_expression_over_a_value_that_nobody_has_is_refused(connection: Any) -> None:
    made = {"id": "id", "name": "upper(large)"}
    create = 'CREATE TABLE "Target" (id int PRIMARY KEY, name text, large text)'
    table = staged(connection, create, computed=made)
    apply(connection, table, Merge(whole=lines("INSERT a\t1\tyes")))
    # Its column `large` is not the source's.
    connection.execute("""UPDATE "Target" SET large = 'mine'""")
    with pytest.raises(UnsentValue, match="needs the column large"):
        apply(connection, table, parts_of("UPDATE a\t1"))
    assert apply(connection, table) == [(1, "YES", "mine")]


def test_a_value_that_was_not_sent_comes_from_the_column_that_has_it(connection: Any) -> None:
    create = 'CREATE TABLE "Target" (id int PRIMARY KEY, kept text, name text, size int)'
    made = {"id": "id", "kept": "large", "name": "name", "size": "length(large)"}
    table = staged(connection, create, computed=made)
    apply(connection, table, Merge(whole=lines("INSERT a\t1\tyes")))
    assert apply(connection, table, parts_of("UPDATE b\t1", "UPDATE c\t2")) == [
        (1, "yes", "b", 3)
    ], "a row that is not there got in"


@pytest.mark.parametrize(
    ("condition", "text", "enters"),
    [
        ("name <> 'no'", "UPDATE no\t1", False),
        ("name <> 'no'", "UPDATE yes\t1", True),
        ("large IS NULL", "UPDATE yes\t1", False),  # that has not changed: it was outside
        ("large IS NULL OR name = 'yes'", "UPDATE no\t1", True),  # nobody knows
    ],
)
def test_a_row_that_enters_with_a_value_that_was_not_sent_is_refused(
    connection: Any, condition: str, text: str, enters: bool
) -> None:
    table = staged(connection, PLAIN, filter=condition)
    if enters:
        with pytest.raises(UnsentValue, match="enters the target"):
            apply(connection, table, parts_of(text))
    assert apply(connection, table, *([] if enters else [parts_of(text)])) == []


def test_a_batch_costs_what_it_changes_and_not_what_the_target_has(postgres: Any) -> None:
    table = staged(postgres, PLAIN)
    postgres.execute("""INSERT INTO "Target" SELECT n, 'a', 'b' FROM generate_series(1, 50000) n""")
    postgres.execute('ANALYZE "Target"')
    before = _scans(postgres)
    with postgres.transaction():
        step = Merge(gone=["1"], whole=["x\t2\ty"], parts={(2,): ["x\t3\t\\N"]})
        table.apply(postgres.cursor(), [step])
    assert _scans(postgres) == before, "the whole target was read"


def test_statistics_that_do_not_know_a_source_do_not_make_its_batches_slow(postgres: Any) -> None:
    create = (
        'CREATE TABLE "Target" (sid text, id int, name text, large text, PRIMARY KEY (sid, id))'
    )
    table = staged(postgres, create, sid="new")
    postgres.execute('ALTER TABLE "Target" SET (autovacuum_enabled = off)')
    postgres.execute(
        """INSERT INTO "Target" SELECT 'old', n, '', '' FROM generate_series(1, 5000) n"""
    )
    postgres.execute('ANALYZE "Target"')
    apply(postgres, table, Merge(whole=[f"a\t{n}\tx" for n in range(5000)]))
    before = _tuples(postgres)
    step = Merge([f"{n}" for n in range(200)], {(2,): ["b\t300\t\\N"] * 9})
    with postgres.transaction():
        table.apply(postgres.cursor(), [step])
    assert _tuples(postgres) - before < 1000


def _tuples(connection: Any) -> int:
    """Entries of the target's index that were read."""
    connection.execute("SELECT pg_stat_force_next_flush()")
    found = connection.execute("SELECT pg_stat_get_tuples_returned('\"Target_pkey\"'::regclass)")
    return int(found.fetchone()[0])


def _scans(connection: Any) -> int:
    connection.execute("SELECT pg_stat_force_next_flush()")
    return int(
        connection.execute("SELECT pg_stat_get_numscans('\"Target\"'::regclass)").fetchone()[0]
    )
