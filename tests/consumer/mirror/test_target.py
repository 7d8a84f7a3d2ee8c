"""What a mirror alone promises, in any database: what is stored with rows, and when readers see it.
What sinks of tables do as well, `tests/tables/test_databases.py` has."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import psycopg
import pytest

from penstock.consumer.mirror.steps import (
    AlterColumns,
    ForgetLate,
    LoadedChunk,
    RestoreRows,
    TableRefused,
    Values,
)
from penstock.consumer.mirror.target import MirrorTarget, open_target
from penstock.consumer.mirror.target_table import TargetColumn, TargetTable
from penstock.model.errors import LeaseLost, SettingsError, Unavailable
from penstock.tables.fold import ABSENT, Clear, Merge, Move, Recount
from tests.consumer.mirror.world import execute, rows_of
from tests.servers import Database

A, B, C = (
    TargetColumn(name="a", data_type="integer"),
    TargetColumn(name="b", data_type="text"),
    TargetColumn(name="c %", data_type="numeric(6,2)"),
)
TABLE = TargetTable(
    name="t", backend="", schema="public", table="t", target="t", columns=(A, B), key=("a",),
    snapshot_id="snap-1", stream="CDC", sequence=7,
)  # fmt: skip
LIVE = replace(TABLE, state="live")
Make = Callable[[], MirrorTarget]


@pytest.fixture
def made(target: str) -> Make:
    def make() -> MirrorTarget:
        return open_target(target)

    return make


@pytest.fixture
def one(made: Make) -> Iterator[MirrorTarget]:
    """One that is open, for the table `t`."""
    found = made()
    found.open(["t"])
    yield found
    found.close()


def load(one: MirrorTarget, table: TargetTable, *rows: Values) -> TargetTable:
    """The table once readers see these rows in it."""
    one.begin(table)
    if rows:
        one.load(table, LoadedChunk(0, len(rows), 0), rows)
    live = replace(table, state="live")
    one.finish(live)
    return live


def rows(target: str, table: str = "t") -> list[tuple[str | None, ...]]:
    return sorted(tuple(value for _, value in row) for row in rows_of(target, table).elements())


def test_rows_are_seen_when_the_table_is_complete_and_chunks_count_once(
    target: str, made: Make
) -> None:
    one = made()
    assert one.open(["t"]) == []
    assert one.begin(TABLE) == []
    one.load(TABLE, LoadedChunk(0, 2, 11), [(1, "x"), (2, "y")])
    one.close()  # a crash: another process goes on
    other = made()
    assert [table.snapshot_id for table in other.open(["t"])] == ["snap-1"]
    assert other.begin(TABLE) == [LoadedChunk(0, 2, 11)]
    with pytest.raises(Exception, match="t"):
        rows(target)
    other.load(TABLE, LoadedChunk(1, 2, 12), [(2, "newer"), (3, "z")])
    other.finish(LIVE)
    assert rows(target) == [("1", "x"), ("2", "newer"), ("3", "z")]
    assert [(table.state, table.sequence) for table in other.open(["t"])] == [("live", 7)]
    other.close()


def test_rows_of_another_snapshot_are_dropped(target: str, one: MirrorTarget) -> None:
    one.begin(TABLE)
    one.load(TABLE, LoadedChunk(0, 1, 0), [(1, "of a snapshot that was lost")])
    other = replace(TABLE, snapshot_id="snap-2")
    assert one.begin(other) == []
    load(one, other, (2, "x"))
    assert rows(target) == [("2", "x")]


def test_a_table_that_gets_another_name_leaves_none_behind(target: str, one: MirrorTarget) -> None:
    load(one, TABLE, (1, "x"))
    other = replace(TABLE, target="away_t", snapshot_id="snap-2")
    assert one.begin(other) == []
    assert rows(target, "away_t") == [("1", "x")]  # until the new ones are there
    load(one, other, (2, "y"))
    assert rows(target, "away_t") == [("2", "y")]
    assert one.begin(replace(TABLE, snapshot_id="snap-3")) == []  # its name is free
    execute(target, "CREATE TABLE away_t (a int)")
    with pytest.raises(SettingsError, match="away_t that is not of a replica"):
        one.begin(other)


def test_positions_are_stored_with_the_changes_or_not_at_all(
    target: str, one: MirrorTarget
) -> None:
    def stored(*names: str) -> dict[str, int]:
        return {table.name: table.sequence for table in one.open(names)}

    stored("t", "u")
    for name in ("t", "u"):
        load(one, replace(TABLE, name=name, target=name))
    one.apply([(LIVE, [Merge(whole=[(1, "x")])])], {"CDC": 9})
    broken = [Merge(whole=[(2, "y")]), Merge(whole=[("no number", "z")])]
    with pytest.raises(SettingsError):
        one.apply([(LIVE, broken)], {"CDC": 10})
    assert stored("t", "u") == {"t": 9, "u": 9}
    assert rows(target) == [("1", "x")]
    one.apply([], {"CDC": 11})
    assert stored("u") == {"u": 11}
    one.apply([], {"CDC": 12})  # `t` is not followed: it stays where it is
    assert stored("t", "u") == {"t": 11, "u": 12}


@pytest.mark.parametrize("names", [["rowid"], ["_rowid_", "OID"], ["RowID", "_rowid_"]])
def test_columns_called_as_sqlite_calls_a_rows_number(names: list[str], file: str) -> None:
    columns = tuple(TargetColumn(name=name, data_type="integer") for name in (*names, "v"))
    one, width = open_target(file), len(columns)
    one.open(["t"])
    table = replace(TABLE, columns=columns, key=())
    live = load(one, table, *((value,) * width for value in (2, 1, None)))
    one.apply([(live, [Recount({(1,) * width: -1, (None,) * width: -1})])], {"CDC": 9})
    assert [dict(row)["v"] for row in rows_of(file, "t")] == ["2"]
    one.close()


def test_without_a_key_one_name_of_a_rows_number_is_left(file: str) -> None:
    names = ("rowid", "OID", "_rowid_", "v")
    columns = tuple(TargetColumn(name=name, data_type="integer") for name in names)
    one, table = open_target(file), replace(TABLE, columns=columns, key=())
    one.open(["t"])
    with pytest.raises(SettingsError, match=r"t has no key, and columns called.*PostgreSQL"):
        one.begin(table)
    assert one.begin(replace(table, key=("v",))) == []
    one.close()


def test_columns_that_differ_by_case(target: str, one: MirrorTarget) -> None:
    names = ("Name", "name", "NAME", "Änd", "änd")
    columns = tuple(TargetColumn(name=name, data_type="text") for name in names)
    table = replace(TABLE, columns=columns, key=("name",))
    if target.startswith("sqlite"):
        with pytest.raises(SettingsError, match=r"both columns Name and name of t.*PostgreSQL"):
            one.begin(table)
        table = replace(table, columns=columns[1:2] + columns[3:])  # others are not ASCII
    load(one, table, table.names)
    assert [dict(row) for row in rows_of(target, "t")] == [{name: name for name in table.names}]


def test_a_row_that_moves_takes_the_place_of_another(target: str, one: MirrorTarget) -> None:
    load(one, TABLE, (1, "moves"), (2, "is there"), (3, "stays"))
    one.apply([(LIVE, [Move((1,), (2, ABSENT)), Move((9,), (3, ABSENT))])], {"CDC": 10})
    assert rows(target) == [("2", "moves"), ("3", "stays")]


def test_rows_of_the_last_point_are_restored_until_they_are_forgotten(
    target: str, made: Make
) -> None:
    one, first = made(), replace(TABLE, cursor="1", last_point="1")
    one.open(["t"])
    one.begin(first)
    one.load(first, LoadedChunk(0, 2, 0), [(1, "first"), (2, "first")])
    second, third = replace(first, last_point="2"), replace(first, last_point="3")
    one.load(second, LoadedChunk(1, 1, 0), [(3, "second")], is_late=True)
    one.load(third, LoadedChunk(2, 1, 0), [(2, "third")], is_late=True)
    one.close()  # a crash
    one = made()
    assert [table.last_point for table in one.open(["t"])] == ["3"]
    assert len(one.begin(third)) == 3
    one.load(third, LoadedChunk(3, 1, 0), [(4, "third")], is_late=True)
    apart = replace(third, state="live")
    one.finish(apart)
    gone = Merge([(key,) for key in (1, 2, 3, 4)])
    one.apply(
        [(apart, [gone, Merge(whole=[(4, "old")]), RestoreRows([(1,), (2,), (3,)])])], {"CDC": 8}
    )
    assert rows(target) == [("2", "third"), ("4", "old")]
    one.apply([(apart, [Clear(), RestoreRows(None)])], {"CDC": 9})
    assert rows(target) == [("2", "third"), ("4", "third")]
    one.apply([(replace(apart, last_point="1"), [ForgetLate(), Clear()])], {"CDC": 10})
    assert rows(target) == []
    with pytest.raises(SettingsError, match="penstock_late"):
        one.apply([(apart, [RestoreRows(None)])], {"CDC": 11})
    one.close()


RAISES = """
CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF NEW.a = 2 THEN RAISE EXCEPTION 'no' USING ERRCODE = '{}'; END IF; RETURN NEW;
END $$;
"""
AT_ONCE = f"{RAISES} CREATE TRIGGER t BEFORE INSERT ON bad FOR EACH ROW EXECUTE FUNCTION f()"
AT_THE_END = (
    f"{RAISES} CREATE CONSTRAINT TRIGGER t AFTER INSERT ON bad DEFERRABLE INITIALLY DEFERRED"
    " FOR EACH ROW EXECUTE FUNCTION f()"
)
# What users have made in a target -> what becomes of the row 2 of the table `bad`.
TROUBLES = {
    "a deferred key": "CREATE TABLE refs (a int PRIMARY KEY); INSERT INTO refs VALUES (1), (3);"
    "ALTER TABLE bad ADD FOREIGN KEY (a) REFERENCES refs DEFERRABLE INITIALLY DEFERRED",
    "an index of large values": "CREATE INDEX ON bad (b)",
    "a setting at once": AT_ONCE.format("55000"),
    "a setting at the end": AT_THE_END.format("55000"),
    "what may pass, at the end": AT_THE_END.format("XX000"),
}


@pytest.mark.slow
@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_snapshot_that_a_target_refuses_is_of_its_table_whenever_the_server_says_it(
    database: Database, trouble: str
) -> None:
    one = open_target(database.url)
    one.open(["bad"])
    bad = load(one, replace(TABLE, name="bad", target="bad"), (1, "x"))
    database.execute(TROUBLES[trouble])
    large = "".join(sha256(bytes([n])).hexdigest() for n in range(200))
    again = replace(bad, snapshot_id="snap-2", state="loading")
    one.begin(again)
    one.load(again, LoadedChunk(0, 2, 0), [(2, large), (3, "y")])
    with pytest.raises(TableRefused) as caught:
        one.finish(replace(again, state="live"))
    assert caught.value.table == "bad"
    assert rows(database.url, "bad") == [("1", "x")]
    one.close()


@pytest.mark.parametrize("made", ["CREATE INDEX mine ON t (b)", "CREATE VIEW mine AS TABLE t"])
def test_a_lock_of_another_session_costs_nothing_of_what_users_made(
    database: Database, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    monkeypatch.setattr("penstock.tables.postgres_database._PATIENCE_TO_ALTER", "50ms")
    one = open_target(database.url)
    one.open(["t"])
    live = load(one, TABLE, (1, "x"))
    database.execute(made)
    work = [(replace(live, columns=(A, B, C)), [AlterColumns([C], [])])]
    again = replace(TABLE, snapshot_id="snap-2", columns=(A, B, C))
    with psycopg.connect(database.url) as other:
        other.execute("SELECT FROM t")
        with pytest.raises(Unavailable):
            one.apply(work, {})
        one.begin(again)
        one.load(again, LoadedChunk(0, 1, 0), [(2, "y", "1.00")])
        with pytest.raises(Unavailable):
            one.finish(replace(again, state="live"))
    one.finish(replace(again, state="live"))
    assert rows(database.url) == [("2", "y", "1.00")]
    assert database.execute("SELECT to_regclass('mine') IS NOT NULL") == [(True,)]
    one.close()


def test_a_number_that_the_driver_does_not_take_is_of_its_column(file: str) -> None:
    one = open_target(file)
    one.open(["t"])
    live = load(one, TABLE)
    with pytest.raises(TableRefused, match=r"column a of the row with the key a=1\d+ of public.t"):
        one.apply([(live, [Merge(whole=[(1, "x"), (10**30, "y")])])], {"CDC": 9})
    assert rows(file) == []
    one.close()


def test_a_statement_that_was_cancelled_once_is_of_no_table(database: Database) -> None:
    one = open_target(database.url)
    one.open(["t"])
    live = load(one, TABLE)
    database.execute("CREATE SEQUENCE often; " + AT_ONCE.format("57014").replace(
        "NEW.a = 2", "nextval('often') = 1").replace("ON bad", "ON t"))  # fmt: skip
    work = [(live, [Merge(whole=[(1, "x")])])]
    with pytest.raises(Unavailable):
        one.apply(work, {"CDC": 9})
    one.apply(work, {"CDC": 9})
    assert rows(database.url) == [("1", "x")]
    one.close()


def test_a_table_of_others_is_refused_and_the_last_opener_writes(
    target: str, one: MirrorTarget, made: Make
) -> None:
    other = made()
    load(one, TABLE)
    execute(target, "CREATE TABLE mine (a int)")
    with pytest.raises(SettingsError, match="a table mine that is not of a replica"):
        one.begin(replace(TABLE, name="mine", target="mine"))
    other.open(["t"])
    with pytest.raises(LeaseLost, match="another replica writes"):
        one.apply([], {"CDC": 9})
    other.apply([], {"CDC": 9})
    other.close()


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("mirror.db", "sqlite:///mirror.db"),
        ("duck://x", "known: postgres"),
        ("sqlite:///", "write"),
    ],
)
def test_a_target_that_is_none_is_an_error(url: str, hint: str) -> None:
    with pytest.raises(SettingsError, match=hint):
        open_target(url)


def test_a_file_in_a_folder_that_is_missing_is_an_error_that_says_so(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"absent/mirror\.db.*its folder must exist"):
        open_target(f"sqlite:///{tmp_path}/absent/mirror.db").open([])
