"""Rows and changes of a source come into its target, without Spark."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock.sinks.tables.load import LedgerLoad
from penstock.snapshots import loading
from penstock.tables.postgres_database import PostgresDatabase
from tests.servers import Database, Postgres
from tests.sinks.postgres.flow import Flow
from tests.waiting import until


@pytest.fixture
def target(postgres: Postgres) -> Iterator[Database]:
    with postgres.database() as fresh:
        yield fresh


def wait_for_slot(database: Database, slot: str) -> None:
    """Until nobody reads it."""
    free = "SELECT NOT active FROM pg_replication_slots WHERE slot_name = %s"
    until(lambda: database.execute(free, (slot,)) == [(True,)], 60)


def test_a_history_goes_on_with_a_transaction_that_begins_with_a_truncate(
    database: Database, target: Database
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    database.execute("INSERT INTO items VALUES (1, 'a'), (2, 'b')")
    tables = {"items": {"type": "history", "create": True}}
    with Flow(database, target, tables) as flow:
        flow.loaded()
    wait_for_slot(database, flow.slot)
    database.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (flow.slot,))
    with Flow(database, target, tables) as flow:
        database.execute("TRUNCATE items; INSERT INTO items VALUES (1, 'c')")
        found = (
            "SELECT id, name, kvsz_end = '9999-01-01Z', kvsz_deleted FROM items"
            " ORDER BY id, kvsz_start"
        )
        wanted = [(1, "a", False, False), (1, "c", True, False), (2, "b", False, True)]
        until(lambda: flow.check() or target.execute(found) == wanted, 60,
              problem=lambda: target.execute(found))  # fmt: skip


def test_a_pipeline_goes_on_where_a_subscription_was(database: Database, target: Database) -> None:
    for each in (database, target):
        each.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    slot = f"sub_{database.name}"
    database.execute("CREATE PUBLICATION pub FOR TABLE items")
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
    target.execute(
        f"CREATE SUBSCRIPTION {slot} CONNECTION '{database.url}' PUBLICATION pub"
        " WITH (create_slot = false, copy_data = false)"
    )
    database.execute("INSERT INTO items VALUES (1, 'a'), (2, 'b')")
    count = "SELECT count(*) FROM items"
    until(lambda: target.execute(count) == [(2,)], 60)
    for statement in ("DISABLE", "SET (slot_name = NONE)"):
        target.execute(f"ALTER SUBSCRIPTION {slot} {statement}")
    target.execute(f"DROP SUBSCRIPTION {slot}")
    database.execute("UPDATE items SET name = 'c' WHERE id = 1; DELETE FROM items WHERE id = 2")
    wait_for_slot(database, slot)
    with Flow(
        database, target, {"items": None}, initial=False, slot=slot, publication="pub"
    ) as flow:
        rows = "SELECT * FROM items"
        until(lambda: flow.check() or target.execute(rows) == [(1, "c")], 60,
              problem=lambda: target.execute(rows))  # fmt: skip


def test_a_full_disk_of_the_destination_pauses_and_loses_nothing(
    database: Database, target: Database
) -> None:
    """The error of a full disk, 53100, raised by a trigger."""
    for each in (database, target):
        each.execute("CREATE TABLE items (id int PRIMARY KEY, name text)")
    target.execute(
        "CREATE TABLE disk AS SELECT true AS is_full;"
        "CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        " IF (SELECT is_full FROM disk) THEN"
        " RAISE 'could not extend file' USING ERRCODE = '53100'; END IF; RETURN NEW; END $$;"
        "CREATE TRIGGER fill BEFORE INSERT ON items FOR EACH ROW EXECUTE FUNCTION fill()"
    )
    database.execute("INSERT INTO items SELECT n, 'a' FROM generate_series(1, 100) n")
    rows = "SELECT * FROM items ORDER BY id"
    with Flow(database, target, {"items": None}) as flow:
        until(lambda: target.execute("SELECT to_regclass('penstock.loading')") != [(None,)], 60)
        until(lambda: target.execute("SELECT count(*) FROM penstock.loading") == [(1,)], 60)
        target.execute("UPDATE disk SET is_full = false")
        flow.loaded()
        target.execute("UPDATE disk SET is_full = true")
        database.execute("INSERT INTO items VALUES (101, 'b'); UPDATE items SET name = 'c'")
        until(lambda: flow.check() or any("53100" in each for each in flow.outages), 60)
        database.execute("DELETE FROM items WHERE id < 50; INSERT INTO items VALUES (1, 'd')")
        assert target.execute("SELECT DISTINCT name FROM items") == [("a",)]
        target.execute("UPDATE disk SET is_full = false")
        until(lambda: flow.check() or target.execute(rows) == database.execute(rows), 60)
        assert target.execute("SELECT state FROM penstock.ledger") == [("live",)]
        assert target.execute("SELECT count(*) FROM penstock.dead_letter") == [(0,)]


@pytest.fixture
def tiny_disk(postgres: Postgres) -> Iterator[Path]:
    """A disk of 96 MiB, whose folder `space` is a tablespace of the name `tiny`."""
    disk, owner = postgres.folder / "disk", postgres.data.stat()
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=96m", "none", str(disk)]
    if subprocess.run(command, check=False).returncode:
        disk.rmdir()
        pytest.skip("a mount is not permitted here")
    try:
        (disk / "space").mkdir()
        os.chown(disk / "space", owner.st_uid, owner.st_gid)
        postgres.execute(f"CREATE TABLESPACE tiny LOCATION '{disk}/space'")
        yield disk
        postgres.execute("DROP TABLESPACE tiny")
    finally:
        subprocess.run(["umount", disk], check=True)
        disk.rmdir()


def test_a_disk_that_is_full_makes_the_sink_wait_until_there_is_room(
    database: Database, postgres: Postgres, tiny_disk: Path
) -> None:
    def fill() -> None:
        with suppress(OSError), (tiny_disk / "ballast").open("wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(65536))

    def is_equal() -> bool:
        flow.check()
        counts = "SELECT id, md5(note), count(*) FROM {} GROUP BY 1, 2 ORDER BY 1, 2"
        return all(
            target.execute(counts.format(table)) == database.execute(counts.format(table))
            for table in ("items", "log")
        )

    def waits_for_room(before: int) -> bool:
        why = "No space left on device (53100)"
        return any(why in each for each in flow.outages[before:])

    insert = "INSERT INTO {} SELECT n, repeat(md5(n::text), 40) FROM generate_series(%s::int, %s) n"
    with postgres.database(options="TABLESPACE tiny") as target:
        for each in (database, target):
            each.execute("CREATE TABLE items (id int PRIMARY KEY, note text); "
                         "CREATE TABLE log (id int, note text)")  # fmt: skip
        database.execute("ALTER TABLE log REPLICA IDENTITY FULL")
        with Flow(database, target, {"items": None, "log": None}) as flow:
            flow.loaded()
            for first in (1, 1001):
                fill()
                for table in ("items", "log"):
                    database.execute(insert.format(table), [first, first + 999])
                before = len(flow.outages)
                until(lambda: flow.check() or waits_for_room(before), 60)  # noqa: B023
                database.execute("DELETE FROM log WHERE id % 3 = 0; UPDATE items SET id = -id")
                (tiny_disk / "ballast").unlink()
                until(is_equal, 60, problem=lambda: flow.outages[-1])
            assert target.execute("SELECT DISTINCT state FROM penstock.ledger") == [("live",)]
            assert target.execute("SELECT count(*) FROM penstock.dead_letter") == [(0,)]


@pytest.mark.parametrize(
    ("create", "options", "named"),
    [
        ("", {"create": True}, ""),
        ("CREATE TABLE marks (sid text)", {}, "sid"),
        ("CREATE TABLE marks (note text)", {"set": {"note": "_sid"}}, "note"),
    ],
)
def test_a_table_without_columns_is_loaded_and_followed(
    database: Database, target: Database, create: str, options: dict[str, Any], named: str
) -> None:
    database.execute("CREATE TABLE marks (); ALTER TABLE marks REPLICA IDENTITY FULL")
    for _ in range(3):
        database.execute("INSERT INTO marks DEFAULT VALUES")
    target.execute(create)
    count = f"SELECT count(*) FROM marks WHERE {named or 'null::text'} IS NOT DISTINCT FROM %s"

    def has(rows: int) -> bool:
        flow.check()
        return target.execute(count, [flow.slot if named else None]) == [(rows,)]

    with Flow(database, target, {"marks": options}) as flow:
        flow.loaded()
        assert has(3)
        database.execute("INSERT INTO marks DEFAULT VALUES; INSERT INTO marks DEFAULT VALUES")
        until(lambda: has(5), 60)
        database.execute("DELETE FROM marks WHERE ctid IN (SELECT ctid FROM marks LIMIT 2)")
        until(lambda: has(3), 60)
        if options.get("create"):
            database.execute("ALTER TABLE marks ADD n int; INSERT INTO marks VALUES (7)")
            until(
                lambda: has(4), 60, problem=lambda: target.execute("SELECT * FROM penstock.ledger")
            )
            assert target.execute("SELECT n FROM marks WHERE n IS NOT NULL") == [(7,)]
        database.execute("TRUNCATE marks")
        until(lambda: has(0), 60)
        assert target.execute("SELECT state FROM penstock.ledger") == [("live",)]


def test_a_table_without_a_replica_identity_waits_and_joins_by_itself(
    database: Database, target: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server would refuse what the source's application does with it."""
    monkeypatch.setattr("penstock.feeds.postgres.watch._KEEPING", 0.5)
    for each in (database, target):
        each.execute(
            "CREATE TABLE bare (id int, note text); CREATE TABLE base (id int PRIMARY KEY)"
        )
    database.execute("CREATE TABLE heir (more int) INHERITS (base); INSERT INTO heir VALUES (1, 1)")
    database.execute("INSERT INTO bare VALUES (1, 'a'); INSERT INTO base VALUES (2)")
    count, bare = "SELECT id FROM base", "SELECT * FROM bare ORDER BY id"
    state = """SELECT state, detail FROM penstock.ledger WHERE "table" = 'bare'"""
    with Flow(database, target, {"bare": None, "base": None}) as flow:

        def waits() -> bool:
            flow.check()
            ((state_now, error),) = target.execute(state)
            return state_now == "waiting" and "no replica identity" in error

        until(lambda: target.execute(count) == [(2,)], 60)
        until(waits, 60, problem=lambda: target.execute(state))
        database.execute("UPDATE bare SET note = 'b'; UPDATE heir SET more = 2")
        database.execute("ALTER TABLE bare REPLICA IDENTITY FULL")
        flow.loaded()
        database.execute("UPDATE bare SET note = 'c'; INSERT INTO bare VALUES (2, 'd')")
        until(lambda: flow.check() or target.execute(bare) == [(1, "c"), (2, "d")], 60,
              problem=lambda: target.execute(bare))  # fmt: skip


def test_a_live_table_that_loses_its_replica_identity_waits_and_is_loaded_anew(
    database: Database, target: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What its application does meanwhile is in no log that is read."""
    monkeypatch.setattr("penstock.feeds.postgres.watch._KEEPING", 0.3)
    monkeypatch.setattr("penstock.snapshots.catalogues._EVERY", 0.3)
    monkeypatch.setattr("penstock.snapshots.loading._AGAIN", 0.3)
    monkeypatch.setattr("penstock.snapshots.loading._PATIENCE", 0.0)
    for each in (database, target):
        each.execute("CREATE TABLE items (id int PRIMARY KEY, note text)")
    database.execute("INSERT INTO items VALUES (1, 'a'), (2, 'b')")
    rows, state = "SELECT * FROM items ORDER BY id", "SELECT state, detail FROM penstock.ledger"
    with Flow(database, target, {"items": None}) as flow:
        flow.loaded()
        database.execute("ALTER TABLE items DROP CONSTRAINT items_pkey")

        def waits() -> bool:
            flow.check()
            ((now, detail),) = target.execute(state)
            return now == "waiting" and "no replica identity" in detail

        until(waits, 60, problem=lambda: target.execute(state))
        database.execute("UPDATE items SET note = 'c' WHERE id = 1; DELETE FROM items WHERE id = 2")
        database.execute("ALTER TABLE items ADD PRIMARY KEY (id)")
        until(lambda: flow.check() or target.execute(rows) == [(1, "c")], 60,
              problem=lambda: (target.execute(rows), target.execute(state)))  # fmt: skip
        flow.loaded()
        database.execute("INSERT INTO items VALUES (3, 'd')")
        until(lambda: flow.check() or target.execute(rows) == [(1, "c"), (3, "d")], 60)


class Looked(Flow):
    """Counts how often the loader has looked at its tables."""

    looks = 0

    def wait(self, seconds: float) -> None:
        self.looks += 1
        super().wait(seconds)


def test_a_table_that_is_suspended_by_hand_stays_so_until_it_is_resumed(
    database: Database, target: Database
) -> None:
    tables = {name: {"create": True} for name in ("items", "others")}
    for table in tables:
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY)")
    with Looked(database, target, tables) as flow:
        flow.loaded()
        flow._sink.suspend_table("shop", "public.items")
        for number in range(1, 4):
            for table in tables:
                database.execute(f"INSERT INTO {table} VALUES ({number})")
            until(lambda n=number: target.execute("SELECT max(id) FROM others") == [(n,)], 60)
            seen = flow.looks
            until(lambda seen=seen: flow.looks > seen + 2, 60)
        states = {each["table"]: each["state"] for each in flow._sink.tables()}
        assert states == {"public.items": "suspended", "public.others": "live"}
        assert target.execute("SELECT count(*) FROM items") == [(0,)]
        flow._sink.resume_table("shop", "public.items")
        flow.loaded()
        until(lambda: target.execute("SELECT count(*) FROM items") == [(3,)], 60)


@pytest.mark.parametrize("step", ["finish", "settle"])
def test_a_table_that_is_suspended_while_it_is_loaded_stays_so(
    database: Database, target: Database, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    database.execute("INSERT INTO items VALUES (1)")
    with Looked(database, target, {"items": {"create": True}}) as flow:
        real = getattr(LedgerLoad, step)

        def suspended(*values: Any, **named: Any) -> Any:
            monkeypatch.setattr(LedgerLoad, step, real)
            flow._sink.suspend_table("shop", "public.items")
            return real(*values, **named)

        monkeypatch.setattr(LedgerLoad, step, suspended)
        until(lambda: dict(flow.states()).keys() == {"suspended"}, 60, problem=flow.states)
        seen = flow.looks
        until(lambda: flow.looks > seen + 8, 60)
        assert dict(flow.states()).keys() == {"suspended"}
        flow.resume("items")
        flow.loaded()
        assert target.execute("SELECT id FROM items") == [(1,)]


def test_looking_for_tables_to_load_takes_one_connection_that_stays_open(
    database: Database, target: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_PATIENCE", 0.0)  # what is saved is compared from the beginning
    database.execute("CREATE TABLE items (id int PRIMARY KEY)")
    with Looked(database, target, {"items": {"create": True}}) as flow:
        flow.loaded()
        begun, connected, real = flow.looks, list[Any](), PostgresDatabase.connect

        def connect(self: PostgresDatabase, *owner: Any) -> Any:
            connected.append(owner)
            return real(self, *owner)

        until(lambda: flow.looks > begun + 1, 60)
        monkeypatch.setattr(PostgresDatabase, "connect", connect)
        seen = flow.looks
        until(lambda: flow.looks > seen + 4, 60)
        assert connected == []
        target.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname ="
            " current_database() AND application_name = 'penstock sink' AND state = 'idle'"
        )
        flow.reload("items")
        flow.loaded()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.snapshots.loading._AGAIN", 0.05)
    monkeypatch.setattr("penstock.snapshots.loading._LOOK", 0.05)
    monkeypatch.setattr("penstock.snapshots.loading.TRIES", 2)
    monkeypatch.setattr("penstock.snapshots.reading._TRIES", 1)


FAILS = """
CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN
    IF NEW.{} THEN RAISE 'no' USING ERRCODE = '{}'; END IF; RETURN NEW; END$$;
CREATE TRIGGER fail BEFORE INSERT OR UPDATE ON items FOR EACH ROW EXECUTE FUNCTION fail();
"""


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("state", "options"),
    [("XX000", {}), ("57014", {"existing": "keep"}), ("53400", {"set": {"id": "id", "v": "v"}})],
)
def test_a_row_at_which_the_server_fails_again_and_again_in_a_load_is_a_dead_letter(
    database: Database, target: Database, state: str, options: dict[str, Any]
) -> None:
    for each in (database, target):
        each.execute("CREATE TABLE items (id int PRIMARY KEY, v text)")
    target.execute(FAILS.format("v = 'bad'", state))
    database.execute(
        "INSERT INTO items SELECT n, CASE n WHEN 70 THEN 'bad' ELSE 'v' END"
        " FROM generate_series(1, 100) n"
    )
    with Flow(database, target, {"items": options}, on_error="dead-letter") as flow:
        flow.loaded()
        assert target.execute("SELECT count(*) FROM items WHERE id <> 70") == [(99,)]
        ((letter,),) = target.execute("SELECT letter FROM penstock.dead_letter")
        assert state in letter


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("on_error", ["dead-letter", "suspend"])
def test_a_table_at_whose_every_row_the_server_fails_waits_and_goes_on(
    database: Database, target: Database, on_error: str
) -> None:
    for each in (database, target):
        each.execute("CREATE TABLE items (id int PRIMARY KEY, v text)")
    target.execute(FAILS.format("id > 0", "XX000"))
    database.execute("INSERT INTO items VALUES (1, 'a'), (2, 'b')")
    with Flow(database, target, {"items": {}}, on_error=on_error) as flow:
        until(lambda: any("XX000" in error for _, error in flow.states()), 60, problem=flow.states)
        target.execute("DROP TRIGGER fail ON items")
        flow.loaded()
        assert target.execute("TABLE items") == [(1, "a"), (2, "b")]
        assert target.execute("TABLE penstock.dead_letter") == []
