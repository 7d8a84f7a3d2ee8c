"""A destination that is somebody's: its owner's role has limits, its tables have constraints,
triggers, policies and columns that penstock did not make. No good row becomes a dead letter, and no
table stops another."""

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import orjson
import psycopg
import pytest

from penstock.sinks.poison.dead_letter import Letter
from tests.servers import Database, Postgres
from tests.sinks.postgres.flow import Flow
from tests.sinks.postgres.test_session import SETTINGS
from tests.waiting import until

SOURCE = """
CREATE TABLE things (
    id int PRIMARY KEY, slot int NOT NULL UNIQUE DEFERRABLE INITIALLY DEFERRED,
    parent int REFERENCES things DEFERRABLE INITIALLY DEFERRED, amount int, number int, large text);
ALTER TABLE things ALTER large SET STORAGE EXTERNAL;
CREATE TABLE plain (id int PRIMARY KEY, name text);
CREATE TABLE parts (id int PRIMARY KEY, sid text, of int REFERENCES plain ON UPDATE CASCADE
                    ON DELETE CASCADE, other int REFERENCES things DEFERRABLE INITIALLY DEFERRED)
"""
TARGET = """
CREATE TABLE things (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    slot int NOT NULL UNIQUE DEFERRABLE INITIALLY DEFERRED,
    parent int REFERENCES things DEFERRABLE INITIALLY DEFERRED, amount int,
    number int GENERATED ALWAYS AS IDENTITY, large text,
    doubled int GENERATED ALWAYS AS (amount * 2) STORED, mine text DEFAULT 'mine',
    EXCLUDE USING gist (int4range(slot, slot, '[]') WITH &&) DEFERRABLE INITIALLY DEFERRED);
CREATE TABLE plain (id int PRIMARY KEY, name text UNIQUE);
CREATE TABLE parts (id int PRIMARY KEY, sid text, of int REFERENCES plain ON UPDATE CASCADE
                    ON DELETE CASCADE, other int REFERENCES things DEFERRABLE INITIALLY DEFERRED);
CREATE FUNCTION curse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
    IF NEW.id % 13 = 0 THEN RAISE EXCEPTION 'no: %', NEW.id USING ERRCODE = 'AB001'; END IF;
    RETURN NEW; END$$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE ON things
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION curse();
CREATE TRIGGER early BEFORE INSERT OR UPDATE ON plain FOR EACH ROW EXECUTE FUNCTION curse();
ALTER TABLE things ENABLE ROW LEVEL SECURITY;
CREATE POLICY none ON things USING (false)
"""
ROWS = (
    "SELECT id, slot, parent, amount, number, md5(large) FROM things WHERE id % 13 <> 0 ORDER BY id"
)
PLAIN = "SELECT * FROM plain WHERE id % 13 <> 0 ORDER BY id"
PARTS = "SELECT * FROM parts ORDER BY id"
FIRST = "INSERT INTO things SELECT g, g, NULL, g, g, 'x' FROM generate_series(1, 40) g"
TABLES: dict[str, Any] = {"things": {}, "plain": {}, "parts": {}}
# `sid` is a column of the source's, and commits are smaller than transactions.
OPTIONS: dict[str, Any] = {
    "on_error": "dead-letter", "sink": {"sid_column": "shop", "workers": 2}, "rows": 9,
}  # fmt: skip


@contextmanager
def owned(server: Postgres) -> Iterator[Database]:
    """As its owner sees it, who is no superuser."""
    with server.database() as fresh:
        role = f"owner_{fresh.name}"
        fresh.execute(f"CREATE ROLE {role} LOGIN")
        for name, (value, _) in SETTINGS.items():
            with suppress(psycopg.errors.UndefinedObject):
                if name != "session_replication_role":  # only a superuser may set it back
                    # A limit may end a busy server's answer before it can be lifted.
                    value = "10s" if value.endswith("ms") else value
                    fresh.execute(f"ALTER ROLE {role} SET {name} = '{value}'")
        fresh.execute(f"GRANT CREATE ON DATABASE {fresh.name} TO {role}")
        fresh.execute(TARGET)
        for table in TABLES:
            fresh.execute(f"ALTER TABLE {table} OWNER TO {role}")
        yield replace(fresh, url=fresh.url.replace("postgres@", f"{role}@"))
        fresh.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def statements(seed: random.Random) -> Iterator[str]:
    """Of one transaction; some fail, and the transaction with them."""
    if seed.random() < 0.1:  # rows that get other keys, which are not isolated with others
        one = seed.randrange(60)
        yield f"UPDATE things SET id = id + 130 WHERE id = {one} AND id % 13 <> 0"
        yield f"UPDATE things SET id = id - 130 WHERE id = {one + 131} AND id % 13 <> 0"
        return
    for _ in range(seed.choice([1, 2, 4, 12])):
        one, other, new = seed.randrange(60), seed.randrange(60), 1000 + seed.randrange(10**6)
        yield seed.choice([
            f"INSERT INTO things VALUES ({one}, {new}, NULL, {other}, {other}, repeat('x', 3000))"
            f" ON CONFLICT (id) DO UPDATE SET amount = {other}",
            f"UPDATE things SET amount = amount + 1 WHERE id BETWEEN {one} AND {one + 5}",
            f"UPDATE things SET number = number + 7 WHERE id = {one}",
            f"UPDATE things a SET slot = b.slot FROM things b WHERE a.id IN ({one}, {other})"
            f" AND b.id IN ({one}, {other}) AND a.id <> b.id",
            f"UPDATE things SET large = repeat('y', {new % 4000}) WHERE id = {one}",
            f"UPDATE things SET parent = {other} WHERE id = {one} AND {other} % 13 <> 0",
            f"DELETE FROM things WHERE id = {one}",
            f"INSERT INTO plain VALUES ({one}, {new}) ON CONFLICT DO NOTHING",
            f"UPDATE plain SET name = {new} WHERE id = {one}",
            f"DELETE FROM plain WHERE id = {other}",
            f"INSERT INTO parts SELECT {new}, '{one}', id, NULL FROM plain"
            f" WHERE id IN ({one}, {other}) AND id % 13 <> 0 ON CONFLICT DO NOTHING",
            f"UPDATE parts SET of = {other}, sid = {new} WHERE of = {one} AND {other} % 13 <> 0",
            f"UPDATE parts SET other = {other} WHERE of = {one} AND {other} % 13 <> 0",
            f"DELETE FROM parts WHERE of = {one}",
            f"UPDATE plain SET id = id + 130 WHERE id = {one} AND id % 13 <> 0",
        ])  # fmt: skip


def write(database: Database, made: random.Random, transactions: int) -> None:
    with psycopg.connect(database.url, autocommit=True) as source:
        for _ in range(transactions):
            with suppress(psycopg.Error), source.transaction():
                for each in statements(made):
                    source.execute(each.encode())


def come_out(flow: Flow, source: Database, admin: Database) -> None:
    """Waits until the targets have the good rows, and all tables are live."""

    def equal() -> bool:
        flow.check()
        with suppress(psycopg.errors.UndefinedTable):
            states = "SELECT DISTINCT state FROM penstock.ledger"
            return admin.execute(states) == [("live",)] and all(
                source.execute(rows) == admin.execute(rows) for rows in (ROWS, PLAIN, PARTS)
            )
        return False

    def states() -> list[Any]:
        return [
            *letters(admin),
            *(
                set(source.execute(rows)) ^ set(admin.execute(rows))
                for rows in (ROWS, PLAIN, PARTS)
            ),
            *((each["table"], each["error"]) for each in flow._sink.tables()),
            *flow.outages[-1:],
        ]

    until(equal, 120, problem=states)
    assert letters(admin) == []
    assert admin.execute("SELECT count(*) FROM things WHERE mine <> 'mine'") == [(0,)]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_good_rows_come_out_as_at_the_source(
    database: Database, postgres: Postgres, seed: int
) -> None:
    database.execute(SOURCE)
    database.execute(FIRST)
    made = random.Random(seed)
    with owned(postgres) as target:
        admin = replace(target, url=postgres.url_of(target.name))
        for _ in range(2):  # the second time all is read again
            with Flow(database, target, TABLES, **OPTIONS) as flow:
                write(database, made, 75)
                come_out(flow, database, admin)


def letters(database: Database) -> list[tuple[str, str]]:
    """Keys and errors of good rows."""
    stored = database.execute("SELECT letter FROM penstock.dead_letter ORDER BY id")
    found = [Letter.parse(letter.encode()) for (letter,) in stored]
    assert found, "the rows that the triggers refuse are none"
    keys = [orjson.loads(each.raw)["key"] for each in found]
    return [
        (key, f"{one.collection}: {one.error}") for key, one in zip(keys, found, strict=True)
        if one.collection == "parts" or int(key) % 13
    ]  # fmt: skip
