"""What a PostgreSQL destination refuses is isolated, whatever it calls it and whenever it says so:
no good row becomes a dead letter, and no table stops another."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from penstock.sinks.postgres import PostgresSink
from penstock.sinks.postgres.settings import PostgresSinkSettings
from penstock.sinks.tables import worker
from penstock.tables.sqlstates import meaning
from tests.progress import Noted
from tests.servers import Database
from tests.sinks.postgres.test_write import ITEMS, rows_of

OTHERS = ITEMS | {"table": "others", "relation_id": 16386}
TARGETS = ("CREATE TABLE items (id int PRIMARY KEY, name text)",
           "CREATE TABLE others (id int PRIMARY KEY, name text)")  # fmt: skip

Write = Callable[..., Noted]


@pytest.fixture
def write(database: Database) -> Write:
    """Makes both tables, runs `statements`, and writes batches to both, with dead letters."""

    def run(statements: list[str], *batches: Any, **options: Any) -> Noted:
        for each in (*TARGETS, *statements):
            database.execute(each)
        entries = [{"backend": "default", "tables": {"items": options, "others": {}}}]
        settings = PostgresSinkSettings(
            **{"connection": database.url, "map": entries, "commit": {"wait": "5s"}},
            workers=1, on_error="dead-letter",
        )  # fmt: skip
        noted = Noted()
        PostgresSink(settings).write(iter(batches), noted)
        return noted

    return run


def others(*texts: str, commit: int = 1, **columns: Any) -> Any:
    of = {"relation": OTHERS, "collection": "others", "relation_id": 16386}
    return rows_of(*texts, commit=commit, **of, **columns)


def stored(database: Database, table: str = "items") -> list[tuple[Any, ...]]:
    return database.execute(f"SELECT * FROM {table} ORDER BY id")


def letters(database: Database) -> list[str]:
    found = database.execute("SELECT letter FROM penstock.dead_letter ORDER BY event_id")
    return [orjson.loads(letter)["error"] for (letter,) in found]


def states(database: Database) -> dict[str, tuple[str, str]]:
    found = database.execute('SELECT "table", state, detail FROM penstock.ledger')
    return {table: (state, detail) for table, state, detail in found}


def raising(state: str, *, deferred: bool = False) -> list[str]:
    """A trigger that refuses items called bad."""
    kind = "CREATE CONSTRAINT TRIGGER judge AFTER" if deferred else "CREATE TRIGGER judge BEFORE"
    when = "DEFERRABLE INITIALLY DEFERRED" if deferred else ""
    return [
        "CREATE FUNCTION judge() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN IF NEW.name = 'bad'"
        f" THEN RAISE EXCEPTION 'no: %', NEW.name USING ERRCODE = '{state}'; END IF;"
        " RETURN NEW; END$$",
        f"{kind} INSERT OR UPDATE ON items {when} FOR EACH ROW EXECUTE FUNCTION judge()",
    ]


GOOD, BAD = ("INSERT 1 one", "INSERT 2 bad", "INSERT 3 three"), [(1, "one"), (3, "three")]


def test_a_table_at_whose_every_change_the_server_fails_waits_and_stops_no_other(
    database: Database, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "TRIES", 2)
    bad = rows_of("INSERT 1 bad", "INSERT 2 bad")
    write(raising("XX000"), bad, others("INSERT 7 x", commit=2), rows_of("INSERT 3 c", commit=3))
    assert stored(database) == []
    assert stored(database, "others") == [(7, "x")]
    assert letters(database) == []
    assert states(database)["items"][0] == "waiting"
    assert "XX000" in states(database)["items"][1]


@pytest.mark.parametrize(
    ("state", "means"),
    [
        ("08006", "passes"), ("40001", "passes"), ("40P01", "passes"), ("40002", "refused"),
        ("53100", "passes"), ("53200", "passes"), ("55P03", "passes"), ("57P01", "passes"),
        ("58030", "passes"), ("25006", "passes"), ("", "passes"), ("25P04", "recurs"),
        ("57014", "recurs"), ("XX000", "recurs"), ("53400", "recurs"), ("55006", "recurs"),
        ("42501", "setup"), ("428C9", "setup"), ("0A000", "setup"), ("55000", "setup"),
        ("54011", "setup"), ("XX001", "setup"), ("23503", "refused"), ("21000", "refused"),
        ("54000", "refused"), ("22P02", "refused"), ("P0001", "refused"), ("AB001", "refused"),
    ],
)  # fmt: skip
def test_what_an_error_means_is_decided_by_its_sqlstate(state: str, means: str) -> None:
    assert meaning(state) == means


LOWER = {"set": {"id": "lower(id)", "name": "name"}}


@pytest.mark.parametrize(
    ("kind", "one", "same", "options"),
    [
        ("text", "A", "a", LOWER),
        ("numeric(9, 1)", "1.11", "1.12", {}),
        ("timestamp(0)", "2026-11-21T10:02:03.1", "2026-11-21T10:02:03.2", {}),
    ],
)
def test_of_rows_that_have_one_key_there_the_later_wins(
    database: Database, write: Write, kind: str, one: str, same: str, options: dict[str, Any]
) -> None:
    key = {"name": "id", "type": 25, "modifier": -1, "key": True}
    relation = ITEMS | {"columns": [key, ITEMS["columns"][1]]}
    target = ["DROP TABLE items", f"CREATE TABLE items (id {kind} PRIMARY KEY, name text)"]
    changes = rows_of(
        f"INSERT {one} one", f"INSERT {same} two", f"UPDATE {same} three", relation=relation
    )
    write(target, changes, others("INSERT 7 x", commit=2), **options)
    assert letters(database) == []
    assert database.execute("SELECT name FROM items") == [("three",)]
    assert stored(database, "others") == [(7, "x")]


TIED = ["ALTER TABLE items ADD FOREIGN KEY (id) REFERENCES others DEFERRABLE INITIALLY DEFERRED"]


def test_what_is_refused_at_commit_is_found_and_the_rest_of_the_commit_lands(
    database: Database, write: Write
) -> None:
    """A child may come before its parent, in one transaction or in one commit."""
    batches = [
        rows_of("INSERT 1 child"), others("INSERT 1 parent", commit=2),
        rows_of("INSERT 66 orphan", commit=3),
        rows_of("INSERT 2 child", commit=4), others("INSERT 2 parent", commit=4, start=1),
        rows_of("UPDATE 2 grown", commit=5),
    ]  # fmt: skip
    write(TIED, others("INSERT 8 parent", commit=0), *batches)
    assert stored(database, "others") == [(1, "parent"), (2, "parent"), (8, "parent")]
    assert stored(database) == [(1, "child"), (2, "grown")]
    (letter,) = letters(database)
    assert "items_id_fkey" in letter


def test_values_go_from_row_to_row_beside_a_change_that_is_refused_at_commit(
    database: Database, write: Write
) -> None:
    unique = "ALTER TABLE items ADD UNIQUE (name) DEFERRABLE INITIALLY DEFERRED"
    batches = [
        rows_of("INSERT 1 one", "INSERT 2 two", commit=2),
        rows_of("UPDATE 1 two", "UPDATE 2 one", commit=3),
        rows_of("INSERT 77 orphan", commit=4),
        rows_of("UPDATE 1 one", "UPDATE 2 two", commit=5),
        rows_of("UPDATE 1 two", "UPDATE 2 one", commit=6),
    ]
    write([*TIED, unique], others("INSERT 1 a", "INSERT 2 b"), *batches)
    assert stored(database) == [(1, "two"), (2, "one")]
    assert len(letters(database)) == 1


def test_values_go_from_row_to_row_in_the_transaction_of_a_change_that_is_refused(
    database: Database, write: Write
) -> None:
    unique = "ALTER TABLE items ADD UNIQUE (name) DEFERRABLE INITIALLY DEFERRED"
    first = rows_of("INSERT 1 one", "INSERT 2 two", "INSERT 4 four")
    swap = rows_of("UPDATE 1 two", "INSERT 3 bad", "UPDATE 2 four", "UPDATE 4 one", commit=2)
    write([unique, *raising("AB001")], first, swap, others("INSERT 7 x", commit=3))
    assert stored(database) == [(1, "two"), (2, "four"), (4, "one")]
    assert len(letters(database)) == 1


UNIQUE = "ALTER TABLE items ADD UNIQUE (name) DEFERRABLE INITIALLY DEFERRED"


@pytest.mark.parametrize("own", ["", "ALTER TABLE items ADD mine text DEFAULT 'mine'"])
def test_rows_get_other_keys_and_one_another_s_values_beside_a_change_that_is_refused(
    database: Database, write: Write, own: str
) -> None:
    first = rows_of("INSERT 1 one", "INSERT 2 two", "INSERT 4 four")
    moved = rows_of(
        "UPDATE 1 two", "INSERT 9 bad", "UPDATE 2 four", "UPDATE 7 one", commit=2,
        before=[None, None, None, "4\tfour"],
    )  # fmt: skip
    write([UNIQUE, own or "SELECT", *raising("AB001", deferred=True)], first, moved)
    assert database.execute("SELECT id, name FROM items ORDER BY id") == [
        (1, "two"), (2, "four"), (7, "one")
    ]  # fmt: skip
    assert len(letters(database)) == 1


@pytest.mark.parametrize("own", ["", "ALTER TABLE items ADD mine text DEFAULT 'mine'"])
def test_a_row_that_was_refused_is_there_once_it_gets_another_key_and_is_good(
    database: Database, write: Write, own: str
) -> None:
    moved = rows_of("UPDATE 2 good", commit=2, before=["1\tbad"])
    write([own or "SELECT", *raising("AB001")], rows_of("INSERT 1 bad", "INSERT 5 bad"), moved)
    assert database.execute("SELECT id, name FROM items ORDER BY id") == [(2, "good")]
    assert len(letters(database)) == 2


def test_rows_that_refer_to_one_another_come_beside_a_change_that_is_refused(
    database: Database, write: Write
) -> None:
    statements = [
        "ALTER TABLE items ADD CHECK (id <> 3),"
        " ADD code text GENERATED ALWAYS AS (id::text) STORED UNIQUE",
        "ALTER TABLE items ADD FOREIGN KEY (name) REFERENCES items (code)",
    ]
    # The next transaction says that the first one is over.
    after = rows_of("INSERT 4 2", commit=2)
    write(statements, rows_of("INSERT 1 2", "INSERT 3 1", "INSERT 2 1"), after)
    assert database.execute("SELECT id, name FROM items ORDER BY id") == [
        (1, "2"), (2, "1"), (4, "2"),
    ]  # fmt: skip
    assert len(letters(database)) == 1
