"""The contract of a database of tables, on each of ours, in sessions of a sink and of a mirror."""

import pickle
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import Rejected, SettingsError, Unavailable
from penstock.process.plugins import plugin
from penstock.tables.database import Owner, TableDatabase
from penstock.tables.fold import ABSENT, Clear, Merge, Move, Recount
from penstock.tables.lines import RelationColumn, SourceRelation
from penstock.tables.staged import RowMapping, StagedRows
from tests.servers import Postgres

COLUMNS = (RelationColumn("a", "integer", is_key=True), RelationColumn("b", "text"))
ITEMS = SourceRelation(schema="public", table="items", columns=COLUMNS)
BAG = SourceRelation(
    schema="public", table="items", columns=tuple(one._replace(is_key=False) for one in COLUMNS)
)
ODD = tuple(RelationColumn(name, "text") for name in ("v%s", "%%", 'a "%(x)s"', "Änd"))


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TableDatabase]:
    make = plugin("sinks", request.param).database
    if request.param == "sqlite":
        yield make(f"sqlite:///{tmp_path / 'target.db'}")
        return
    postgres: Postgres = request.getfixturevalue("postgres")
    with postgres.database() as fresh:
        yield make(fresh.url)


@pytest.fixture(params=["sink", "mirror"])
def connection(request: pytest.FixtureRequest, database: TableDatabase) -> Iterator[Any]:
    owner: Owner = request.param
    with closing(database.connect(owner)) as found:
        yield found


def made(
    database: TableDatabase, connection: Any, relation: SourceRelation = ITEMS, name: str = "items"
) -> StagedRows:
    """What writes rows of a relation to a table that is made for it."""
    cursor = connection.cursor()
    schema = database.default_schema(cursor)
    database.create(cursor, relation, (schema, name))
    found = database.find(cursor, schema, name)
    assert found is not None
    staged = database.staged(relation, found, RowMapping(), 7)
    staged.make(cursor)
    return staged


def rows(connection: Any, table: str = "items") -> list[tuple[Any, ...]]:
    found = connection.cursor().execute(f'SELECT * FROM "{table}"').fetchall()
    return sorted(map(tuple, found), key=str)


def test_a_table_is_found_as_it_was_made(database: TableDatabase, connection: Any) -> None:
    cursor = connection.cursor()
    schema = database.default_schema(cursor)
    assert database.find(cursor, schema, "100%s") is None
    relation = SourceRelation(schema="public", table="100%s", columns=(*COLUMNS, *ODD))
    made(database, connection, relation, "100%s")
    found = database.find(cursor, schema, "100%s")
    assert found is not None
    assert [*found.columns] == [*relation.names]
    assert (found.primary, found.keys) == ({"a"}, {frozenset("a")})
    assert not found.generated
    kinds = {each.name: database.type_at(cursor, each) for each in relation.columns}
    assert found.columns == kinds


def test_a_transaction_within_another_one_is_a_savepoint(
    database: TableDatabase, connection: Any
) -> None:
    staged, cursor = made(database, connection), connection.cursor()
    with connection.transaction():
        staged.apply(cursor, [Merge(whole=[(1, "x")])])
        with pytest.raises(ZeroDivisionError), connection.transaction():
            staged.apply(cursor, [Merge(whole=[(2, "y")])])
            raise ZeroDivisionError
        staged.apply(cursor, [Merge(whole=[(3, "z")])])
        database.check_deferred(cursor)
    with pytest.raises(ZeroDivisionError), connection.transaction():
        staged.clear(cursor)
        raise ZeroDivisionError
    assert rows(connection) == [(1, "x"), (3, "z")]


@pytest.mark.parametrize("are_lines", [True, False])
def test_steps_leave_their_rows(
    database: TableDatabase, connection: Any, *, are_lines: bool
) -> None:
    """Rows are lines of COPY, as sinks have them, or values, as mirrors have them."""
    staged, cursor = made(database, connection), connection.cursor()

    def row(*values: Any) -> Any:
        if not are_lines:
            return values
        return "\t".join("\\U" if one is ABSENT else str(one) for one in values)

    def key(value: Any) -> Any:
        return str(value) if are_lines else (value,)

    null = "\\N" if are_lines else None
    steps = [
        Merge(whole=[row(1, "one"), row(2, "two"), row(3, null)]),
        Merge(gone=[key(2)], parts={(1,): [row(1, null)]}, whole=[row(3, "tre")]),
        Move(key(1), row(9, ABSENT)),
    ]
    with connection.transaction():
        staged.apply(cursor, steps)
    assert rows(connection) == [(3, "tre"), (9, "one")]
    with connection.transaction():
        staged.apply(cursor, [Clear(), Merge(whole=[row(4, "x")])])
    assert rows(connection) == [(4, "x")]


def test_equal_rows_without_a_key_are_counted(database: TableDatabase, connection: Any) -> None:
    staged, cursor = made(database, connection, BAG), connection.cursor()
    with connection.transaction():
        staged.apply(cursor, [Recount({(1, "a"): 3, (None, None): 2})])
        staged.apply(cursor, [Recount({(1, "a"): -1, (None, None): -1, (2, "b"): 1})])
    assert rows(connection) == [(1, "a"), (1, "a"), (2, "b"), (None, None)]


# A type -> a value of messages, and its text in PostgreSQL and SQLite.
VALUES = {
    "bigint": (2**60, str(2**60), str(2**60)),
    "boolean": (True, "true", "1"),
    "text": ("x\ty", "x\ty", "x\ty"),
    "numeric": ("1.50", "1.50", "1.50"),
    "bytea": ("AQI=", "\\x0102", "\x01\x02"),
    "jsonb": ({"a": [1]}, '{"a": [1]}', '{"a":[1]}'),
    "integer[]": ([1, None], "{1,NULL}", "[1,null]"),
    "date": ("0000-03-01", "0001-03-01 BC", "0000-03-01"),
    "regclass": ("pg_class", "pg_class", "pg_class"),
    "public.mood": ("odd", "odd", "odd"),
}


@pytest.mark.parametrize("kind", VALUES)
def test_values_of_messages_are_stored(database: TableDatabase, connection: Any, kind: str) -> None:
    value, *texts = VALUES[kind]
    stored = database.stored_type(connection.cursor(), kind)
    encode = database.encoder(kind, stored)
    columns = (COLUMNS[0], RelationColumn("b", stored))
    staged = made(database, connection, SourceRelation(schema="", table="t", columns=columns))
    with connection.transaction():
        staged.copy(connection.cursor(), [(1, encode(value) if encode else value), (2, None)])
    found = connection.cursor().execute("SELECT CAST(b AS text) FROM items ORDER BY a").fetchall()
    assert [one for (one,) in found] == [texts[database.mark == "?"], None]


REFUSED = {
    "a key that is there": ("INSERT INTO items VALUES (1, 'secret')", Rejected, True),
    "a check": ("INSERT INTO items VALUES (2, 'too-long-secret')", Rejected, False),
    "no such table": ("INSERT INTO absent VALUES (2, 'secret')", SettingsError, False),
    "no such column": ("UPDATE items SET absent = 'secret'", SettingsError, False),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_an_error_means(database: TableDatabase, connection: Any, what: str) -> None:
    statement, kind, is_conflict = REFUSED[what]
    cursor = connection.cursor()
    cursor.execute(
        "CREATE TABLE items (a integer PRIMARY KEY, b text CONSTRAINT short CHECK (length(b) < 9))"
    )
    cursor.execute("INSERT INTO items VALUES (1, 'x')")
    with pytest.raises(database.error) as caught, connection.transaction():
        cursor.execute(statement)
    found = database.translation(caught.value, "writing")
    assert type(found) is kind
    assert "secret" not in str(found)
    assert found.code.partition(".")[0] in ("postgres", "sqlite")
    assert pickle.loads(pickle.dumps(found)).code == found.code
    assert database.is_conflict(caught.value) is is_conflict
    assert not connection.closed
    assert rows(connection) == [(1, "x")]


def test_it_pickles_and_shows_no_secret(database: TableDatabase) -> None:
    again = pickle.loads(pickle.dumps(database))
    assert "postgres" not in repr(again).partition(" object ")[2]
    with again.transaction("reading") as cursor:
        assert again.find(cursor, again.default_schema(cursor), "absent") is None


@pytest.mark.parametrize(
    ("kind", "url"),
    [
        ("sqlite", "sqlite:////absent/target.db"),
        ("postgres", "postgresql://me:secret@127.0.0.1:1/x"),
    ],
)
def test_one_that_is_not_there_is_told(kind: str, url: str) -> None:
    with pytest.raises((SettingsError, Unavailable)) as caught:
        plugin("sinks", kind).database(url).connect("mirror")
    assert "secret" not in str(caught.value)
