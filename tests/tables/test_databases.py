"""What holds in any database of tables: of its class, in sessions of sinks and of mirrors; and of
the rows that a sink, or a mirror, keeps in it. Each rule stands here once."""

import pickle
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from penstock.model.errors import Rejected, SettingsError, Unavailable
from penstock.process.plugins import plugin
from penstock.sinks.tables import worker
from penstock.tables.database import Owner, TableDatabase
from penstock.tables.lines import RelationColumn, SourceRelation
from penstock.tables.staged import RowMapping
from tests.tables.copies import COPIES, ID, NAME, Column, Copy
from tests.tables.databases import Place, places

TABLES, SIZE = ("items", "others"), Column("size", "integer", number=3)
CopyOf = Callable[..., Copy]


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    yield from places(request, tmp_path)


@pytest.fixture(params=["sink", "mirror"])
def owner(request: pytest.FixtureRequest) -> Owner:
    found: Owner = request.param
    return found


@pytest.fixture
def copy_of(place: Place, owner: Owner) -> Iterator[CopyOf]:
    """`copy_of(*columns)`: the tables `items` and `others` with these columns, or two."""
    made: list[Copy] = []

    def make(*columns: Column, tables: tuple[str, ...] = TABLES) -> Copy:
        made.append(COPIES[owner](place, tables, columns or (ID, NAME)))
        return made[-1]

    yield make
    for each in made:
        each.close()


# Commits, one after the other.
COMMITS = {
    "rows are new": "INSERT 1 one, INSERT 2 two, INSERT 3 \\N, others: INSERT 1 x",
    "rows change and go": "UPDATE 1 uno, DELETE 2, UPDATE 3 three, UPDATE 3 tre, INSERT 4 four",
    "a row goes and comes back": "DELETE 1, INSERT 1 again, INSERT 5 five, DELETE 5",
    "a value that was not sent stays": "UPDATE 1 \\U, UPDATE 3 trois, UPDATE 3 \\U",
    "a row gets another key": "UPDATE 1 > 7 \\U, UPDATE 3 > 8 eight, UPDATE 8 ocho",
    "keys go from row to row": "UPDATE 7 > 9 a, UPDATE 8 > 7 b, UPDATE 9 > 8 c",
    "a key is used again": "UPDATE 7 > 1 d, INSERT 7 new, DELETE 4, UPDATE 7 > 4 e",
    "a table is emptied": "TRUNCATE",
    "rows come before and after that": "INSERT 1 a, TRUNCATE, INSERT 1 b, INSERT 2 c",
    "only one table is emptied": "others: TRUNCATE, others: INSERT 2 y, UPDATE 2 d",
}


def test_rows_are_those_of_the_source_after_each_commit(copy_of: CopyOf) -> None:
    copy = copy_of()
    for rule, texts in COMMITS.items():
        copy.write(*texts.split(", "))
        assert copy.is_right, rule
    assert copy.errors == []


def test_equal_rows_without_a_key_are_counted(copy_of: CopyOf) -> None:
    one, other = '1 a {"a":[1]}', "2 \\N \\N"  # some types have no equality
    copy = copy_of(
        ID._replace(is_key=False), Column("_rowid_", number=2), Column("line", "json", number=3)
    )
    copy.write(*[f"INSERT {one}"] * 4, *[f"INSERT {other}"] * 2)
    assert copy.is_right
    copy.write(f"DELETE {one}", f"UPDATE {one} > {other}", f"DELETE {other}", f"INSERT {one}")
    assert copy.is_right
    copy.write("TRUNCATE", *[f"INSERT {other}"] * 3)
    assert copy.is_right


def test_what_was_written_already_changes_nothing(copy_of: CopyOf, place: Place) -> None:
    copy = copy_of()
    copy.write("INSERT 1 one", "INSERT 2 two", "UPDATE 1 uno", "DELETE 2")
    place.execute("UPDATE items SET name = 'mine'")
    copy.again()
    assert copy.rows() == [("1", "mine")]


def test_a_row_that_is_there_is_replaced(copy_of: CopyOf, place: Place) -> None:
    copy = copy_of()
    copy.write("INSERT 9 nine")
    for n in (1, 2):
        place.execute(f"INSERT INTO items VALUES ({n}, 'mine')")
    copy.write("INSERT 1 one", "INSERT 3 three")
    assert copy.rows() == [("1", "one"), ("2", "mine"), ("3", "three"), ("9", "nine")]


def test_a_row_that_is_gone_does_not_come_back_in_part(copy_of: CopyOf, place: Place) -> None:
    copy = copy_of(ID, NAME, SIZE)
    copy.write("INSERT 1 one 1", "INSERT 2 two 2")
    place.execute("DELETE FROM items WHERE id = 1")
    copy.write("UPDATE 1 uno \\U", "UPDATE 2 due \\U")
    assert copy.rows() == [("2", "due", "2")]


GENERATED = {"postgres": "STORED", "sqlite": "VIRTUAL"}


@pytest.mark.parametrize("owner", ["sink"])
def test_columns_that_nothing_fills_are_the_users(copy_of: CopyOf, place: Place) -> None:
    copy = copy_of()
    copy.write("INSERT 1 one", "INSERT 2 two", "INSERT 3 three")
    size = f"int GENERATED ALWAYS AS (length(name)) {GENERATED[place.kind]}"
    for column in ("note text DEFAULT 'new'", f"size {size}"):
        place.execute(f"ALTER TABLE items ADD COLUMN {column}")
    place.execute("UPDATE items SET note = 'mine'")
    copy.write("UPDATE 1 uno", "UPDATE 2 > 7 \\U", "INSERT 4 four", "UPDATE 3 > 8 tree")
    found = place.execute("SELECT id, name, note, size FROM items ORDER BY id")
    assert [tuple(row) for row in found] == [
        (1, "uno", "mine", 3), (4, "four", "new", 4), (7, "two", "mine", 3), (8, "tree", "mine", 4),
    ]  # fmt: skip


ODD = ("v%s", "%%", 'a "%(x)s"', "Änd", "select", "a.b", "é" * 31)


@pytest.mark.parametrize("is_key", [True, False])
def test_names_are_any_text(copy_of: CopyOf, *, is_key: bool) -> None:
    columns = [Column(name, "text", is_key and n == 3, n) for n, name in enumerate(ODD, 1)]
    copy = copy_of(*columns, tables=("100%s",))
    before, after = "a b c d e f g", "h i c j k l m"
    copy.write(f"100%s: INSERT {before}", "100%s: INSERT 1 2 3 4 5 6 7")
    assert copy.is_right
    copy.write(f"100%s: UPDATE {after}" if is_key else f"100%s: UPDATE {before} > {after}")
    copy.write("100%s: DELETE " + ("3" if is_key else "1 2 3 4 5 6 7"))
    assert copy.is_right
    assert copy.rows("100%s") == [tuple(after.split())]


# What becomes of the columns id, name and size -> a change after that.
FOLLOWED: dict[str, tuple[list[Column], str]] = {
    "a new one": ([ID, NAME, SIZE, Column("color", number=4)], "INSERT 2 two 5 red"),
    "one with values": ([ID, NAME, SIZE, Column("n", "bigint", number=4, missing="5")],
                        "INSERT 2 two 5 7"),
    "one that goes": ([ID, NAME], "UPDATE 1 uno"),
    "a wider one": ([ID, NAME, SIZE._replace(type="bigint")], "UPDATE 1 uno 3000000000"),
    "one with another name": ([ID, NAME, SIZE._replace(name="length")], "INSERT 2 two 5"),
}  # fmt: skip


@pytest.mark.parametrize("what", FOLLOWED)
def test_a_table_that_penstock_made_follows_its_source(
    copy_of: CopyOf, place: Place, what: str
) -> None:
    copy, (columns, text) = copy_of(ID, NAME, SIZE), FOLLOWED[what]
    copy.write("INSERT 1 one 1", "INSERT 3 three \\N")
    place.execute("CREATE INDEX mine ON items (name)")
    copy.follow("items", *columns)
    copy.write(text)
    assert copy.is_right
    assert copy.errors == []
    place.execute("DROP INDEX mine")  # it is there


def trigger(state: str, *, at_the_end: bool = False) -> str:
    """Refuses items called bad."""
    kind, when = "TRIGGER judge BEFORE", ""
    if at_the_end:
        kind, when = "CONSTRAINT TRIGGER judge AFTER", "DEFERRABLE INITIALLY DEFERRED"
    return (
        "CREATE FUNCTION judge() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN IF NEW.name = 'bad'"
        f" THEN RAISE EXCEPTION 'no: %', NEW.name USING ERRCODE = '{state}'; END IF; RETURN NEW;"
        f" END$$; CREATE {kind} INSERT ON items {when} FOR EACH ROW EXECUTE FUNCTION judge()"
    )


_UNDO = "DROP TRIGGER judge ON items"
# By database: what is made there, how it goes, and what is said of the row 2, which is called bad.
REFUSALS = {
    "postgres": {
        "a check": ("ALTER TABLE items ADD CONSTRAINT good CHECK (name <> 'bad')",
                    "ALTER TABLE items DROP CONSTRAINT good", "good"),
        "another row": ("CREATE UNIQUE INDEX one ON items (left(name, 1))", "DROP INDEX one",
                        "one"),
        "a reference at the end": (
            "ALTER TABLE items ADD FOREIGN KEY (id) REFERENCES others INITIALLY DEFERRED",
            "ALTER TABLE items DROP CONSTRAINT items_id_fkey", "items_id_fkey"),
        **{
            f"{state}{' at the end' * late}": (trigger(state, at_the_end=late), _UNDO, state)
            for state in ("AB001", "55000", "XX000") for late in (False, True)  # of each meaning
        },
    },
    "sqlite": {
        "a trigger": (
            "CREATE TRIGGER judge BEFORE INSERT ON items BEGIN SELECT RAISE(ABORT, 'no')"
            " WHERE NEW.name = 'bad'; END", "DROP TRIGGER judge", "no"),
        "another row": ("CREATE UNIQUE INDEX one ON items (substr(name, 1, 1))", "DROP INDEX one",
                        "one"),
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("place", "what"), [(kind, what) for kind, some in REFUSALS.items() for what in some],
    indirect=["place"],
)  # fmt: skip
def test_what_is_refused_is_named_and_stops_nothing_else(
    copy_of: CopyOf, place: Place, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "TRIES", 2)
    made, undo, said = REFUSALS[place.kind][what]
    copy = copy_of(tables=TABLES[::-1] if "end" in what else TABLES)  # it may be the last
    copy.write("INSERT 9 before", *(f"others: INSERT {n} x" for n in (1, 3, 9)))
    place.execute(made)
    copy.write("INSERT 1 one", "INSERT 2 bad", "INSERT 3 three", "others: INSERT 7 x")
    assert len(copy.rows("others")) == 4
    (error,) = copy.errors
    assert said in error
    assert "bad" not in error
    place.execute(undo)
    copy.mend()
    assert copy.is_right


@pytest.mark.parametrize("place", ["postgres"], indirect=True)
def test_what_waits_for_the_end_of_a_commit_may_need_what_comes_later(
    copy_of: CopyOf, place: Place
) -> None:
    copy = copy_of()
    copy.write("INSERT 9 nine", "others: INSERT 9 z")
    for each in ("ADD FOREIGN KEY (id) REFERENCES others", "ADD UNIQUE (name)"):
        place.execute(f"ALTER TABLE items {each} DEFERRABLE INITIALLY DEFERRED")
    copy.write("INSERT 1 one", "INSERT 2 two", "others: INSERT 1 x", "others: INSERT 2 y")
    copy.write("UPDATE 1 two", "UPDATE 2 one")
    assert copy.is_right
    assert copy.errors == []


@pytest.fixture
def database(place: Place) -> TableDatabase:
    made: TableDatabase = plugin("sinks", place.kind).database(place.url)
    return made


@pytest.fixture
def connection(database: TableDatabase, owner: Owner) -> Iterator[Any]:
    with closing(database.connect(owner)) as found:
        yield found


COLUMNS = (RelationColumn("a", "integer", is_key=True), RelationColumn("b", "text"))


def made(
    database: TableDatabase, connection: Any, *more: RelationColumn, name: str = "items"
) -> Any:
    """What writes rows to a table that is made for them."""
    cursor = connection.cursor()
    relation = SourceRelation(schema="public", table=name, columns=(*COLUMNS, *more))
    schema = database.default_schema(cursor)
    assert database.find(cursor, schema, name) is None
    database.create(cursor, relation, (schema, name))
    found = database.find(cursor, schema, name)
    assert found is not None
    staged = database.staged(relation, found, RowMapping(), 7)
    staged.make(cursor)
    return staged


def test_a_table_is_found_as_it_was_made(database: TableDatabase, connection: Any) -> None:
    odd = [RelationColumn(name, "text") for name in ODD]
    found = made(database, connection, *odd, name="100%s").destination
    assert [*found.columns] == ["a", "b", *ODD]
    assert (found.primary, found.keys) == ({"a"}, {frozenset("a")})
    assert not found.generated
    kinds = [database.type_at(connection.cursor(), each) for each in (*COLUMNS, *odd)]
    assert [*found.columns.values()] == kinds


def test_a_transaction_within_another_one_is_a_savepoint(
    database: TableDatabase, connection: Any
) -> None:
    staged, cursor = made(database, connection), connection.cursor()

    def rows() -> list[int]:
        return [a for (a,) in cursor.execute("SELECT a FROM items ORDER BY a").fetchall()]

    with connection.transaction():
        staged.copy(cursor, [(1, "x")])
        with pytest.raises(ZeroDivisionError), connection.transaction():
            staged.copy(cursor, [(2, "y")])
            with pytest.raises(ZeroDivisionError), connection.transaction():
                staged.copy(cursor, [(3, "y")])
                raise ZeroDivisionError
            raise ZeroDivisionError
        staged.copy(cursor, [(4, "z")])
        database.check_deferred(cursor)
    with pytest.raises(ZeroDivisionError), connection.transaction():
        staged.clear(cursor)
        raise ZeroDivisionError
    assert rows() == [1, 4]
    with connection.transaction():
        assert not database.copies(cursor, staged, [(5, "x"), (1, "x")])
        assert database.copies(cursor, staged, [(6, "x")])
    assert rows() == [1, 4, 6]


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


@pytest.mark.parametrize("owner", ["mirror"])
def test_values_of_messages_are_stored(database: TableDatabase, connection: Any) -> None:
    cursor = connection.cursor()
    stored = {kind: database.stored_type(cursor, kind) for kind in VALUES}
    staged = made(database, connection, *(RelationColumn(*one) for one in stored.items()))
    encode = [database.encoder(*one) or (lambda value: value) for one in stored.items()]
    row = [one(value) for one, (value, *_) in zip(encode, VALUES.values(), strict=True)]
    with connection.transaction():
        staged.copy(cursor, [(1, "", *row), (2, *[None] * (1 + len(row)))])
    texts = ", ".join(f'CAST("{kind}" AS text)' for kind in VALUES)
    found, empty = cursor.execute(f"SELECT {texts} FROM items ORDER BY a").fetchall()
    assert [*found] == [one[1 + (database.mark == "?")] for one in VALUES.values()]
    assert {*empty} == {None}


REFUSED = {
    "INSERT INTO items VALUES (1, 'secret')": (Rejected, True),  # a key that is there
    "INSERT INTO items VALUES (2, 'too-long-secret')": (Rejected, False),
    "INSERT INTO absent VALUES (2, 'secret')": (SettingsError, False),
    "UPDATE items SET absent = 'secret'": (SettingsError, False),
}


@pytest.mark.parametrize("owner", ["sink"])
def test_what_an_error_means(database: TableDatabase, connection: Any) -> None:
    cursor = connection.cursor()
    cursor.execute(
        "CREATE TABLE items (a integer PRIMARY KEY, b text CONSTRAINT short CHECK (length(b) < 9))"
    )
    cursor.execute("INSERT INTO items VALUES (1, 'x')")
    for statement, (kind, is_conflict) in REFUSED.items():
        with pytest.raises(database.error) as caught, connection.transaction():
            cursor.execute(statement)
        found = database.translation(caught.value, "writing")
        assert type(found) is kind
        assert "secret" not in str(found)
        assert found.code.partition(".")[0] in ("postgres", "sqlite")
        assert pickle.loads(pickle.dumps(found)).code == found.code
        assert database.is_conflict(caught.value) is is_conflict
    assert not connection.closed
    assert cursor.execute("SELECT * FROM items").fetchall() == [(1, "x")]


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
def test_one_that_is_not_there_is_told(kind: str, url: str, owner: Owner) -> None:
    with pytest.raises((SettingsError, Unavailable)) as caught:
        plugin("sinks", kind).database(url).connect(owner)
    assert "secret" not in str(caught.value)
