"""Names of penstock's that the user has: rows are right, or the table waits and says what to do."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.model.errors import SettingsError
from penstock.sinks.postgres.settings import PostgresSinkSettings
from penstock.sinks.sqlite import SqliteSinkSettings
from tests.servers import Database, Postgres
from tests.sinks.postgres.flow import Flow
from tests.waiting import until

STATE = 'SELECT state, detail FROM penstock.ledger ORDER BY "table"'


@pytest.fixture
def target(postgres: Postgres) -> Iterator[Database]:
    with postgres.database() as fresh:
        yield fresh


def waits_for(flow: Flow, target: Database, *said: str) -> None:
    """Until each table, by its name, waits, and says so."""

    def do() -> bool:
        flow.check()
        found = target.execute(STATE)
        return len(found) == len(said) and all(
            state == "waiting" and one in text
            for (state, text), one in zip(found, said, strict=True)
        )

    until(do, 60, problem=lambda: target.execute(STATE))


def equal(flow: Flow, source: Database, target: Database, columns: str = "*") -> None:
    """Until the target has the source's rows."""
    rows = f"SELECT {columns} FROM calls ORDER BY id"
    until(lambda: flow.check() or target.execute(rows) == source.execute(rows), 60,
          problem=lambda: (target.execute(rows), source.execute(rows)))  # fmt: skip


def checked(flow: Flow, code: str = "tables.name-taken") -> list[str]:
    """What `check` says of the names of tables."""
    return [each.level for each in flow.findings() if each.code == code]


CALLS = "CREATE TABLE calls (id int PRIMARY KEY, sid text, v text)"
SID_IS_LOST = "the source's own column sid would be lost"


# A table -> what the map says, and the target that is there.
WITH_SID: dict[str, tuple[dict[str, Any], str]] = {
    "created": ({"create": True}, ""),
    "history": ({"create": True, "type": "history"}, ""),
    "made": ({}, "(id int PRIMARY KEY, v text); COMMENT ON TABLE made IS 'made by penstock'"),
    "shared": ({}, "(id int, sid text, v text, PRIMARY KEY (id, sid))"),
}


def test_a_column_sid_of_the_source_is_never_overwritten(
    database: Database, target: Database
) -> None:
    for name, (_, made) in WITH_SID.items():
        database.execute(CALLS.replace("calls", name))
        database.execute(f"INSERT INTO {name} VALUES (1, 'CA1', 'a'), (2, 'CA2', 'b')")
        if made:
            target.execute(f"CREATE TABLE {name} {made}")
    flow = Flow(database, target, {name: options for name, (options, _) in WITH_SID.items()})
    assert checked(flow) == ["error"] * 4
    with flow:
        waits_for(flow, target, *[SID_IS_LOST] * 4)
        for name in WITH_SID:
            there = target.execute("SELECT to_regclass(%s) IS NOT NULL", [name])
            assert not there[0][0] or target.execute(f"SELECT FROM {name}") == []


@pytest.mark.parametrize("options", [{"create": True}, {"create": True, "type": "append"}])
def test_with_another_name_for_ours_it_comes_as_it_is(
    database: Database, target: Database, options: dict[str, Any]
) -> None:
    database.execute(f"{CALLS}; INSERT INTO calls VALUES (1, 'CA1', 'a'), (2, 'CA2', 'b')")
    with Flow(database, target, {"calls": options}, sink={"sid_column": "source"}) as flow:
        assert checked(flow) == []
        flow.loaded()
        database.execute(
            "INSERT INTO calls VALUES (3, 'CA3', 'c'); UPDATE calls SET v = 'd', sid = 'x'"
        )
        equal(flow, database, target)


@pytest.mark.parametrize("kind", ["clone", "append", "history"])
def test_ours_has_the_name_that_the_map_says(
    database: Database, target: Database, kind: str
) -> None:
    database.execute(f"{CALLS}; INSERT INTO calls VALUES (1, 'CA1', 'a'), (2, 'CA2', 'b')")
    if kind != "history":
        target.execute(
            "CREATE TABLE calls (shop text, id int, sid text, v text, PRIMARY KEY (shop, id));"
            "INSERT INTO calls VALUES ('other', 1, 'x', 'y')"
        )
    options = {"type": kind, "create": kind == "history"}
    with Flow(database, target, {"calls": options}, sink={"sid_column": "shop"}) as flow:
        flow.loaded()
        database.execute(
            "UPDATE calls SET v = repeat(md5(v), 900), sid = 'n' WHERE id = 1; UPDATE calls SET id"
            " = 4 WHERE id = 2; INSERT INTO calls VALUES (3, 'CA3', 'c'); UPDATE calls SET id = 5"
            " WHERE id = 1; DELETE FROM calls WHERE id = 3"
        )
        now = {
            "clone": "WHERE shop <> 'other'", "append": "WHERE shop <> 'other'",
            "history": "WHERE kvsz_end = '9999-01-01Z'",
        }[kind]  # fmt: skip
        rows = f"SELECT id, sid, v FROM calls {now} ORDER BY id"
        wanted = database.execute("SELECT id, sid, v FROM calls ORDER BY id")
        if kind == "append":
            wanted.insert(0, (3, "CA3", "c"))
        until(lambda: flow.check() or target.execute(rows) == wanted, 60,
              problem=lambda: (target.execute(rows), wanted))  # fmt: skip
        assert target.execute(f"SELECT DISTINCT shop FROM calls {now}") == [(flow.slot,)]
        database.execute("TRUNCATE calls")
        if kind == "clone":
            other = [("other", 1, "x", "y")]
            until(lambda: flow.check() or target.execute("SELECT * FROM calls") == other, 60)


def test_in_a_file_the_same_holds(database: Database, tmp_path: Path) -> None:
    database.execute(f"{CALLS}; INSERT INTO calls VALUES (1, 'CA1', 'a')")
    file = tmp_path / "target.db"

    def rows() -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(file)) as connection:
            return connection.execute("SELECT * FROM calls ORDER BY id").fetchall()

    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE calls (id int, sid text, v text, PRIMARY KEY (id, sid))")
    flow = Flow(database, file, {"calls": None})
    assert checked(flow) == ["error"]
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript(
            "DROP TABLE calls; CREATE TABLE calls (shop text, id int, sid text, v text,"
            " PRIMARY KEY (shop, id)); CREATE TABLE penstock_rows_1 (id); INSERT INTO"
            " penstock_rows_1 VALUES (7)"
        )
    with Flow(database, file, {"calls": None}, sink={"sid_column": "shop"}) as flow:
        assert checked(flow) == []
        flow.loaded()
        database.execute("UPDATE calls SET sid = 'x'; INSERT INTO calls VALUES (2, 'y', 'b')")
        wanted = [(flow.slot, 1, "x", "a"), (flow.slot, 2, "y", "b")]
        until(lambda: flow.check() or rows() == wanted, 60, problem=rows)
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT * FROM penstock_rows_1").fetchall() == [(7,)]


def test_set_says_what_becomes_of_a_column_called_sid(database: Database, target: Database) -> None:
    database.execute(f"{CALLS}; INSERT INTO calls VALUES (1, 'CA1', 'a')")
    target.execute("CREATE TABLE calls (id int PRIMARY KEY, sid text)")
    tables = {"calls": {"set": {"id": "id", "sid": "lower(sid)"}}}
    with Flow(database, target, tables) as flow:
        assert checked(flow) == []
        flow.loaded()
        database.execute("INSERT INTO calls VALUES (2, 'CA2', 'b')")
        rows = "SELECT * FROM calls ORDER BY id"
        until(lambda: flow.check() or target.execute(rows) == [(1, "ca1"), (2, "ca2")], 60)


def test_the_source_s_own_may_be_left_out(database: Database, target: Database) -> None:
    database.execute(f"{CALLS}; INSERT INTO calls VALUES (1, 'CA1', 'a')")
    target.execute("CREATE TABLE calls (sid text, id int, v text, PRIMARY KEY (sid, id))")
    with Flow(database, target, {"calls": {"columns": ["id", "v"]}}) as flow:
        assert checked(flow) == []
        flow.loaded()
        database.execute("UPDATE calls SET v = 'b', sid = 'CA9'")
        rows = "SELECT * FROM calls"
        until(lambda: flow.check() or target.execute(rows) == [(flow.slot, 1, "b")], 60)


def test_a_column_sid_that_comes_later_makes_the_table_wait(
    database: Database, target: Database
) -> None:
    database.execute("CREATE TABLE calls (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO calls VALUES (1, 'a')")
    with Flow(database, target, {"calls": {"create": True}}) as flow:
        flow.loaded()
        database.execute("ALTER TABLE calls ADD sid text; INSERT INTO calls VALUES (2, 'b', 'x')")
        waits_for(flow, target, SID_IS_LOST)
        assert target.execute("SELECT * FROM calls") == [(1, "a")]


# A column of the source -> what the map says.
TAKEN: dict[str, dict[str, Any]] = {
    "kvsz_end timestamptz": {"type": "history", "create": True},
    "_operation text": {"filter": "id > 0"},
    "_sid int": {"set": {"id": "id", "v": "_sid"}},
    "_committed_at date": {"set": {"id": "id", "v": "'x'"}},
    "__at text, __time text": {"type": "history", "create": True},
    "__old_0 text": {"type": "history", "create": True},
}


def test_other_names_of_ours_are_refused_with_the_way_out(
    database: Database, target: Database
) -> None:
    for number, (columns, options) in enumerate(TAKEN.items()):
        database.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, v text, {columns})")
        database.execute(f"INSERT INTO t{number} (id) VALUES (1)")
        if not options.get("create"):
            target.execute(f"CREATE TABLE t{number} (id int PRIMARY KEY, v text)")
    tables = {f"t{number}": options for number, options in enumerate(TAKEN.values())}
    with Flow(database, target, tables) as flow:
        assert checked(flow) == ["error"] * len(tables)
        waits_for(flow, target, *(columns.split(maxsplit=1)[0] for columns in TAKEN))


def test_these_names_are_the_user_s_where_nothing_of_ours_has_them(
    database: Database, target: Database
) -> None:
    columns = "_sid int, _operation text, __at text, _place int"
    database.execute(f"CREATE TABLE calls (id int PRIMARY KEY, {columns})")
    database.execute("INSERT INTO calls (id) VALUES (1)")
    with Flow(database, target, {"calls": {"create": True}}) as flow:
        assert checked(flow) == []
        flow.loaded()
        equal(flow, database, target)


def test_a_user_s_tables_called_as_temporary_ones_stay_as_they_are(
    database: Database, target: Database
) -> None:
    """Also where the role looks for tables in its temporary ones last."""
    role = f"{target.name}_last"
    target.execute(
        f"CREATE ROLE {role} LOGIN SUPERUSER; ALTER ROLE {role} SET search_path = public, pg_temp"
    )
    try:
        names = [f"penstock_{kind}_{number}" for kind in ("rows", "keys") for number in range(4)]
        for name in names:
            target.execute(
                f"CREATE TABLE {name} (id int, v text); INSERT INTO {name} VALUES (7, 'mine')"
            )
        database.execute("CREATE TABLE calls (id int PRIMARY KEY, v text)")
        database.execute("INSERT INTO calls VALUES (1, 'a')")
        url = target.url.replace("postgres@", f"{role}@")
        own = Database(name=target.name, url=url)
        with Flow(database, own, {"calls": {"create": True}}) as flow:
            flow.loaded()
            database.execute("UPDATE calls SET v = 'b'; INSERT INTO calls VALUES (2, 'c')")
            database.execute("DELETE FROM calls WHERE id = 1")
            equal(flow, database, target)
        assert {(7, "mine")} == {
            row for name in names for row in target.execute(f"SELECT * FROM {name}")
        }
    finally:
        target.execute(
            f"REASSIGN OWNED BY {role} TO postgres; DROP OWNED BY {role}; DROP ROLE {role}"
        )


@pytest.mark.parametrize("table", ["ledger", "held", "dead_letter"])
def test_a_schema_of_the_user_s_that_is_called_as_ours_stays_as_it_is(
    database: Database, target: Database, table: str
) -> None:
    database.execute("CREATE TABLE calls (id int PRIMARY KEY); INSERT INTO calls VALUES (1)")
    target.execute(
        f"CREATE SCHEMA penstock; CREATE TABLE penstock.{table} (pipe int);"
        f"CREATE TABLE penstock.other (pipe int); INSERT INTO penstock.{table} VALUES (4)"
    )
    refused = Flow(database, target, {"calls": {"create": True}})
    assert "tables.ledger-taken" in {each.code for each in refused.findings(is_whole=True)}
    with pytest.raises(SettingsError), refused:
        pass
    assert target.execute(f"SELECT * FROM penstock.{table}") == [(4,)]
    there = "SELECT count(*) FROM pg_tables WHERE schemaname = 'penstock'"
    assert target.execute(there) == [(2,)]
    target.execute(f"ALTER TABLE penstock.{table} RENAME TO mine")
    with Flow(database, target, {"calls": {"create": True}}) as flow:
        assert "tables.ledger-taken" not in {each.code for each in flow.findings(is_whole=True)}
        flow.loaded()
    assert target.execute("SELECT * FROM penstock.mine") == [(4,)]


def test_a_table_of_the_ledger_is_no_target(tmp_path: Path) -> None:
    entry = [{"backend": "b", "tables": {"items": {"target": "own.held"}}}]
    with pytest.raises(ValidationError, match="a table of the ledger"):
        PostgresSinkSettings(connection="postgresql://h/d", ledger="own", map=entry)
    PostgresSinkSettings(connection="postgresql://h/d", map=entry)
    entry = [{"backend": "b", "tables": {"items": {"target": "penstock_held"}}}]
    with pytest.raises(ValidationError, match="a table of the ledger"):
        SqliteSinkSettings(file=tmp_path / "f", map=entry)


def test_two_columns_of_ours_have_two_names() -> None:
    for more in ({"history": {"start": "a", "end": "a"}}, {"sid_column": "kvsz_end"}):
        with pytest.raises(ValidationError, match="name"):
            PostgresSinkSettings(connection="postgresql://h/d", map=[{"backend": "b"}], **more)
