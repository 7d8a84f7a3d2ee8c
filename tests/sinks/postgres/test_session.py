"""The session at the destination is what penstock needs, whatever its role and its database set."""

from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from penstock.model.errors import SettingsError
from penstock.sinks.postgres import PostgresSink
from penstock.sinks.postgres.settings import PostgresSinkSettings
from penstock.tables.postgres_database import PostgresDatabase
from penstock.tables.staging import SESSION
from tests.progress import Noted
from tests.servers import Database
from tests.sinks.postgres.test_write import rows_of

# What somebody may have set -> what the session has.
SETTINGS = {
    "statement_timeout": ("600ms", "0"),
    "transaction_timeout": ("600ms", "0"),
    "idle_in_transaction_session_timeout": ("20ms", "0"),
    "idle_session_timeout": ("5s", "0"),
    "lock_timeout": ("20ms", "1min"),
    "default_transaction_isolation": ("serializable", "read committed"),
    "default_transaction_deferrable": ("on", "off"),
    "row_security": ("on", "off"),
    "synchronous_commit": ("off", "on"),
    "search_path": ("nowhere", '"$user", public'),
    "client_encoding": ("LATIN1", "UTF8"),
    "DateStyle": ("German", "ISO, YMD"),
    "standard_conforming_strings": ("off", "on"),
    "enable_hashjoin": ("on", "off"),
    "session_replication_role": ("replica", "origin"),
    "default_transaction_read_only": ("on", "off"),  # the last, as a database has them set
}
SLOW = (
    "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
    " $$BEGIN PERFORM pg_catalog.pg_sleep(0.4); RETURN NEW; END$$",
    "CREATE TRIGGER slow BEFORE INSERT ON items FOR EACH ROW EXECUTE FUNCTION wait()",
)


@pytest.fixture
def owned(database: Database) -> Iterator[Database]:
    """The database as the role sees it that owns it and its table, and is no superuser."""
    role = f"role_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN")
    try:
        database.execute(f"ALTER DATABASE {database.name} OWNER TO {role}")
        database.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
        database.execute(f"ALTER TABLE items OWNER TO {role}")
        yield replace(database, url=database.url.replace("postgres@", f"{role}@"))
    finally:
        writable = "SET transaction_read_only = off"
        database.execute(f"{writable}; REASSIGN OWNED BY {role} TO postgres; DROP OWNED BY {role}")
        database.execute(f"{writable}; DROP ROLE {role}")


def settle(database: Database, of: str, name: str, value: str) -> None:
    """Has the role, or the database, set it."""
    who = f"ROLE role_{database.name}" if of == "role" else f"DATABASE {database.name}"
    database.execute(f"ALTER {who} SET {name} = '{value}'")


def sink_of(database: Database, **settings: Any) -> PostgresSink:
    tables = [{"backend": "default", "tables": {"items": {}}}]
    given = {"connection": database.url, "map": tables, "commit": {"wait": "20ms"}, **settings}
    return PostgresSink(PostgresSinkSettings(**given))


@pytest.mark.parametrize("of", ["role", "database"])
def test_no_setting_of_a_role_or_a_database_decides(
    database: Database, owned: Database, of: str
) -> None:
    wanted = {name: value for name, (_, value) in SETTINGS.items()}
    url = owned.url if of == "role" else database.url  # only a superuser may undo the last
    for name, (value, _) in SETTINGS.items():
        with suppress(psycopg.errors.UndefinedObject):  # an older server has not all of them
            if (of, name) != ("role", "session_replication_role"):  # see the test of its own
                # A limit may end a busy server's answer before it can be lifted.
                settle(database, of, name, "10s" if value.endswith("ms") else value)
    for owner in ("sink", "mirror"):
        if owner == "mirror":
            wanted["search_path"] = SETTINGS["search_path"][0]  # it says where tables are
        with closing(PostgresDatabase(url).connect(owner)) as connection:
            shown = "SELECT name, current_setting(name, true) FROM unnest(%s::text[]) AS s (name)"
            found = dict(connection.execute(shown, [[*SETTINGS]]).fetchall())
        assert found == {name: found[name] and wanted[name] for name in SETTINGS}


@pytest.mark.parametrize("of", ["role", "database"])
def test_a_commit_may_take_longer_than_a_role_may(
    database: Database, owned: Database, of: str
) -> None:
    for name in ("statement_timeout", "idle_in_transaction_session_timeout", "lock_timeout"):
        settle(database, of, name, SETTINGS[name][0])
    for each in SLOW:
        database.execute(each)
    sink_of(owned).write([rows_of("INSERT 1 a", "INSERT 2 b")], Noted())
    assert database.execute("SELECT * FROM items ORDER BY 1") == [(1, "a"), (2, "b")]


def test_a_role_that_is_set_to_be_a_replica_is_told_how_to_undo_it(
    database: Database, owned: Database
) -> None:
    settle(database, "role", "session_replication_role", "replica")
    with pytest.raises(SettingsError, match="RESET session_replication_role"):
        PostgresDatabase(owned.url).connect()


def test_a_lock_of_another_session_is_named(
    database: Database, owned: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SESSION, "lock_timeout", "100ms")
    noted = Noted()
    with psycopg.connect(database.url) as other:
        other.execute("LOCK TABLE items")

        def told(status: Any) -> None:
            if "55P03" in status.get("error", ""):
                other.rollback()

        noted = Noted(told)
        sink_of(owned).write([rows_of("INSERT 1 a")], noted)
    assert any("55P03" in each for each in noted.outages)
    assert database.execute("SELECT * FROM items") == [(1, "a")]


def test_a_policy_that_hides_rows_makes_its_table_wait(database: Database, owned: Database) -> None:
    sink = sink_of(owned, on_error="dead-letter")
    sink.write([rows_of("INSERT 1 a", "INSERT 2 b")], Noted())
    database.execute("ALTER TABLE items ENABLE ROW LEVEL SECURITY")
    database.execute("ALTER TABLE items FORCE ROW LEVEL SECURITY")
    database.execute("CREATE POLICY few ON items USING (id = 1)")
    sink.write([rows_of("DELETE 2", commit=2)], Noted())
    ((state, error),) = [(each["state"], each["error"]) for each in sink.tables()]
    assert state == "waiting"
    assert "42501" in error
    database.execute("ALTER TABLE items NO FORCE ROW LEVEL SECURITY")
    sink.resume_table("default", "public.items")
    sink.write([rows_of("INSERT 3 c", commit=3)], Noted())
    for load in sink.unfinished():
        load.settle("stop")
    assert database.execute("SELECT id FROM items ORDER BY 1") == [(1,), (3,)]
