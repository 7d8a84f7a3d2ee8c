"""What leads to other rows, to another table, or to another snapshot, end to end. The rules
themselves are in test_plan.py, test_followed.py and test_differences.py; test_target.py is the
contract of targets.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.model.errors import SettingsError, Unavailable
from tests.consumer.mirror.world import World, execute, rows_of, same
from tests.servers import Database
from tests.waiting import until

pytestmark = pytest.mark.live

MakeWorld = Callable[..., World]
PEOPLE = (
    "CREATE TABLE people (id int PRIMARY KEY, name text);"
    "INSERT INTO people SELECT n, 'n' || n FROM generate_series(1, 100) n"
)


def test_dropped_columns_go_or_are_kept_without_a_snapshot(
    database: Database, world_of: MakeWorld, tmp_path: Path
) -> None:
    database.execute(PEOPLE)
    world = world_of().start()
    gone, kept = f"sqlite:///{tmp_path}/gone.db", f"sqlite:///{tmp_path}/kept.db"
    world.mirror(gone)
    world.mirror(kept, dropped="keep")
    database.execute("ALTER TABLE people DROP COLUMN name; INSERT INTO people VALUES (200)")
    assert world.mirror(gone).status.snapshots == 0
    assert world.mirror(kept, dropped="keep").status.snapshots == 0
    same(database, gone, "people")
    assert {name for row in rows_of(gone, "people") for name, _ in row} == {"id"}
    rows = {dict(row)["id"]: dict(row)["name"] for row in rows_of(kept, "people")}
    assert rows == {**{str(n): f"n{n}" for n in range(1, 101)}, "200": None}


def test_a_snapshot_replaces_the_rows_and_leaves_what_users_made(
    database: Database, world_of: MakeWorld, target: str
) -> None:
    """Also where the columns change."""
    database.execute(PEOPLE)
    world = world_of().start()
    world.mirror(target)
    execute(target, "CREATE VIEW ids AS SELECT id FROM people")
    execute(target, "CREATE INDEX by_name ON people (name)")
    database.execute("UPDATE people SET name = id")
    world.published()
    world.api.purge("CDC", ">")
    database.execute("INSERT INTO people VALUES (301, '301')")
    assert world.mirror(target).status.snapshots == 1
    same(database, target, "people")
    assert rows_of(target, "ids").total() == 101
    database.execute("ALTER TABLE people ALTER COLUMN name TYPE int USING id, ADD age int")
    database.execute("UPDATE people SET age = 1")
    assert world.mirror(target).status.snapshots == 1
    same(database, target, "people")
    assert rows_of(target, "ids").total() == 101


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


def test_a_stream_that_was_made_again_leads_to_a_snapshot(
    database: Database, world_of: MakeWorld, file: str
) -> None:
    database.execute(PEOPLE)
    world = world_of().start()
    world.mirror(file)
    world.make_stream_again()
    database.execute("INSERT INTO people SELECT n, 'x' FROM generate_series(500, 600) n")
    assert world.mirror(file).status.snapshots == 1
    same(database, file, "people")


def test_a_hole_is_noticed_while_the_mirror_runs(
    database: Database, world_of: MakeWorld, file: str
) -> None:
    database.execute(PEOPLE)
    world = world_of().start()
    with world.replica(file) as mirror:
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
    world.mirror(file)
    same(database, file, "people")


def test_a_table_that_appears_is_mirrored(
    database: Database, world_of: MakeWorld, file: str
) -> None:
    database.execute(PEOPLE)
    world = world_of().start()
    with world.replica(file) as mirror:
        until(lambda: mirror.step(0.1) == 0 and len(mirror.tables) == 1)
        database.execute("CREATE TABLE later (id int PRIMARY KEY); INSERT INTO later VALUES (1)")
        database.execute("INSERT INTO later VALUES (2)")
        until(lambda: mirror.step(0.1) == 0 and len(mirror.tables) == 2)
    world.mirror(file)
    same(database, file, "later")


def test_a_table_that_is_not_followed_for_a_time_goes_on_where_it_was(
    database: Database, world_of: MakeWorld, file: str
) -> None:
    database.execute(PEOPLE + "; CREATE TABLE other (id int PRIMARY KEY)")
    world = world_of().start()
    world.mirror(file)
    database.execute("INSERT INTO other VALUES (1); INSERT INTO people VALUES (300, 'x')")
    world.mirror(file, tables=["other"])
    same(database, file, "other")
    mirror = world.mirror(file)
    assert mirror.status.snapshots == 0
    same(database, file, "people")


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
    database: Database, world_of: MakeWorld, file: str
) -> None:
    database.execute(PEOPLE)
    world = world_of().start()
    mirror = world.replica(file, tables=["peopel"])
    with mirror, pytest.raises(SettingsError, match=r"peopel is no table.*there are: people"):
        mirror.step()


def test_no_bucket_is_an_error(database: Database, world_of: MakeWorld, file: str) -> None:
    world = world_of()
    mirror = world.replica(file)
    with mirror, pytest.raises(SettingsError, match="there is no bucket 'schemas'"):
        mirror.step()
