"""What leads to other rows, to another table, or to another snapshot: on both targets."""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.model.errors import LeaseLost, SettingsError, Unavailable
from tests.consumer.mirror.world import World, execute, rows_of, same, until
from tests.servers import Database

pytestmark = pytest.mark.live

MakeWorld = Callable[..., World]
PEOPLE = (
    "CREATE TABLE people (id int PRIMARY KEY, name text);"
    "INSERT INTO people SELECT n, 'n' || n FROM generate_series(1, 100) n"
)


def test_a_row_without_its_unchanged_columns_keeps_them_also_when_its_key_changes(
    database: Database, world_of: MakeWorld, target: str
) -> None:
    database.execute(
        "CREATE TABLE t (a int, b text, large text, n int, PRIMARY KEY (a, b));"
        "ALTER TABLE t ALTER COLUMN large SET STORAGE EXTERNAL;"
        "INSERT INTO t SELECT n, 'b', repeat('x', 9000) || n, 0 FROM generate_series(1, 9) n"
    )
    world = world_of().start()
    world.mirror(target)
    database.execute("UPDATE t SET n = 1; UPDATE t SET a = a + 100 WHERE a < 5")
    database.execute(
        "UPDATE t SET a = a - 100, n = 2 WHERE a > 100; UPDATE t SET n = 3 WHERE a = 1"
    )
    database.execute("DELETE FROM t WHERE a = 2; UPDATE t SET a = 2 WHERE a = 3")
    database.execute("INSERT INTO t VALUES (20, 'c', repeat('y', 9000), 0)")
    database.execute("UPDATE t SET b = 'd' WHERE a = 20; UPDATE t SET large = NULL WHERE a = 9")
    world.mirror(target)
    same(database, target, "t")


@pytest.mark.parametrize("messages", ["change", "batch"])
def test_truncate_empties_and_what_comes_after_stays(
    messages: str, database: Database, world_of: MakeWorld, target: str
) -> None:
    database.execute(PEOPLE)
    world = world_of(messages=messages).start()
    world.mirror(target)
    database.execute("INSERT INTO people VALUES (500, 'goes')")
    database.execute("TRUNCATE people; INSERT INTO people VALUES (1, 'one'), (2, 'two')")
    world.mirror(target)
    same(database, target, "people")


def test_rows_whose_keys_pass_through_each_other_in_one_statement(
    database: Database, world_of: MakeWorld, target: str
) -> None:
    """A deferrable key is judged at the end of the statement: it is no key."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY DEFERRABLE, a text);"
        "ALTER TABLE t REPLICA IDENTITY FULL;"
        "INSERT INTO t SELECT n, 'a' || n FROM generate_series(1, 5) n"
    )
    world = world_of().start()
    world.mirror(target)
    database.execute("UPDATE t SET id = CASE id WHEN 1 THEN 2 WHEN 2 THEN 1 ELSE id END")
    database.execute("UPDATE t SET id = id + 1; DELETE FROM t WHERE id = 3")
    mirror = world.mirror(target)
    same(database, target, "t")
    assert (mirror.status.snapshots, mirror.copies[0].key) == (0, ())


def test_rows_without_a_key_are_counted(
    database: Database, world_of: MakeWorld, target: str
) -> None:
    database.execute(
        "CREATE TABLE bag (a int, b text, c jsonb); ALTER TABLE bag REPLICA IDENTITY FULL;"
        "INSERT INTO bag SELECT n % 3, NULL, '{\"x\": [1]}' FROM generate_series(1, 9) n"
    )
    world = world_of().start()
    world.mirror(target)
    database.execute("DELETE FROM bag WHERE ctid IN (SELECT ctid FROM bag WHERE a = 0 LIMIT 2)")
    database.execute(
        "UPDATE bag SET b = 'x' WHERE ctid = (SELECT ctid FROM bag WHERE a = 1 LIMIT 1)"
    )
    database.execute("INSERT INTO bag VALUES (7, 'y', NULL), (7, 'y', NULL)")
    database.execute("DELETE FROM bag WHERE ctid = (SELECT ctid FROM bag WHERE a = 7 LIMIT 1)")
    world.mirror(target)
    same(database, target, "bag")
    database.execute("TRUNCATE bag; INSERT INTO bag VALUES (1, 'z', NULL)")
    world.mirror(target)
    same(database, target, "bag")


def test_added_columns_are_added_and_dropped_ones_dropped_without_a_snapshot(
    database: Database, world_of: MakeWorld, target: str
) -> None:
    database.execute(PEOPLE)
    world = world_of().start()
    world.mirror(target)
    database.execute("ALTER TABLE people ADD COLUMN age int")
    database.execute(
        "INSERT INTO people VALUES (200, 'new', 5); UPDATE people SET age = 1 WHERE id = 1"
    )
    mirror = world.mirror(target)
    same(database, target, "people")
    database.execute("ALTER TABLE people DROP COLUMN name")
    database.execute("INSERT INTO people VALUES (201, 7)")
    mirror = world.mirror(target)
    same(database, target, "people")
    assert mirror.status.snapshots == 0


@pytest.mark.parametrize(
    "ddl",
    [
        "ALTER TABLE people ADD COLUMN age int NOT NULL DEFAULT 5",
        "ALTER TABLE people RENAME COLUMN name TO called",
        "ALTER TABLE people ALTER COLUMN id TYPE bigint",
        "ALTER TABLE people DROP CONSTRAINT people_pkey, ADD PRIMARY KEY (name)",
        "DROP TABLE people; CREATE TABLE people (id int PRIMARY KEY, name text)",
    ],
    ids=["default", "renamed", "type", "key", "made again"],
)
def test_what_changes_old_rows_leads_to_a_snapshot(
    ddl: str, database: Database, world_of: MakeWorld, target: str
) -> None:
    database.execute(PEOPLE)
    world = world_of().start()
    world.mirror(target)
    database.execute(ddl)
    database.execute("INSERT INTO people VALUES (300, 'after')")
    assert world.mirror(target).status.snapshots == 1
    same(database, target, "people")
    database.execute("DELETE FROM people WHERE id = 300")
    assert world.mirror(target).status.snapshots == 0
    same(database, target, "people")


def test_dropped_columns_may_be_kept(database: Database, world_of: MakeWorld, target: str) -> None:
    database.execute(PEOPLE)
    world = world_of().start()
    world.mirror(target, dropped="keep")
    database.execute("ALTER TABLE people DROP COLUMN name; INSERT INTO people VALUES (200)")
    world.mirror(target, dropped="keep")
    rows = {dict(row)["id"]: dict(row)["name"] for row in rows_of(target, "people")}
    assert rows == {**{str(n): f"n{n}" for n in range(1, 101)}, "200": None}


def test_expired_messages_lead_to_a_snapshot(
    database: Database, world_of: MakeWorld, target: str
) -> None:
    database.execute(PEOPLE)
    world = world_of().start()
    world.mirror(target)
    database.execute("INSERT INTO people VALUES (300, 'is lost')")
    world.published()
    world.api.purge("CDC", ">")
    database.execute("INSERT INTO people VALUES (301, 'is not')")
    assert world.mirror(target).status.snapshots == 1
    same(database, target, "people")


def test_a_hole_is_noticed_while_the_mirror_runs(
    database: Database, world_of: MakeWorld, target: str
) -> None:
    database.execute(PEOPLE)
    world = world_of().start()
    with world.replica(target) as mirror:
        until(lambda: mirror.step(0.1) == 0 and bool(mirror.tables))
        world.published()
        until(lambda: mirror.step(0.1) == 0)
        assert mirror._live._reader is not None
        mirror._live._reader.close()  # the connection is lost, and takes what it had with it
        database.execute("INSERT INTO people VALUES (300, 'is lost')")
        world.published()
        world.api.purge("CDC", ">")
        database.execute("INSERT INTO people VALUES (301, 'is not')")
        until(lambda: mirror.step(0.1) == 0 and mirror.status.snapshots == 2)
    world.mirror(target)
    same(database, target, "people")


def test_a_stream_that_was_made_again_leads_to_a_snapshot(
    database: Database, world_of: MakeWorld, target: str
) -> None:
    database.execute(PEOPLE)
    world = world_of().start()
    world.mirror(target)
    config = dict((world.api.stream("CDC") or {})["config"])
    world.stop_pump()
    world.api._call("STREAM.DELETE.CDC", {})
    world.api.create(config)
    world.start_pump()
    database.execute("INSERT INTO people SELECT n, 'x' FROM generate_series(500, 600) n")
    assert world.mirror(target).status.snapshots == 1
    same(database, target, "people")


def test_a_table_that_appears_is_mirrored(
    database: Database, world_of: MakeWorld, target: str
) -> None:
    database.execute(PEOPLE)
    world = world_of().start()
    with world.replica(target) as mirror:
        until(lambda: mirror.step(0.1) == 0 and len(mirror.tables) == 1)
        database.execute("CREATE TABLE later (id int PRIMARY KEY); INSERT INTO later VALUES (1)")
        database.execute("INSERT INTO later VALUES (2)")
        until(lambda: mirror.step(0.1) == 0 and len(mirror.tables) == 2)
    world.mirror(target)
    same(database, target, "later")


def test_a_table_that_is_not_followed_for_a_time_goes_on_where_it_was(
    database: Database, world_of: MakeWorld, target: str
) -> None:
    database.execute(PEOPLE + "; CREATE TABLE other (id int PRIMARY KEY)")
    world = world_of().start()
    world.mirror(target)
    database.execute("INSERT INTO other VALUES (1); INSERT INTO people VALUES (300, 'x')")
    world.mirror(target, tables=["other"])
    same(database, target, "other")
    mirror = world.mirror(target)
    assert mirror.status.snapshots == 0
    same(database, target, "people")


def test_a_snapshot_replaces_the_rows_and_leaves_what_users_made(
    database: Database, world_of: MakeWorld, target: str
) -> None:
    database.execute(PEOPLE)
    world = world_of().start()
    world.mirror(target)
    execute(target, "CREATE VIEW names AS SELECT name FROM people")
    database.execute("UPDATE people SET name = 'x'")
    world.published()
    world.api.purge("CDC", ">")
    database.execute("INSERT INTO people VALUES (301, 'is not')")
    assert world.mirror(target).status.snapshots == 1
    same(database, target, "people")
    assert rows_of(target, "names").total() == 101


def test_what_users_made_stays_where_the_columns_change(
    database: Database, world_of: MakeWorld, target: str
) -> None:
    database.execute(PEOPLE)
    world = world_of().start()
    world.mirror(target)
    execute(target, "CREATE VIEW ids AS SELECT id FROM people")
    execute(target, "CREATE INDEX by_name ON people (name)")
    database.execute("ALTER TABLE people ALTER COLUMN name TYPE int USING id, ADD age int")
    database.execute("UPDATE people SET age = 1")
    assert world.mirror(target).status.snapshots == 1
    same(database, target, "people")
    assert rows_of(target, "ids").total() == 100


def test_a_view_that_needs_a_column_that_goes_is_named(
    database: Database, world_of: MakeWorld, target: str
) -> None:
    database.execute(PEOPLE + "; CREATE TABLE other (id int PRIMARY KEY)")
    world = world_of().start()
    world.mirror(target)
    execute(target, "CREATE VIEW called AS SELECT name FROM people")
    for n, ddl in enumerate(("DROP COLUMN name, ADD age int NOT NULL DEFAULT 5", "ADD size int")):
        database.execute(f"ALTER TABLE people {ddl}; INSERT INTO people (id) VALUES (20{n})")
        database.execute(f"INSERT INTO other VALUES ({n})")
        if target.startswith("sqlite"):  # there, the view fails when it is read
            world.mirror(target)
        else:
            with pytest.raises(SettingsError, match=r"people: .*is refused: .*view called"):
                world.mirror(target)
            assert rows_of(target, "called").total() == 100
        same(database, target, "other")
    execute(target, "DROP VIEW called")
    world.mirror(target)
    same(database, target, "people")


def test_one_replica_writes(database: Database, world_of: MakeWorld, target: str) -> None:
    database.execute(PEOPLE)
    world = world_of().start()
    with world.replica(target) as first:
        until(lambda: first.step(0.1) == 0 and bool(first.tables))
        world.mirror(target)
        database.execute("INSERT INTO people VALUES (300, 'x')")
        world.published()
        with pytest.raises(LeaseLost, match="another replica"):
            until(lambda: first.step(0.1) < 0)
    world.mirror(target)
    same(database, target, "people")


def test_without_a_service_the_last_snapshot_is_used_and_else_the_error_says_so(
    database: Database, world_of: MakeWorld, tmp_path: Path
) -> None:
    database.execute(PEOPLE)
    world = world_of().start()
    first, second, third = (f"sqlite:///{tmp_path}/{n}.db" for n in range(3))
    world.mirror(first)
    database.execute("INSERT INTO people VALUES (300, 'x')")
    world.stop_service()
    world.mirror(second)
    same(database, second, "people")
    world.api.purge("INIT", ">")
    mirror = world.replica(third)
    with mirror, pytest.raises(Unavailable, match=r"nobody takes a snapshot .*start it first"):
        mirror.step()


def test_an_unknown_table_is_an_error_with_those_that_there_are(
    database: Database, world_of: MakeWorld, target: str
) -> None:
    database.execute(PEOPLE)
    world = world_of().start()
    mirror = world.replica(target, tables=["peopel"])
    with mirror, pytest.raises(SettingsError, match=r"peopel is no table.*there are: people"):
        mirror.step()


def test_a_table_of_someone_else_is_not_overwritten(
    database: Database, world_of: MakeWorld, target: str
) -> None:
    database.execute(PEOPLE)
    execute(target, "CREATE TABLE people (id int)")
    world = world_of().start()
    mirror = world.replica(target)
    with mirror, pytest.raises(SettingsError, match="a table people that is not of a replica"):
        until(lambda: mirror.step(0.1) < 0)


def test_a_table_that_cannot_be_had_leaves_the_others(
    database: Database, world_of: MakeWorld, target: str
) -> None:
    database.execute(PEOPLE + "; CREATE TABLE other (id int PRIMARY KEY)")
    execute(target, "CREATE TABLE people (id int)")
    world = world_of().start()
    with pytest.raises(SettingsError, match="a table people that is not of a replica"):
        world.mirror(target)
    with world.replica(target) as mirror:
        until(lambda: mirror.step(0.1) == 0 and bool(mirror.tables))
        until(lambda: mirror.step(0.1) == 0 and bool(mirror.status.loading[0].problem))
        database.execute("INSERT INTO other VALUES (1)")
        until(lambda: mirror.step(0.1) == 1)
        assert "people" in mirror.status.loading[0].problem
    same(database, target, "other")


def test_no_bucket_is_an_error(database: Database, world_of: MakeWorld, target: str) -> None:
    world = world_of()
    mirror = world.replica(target)
    with mirror, pytest.raises(SettingsError, match="there is no bucket 'schemas'"):
        mirror.step()
