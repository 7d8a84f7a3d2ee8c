"""A replica on real servers: the same claims on every target. The pipeline is without Spark.

And what leads to other rows, to another table, or to another snapshot, end to end: the rules
themselves are in test_plan.py, test_followed.py and test_differences.py; test_target.py is the
contract of targets.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.consumer.mirror.bootstrap import Bootstrap
from penstock.consumer.training import trained
from penstock.model.errors import SettingsError, Unavailable
from penstock.nats.buckets import Bucket
from penstock.nats.compression import DictionaryBucket
from tests.consumer.mirror.world import World, execute, rows_of, same
from tests.servers import Database, Postgres
from tests.waiting import until

ZSTD = {"compression": "zstd"}
# Times that texts.py knows in the form of messages.
EVERYTHING = """
CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE TABLE things (
    id bigint PRIMARY KEY, name varchar(80), ok boolean, price numeric(12, 2),
    score double precision, small real, tags text[], sizes integer[][], document jsonb,
    photo bytea, born date, token uuid, seen timestamptz, local timestamp, mood mood,
    lasts interval, large text
);
ALTER TABLE things ALTER COLUMN large SET STORAGE EXTERNAL;
INSERT INTO things
SELECT n, 'Ünïque ' || n || E'\\n\\t\\\\', n % 2 = 0, n / 7.0,
       CASE WHEN n % 5 = 0 THEN 'NaN' ELSE n / 3.0::float8 END,
       0.1, ARRAY['a', NULL, 'a "quoted", one', ''], ARRAY[[1, 2], [3, n]],
       jsonb_build_object('n', n, 'list', ARRAY[1, 2]), decode('00ff' || '5c', 'hex'),
       '2020-02-29', gen_random_uuid(), '12000-01-01 00:00:00+00', '12000-01-01 00:00:00.5',
       'good', 'P1Y2M3DT4H5M6.789S', repeat('x', 9000)
FROM generate_series(1, 300) n;
INSERT INTO things (id) VALUES (1000);
"""


@pytest.mark.parametrize(
    "sink",
    [
        {"encoding": "msgpack"},
        {"encoding": "json", "messages": "batch", "snapshot": ZSTD},
        {"encoding": "arrow", "messages": "batch", "snapshot": ZSTD},
        {"encoding": "msgpack", "compression": "zstd", "snapshot": ZSTD},
        {"encoding": "json", "layout": "debezium"},
        {"encoding": "json", "layout": "cloudevents", "messages": "batch"},
    ],
    ids=lambda sink: "-".join(map(str, sink.values())),
)
def test_rows_that_were_there_and_all_changes_after_them(
    sink: dict[str, Any], database: Database, world_of: Callable[..., World], file: str,
    postgres: Postgres,
) -> None:  # fmt: skip
    database.execute(EVERYTHING)
    world = world_of(**sink).start()
    database.execute("INSERT INTO things (id, name) VALUES (2000, 'before the snapshot')")
    with postgres.database() as copy:
        for target in (file, copy.url):
            world.mirror(target)
            same(database, target, "things")
        changed(database)
        for target in (file, copy.url):
            mirror = world.mirror(target)
            same(database, target, "things")
            assert mirror.status.snapshots == 0
            assert mirror.status.changes > 0


def changed(database: Database) -> None:
    database.execute("UPDATE things SET name = 'other' WHERE id % 3 = 0")  # large is unchanged
    database.execute("UPDATE things SET id = id + 5000 WHERE id % 10 = 1")
    database.execute("DELETE FROM things WHERE id % 10 = 2")
    database.execute("INSERT INTO things (id, name, photo) VALUES (3000, 'new', 'abc')")
    database.execute("UPDATE things SET id = 4000, large = 'y' WHERE id = 3000")


def test_chunks_of_few_rows_have_the_tables_dictionary(
    database: Database, world_of: Callable[..., World], tmp_path: Path
) -> None:
    database.execute("CREATE TABLE people (id int PRIMARY KEY, name text)")
    database.execute("INSERT INTO people SELECT n, 'person ' || n FROM generate_series(1, 30) n")
    world = world_of(
        snapshot={"compression": "zstd", "chunk_rows": 10}, encoding="json", compression="zstd",
        dictionaries=True,
    )  # fmt: skip
    world.connection.open()
    bodies = [orjson.dumps({"id": n, "name": f"person {n}", "operation": "INSERT"})
              for n in range(2000)]  # fmt: skip
    found = trained(("default", "public", "people"), bodies, 4096)
    DictionaryBucket(world.connection).put(world.settings.stream, [found])
    world.start()
    target = f"sqlite:///{tmp_path}/mirror.db"
    world.mirror(target)
    same(database, target, "people")
    meta = world.api.last("INIT", "init.meta.people")
    chunk = world.api.last("INIT", "init.snap.people.>")
    assert meta is not None and chunk is not None
    assert orjson.loads(meta.payload)["dictionary"] == found[0].id
    assert chunk.headers["Penstock-Dictionary"] == found[0].id
    Bucket(world.connection, "dictionaries").delete(f"id.{found[0].id}")
    other = f"sqlite:///{tmp_path}/other.db"
    world.mirror(
        other
    )  # of a snapshot without it: tests/consumer/mirror/test_chunks.py has the error
    same(database, other, "people")
    meta = world.api.last("INIT", "init.meta.people")
    assert meta is not None and orjson.loads(meta.payload)["dictionary"] is None


def test_the_first_run_once_applies_what_was_published_while_it_loaded(
    database: Database, world_of: Callable[..., World], tmp_path: Path, monkeypatch: Any
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 0)")
    world = world_of().start()
    step = Bootstrap.step

    def loads(bootstrap: Bootstrap, wait: float) -> Any:
        table = step(bootstrap, wait)
        if table is not None:  # more than the mirror takes at a time
            for n in range(3):
                database.execute(f"INSERT INTO t SELECT {n} * 1000 + k, {n} FROM"
                                 " generate_series(2, 1001) k")  # fmt: skip
            world.published()
        return table

    monkeypatch.setattr(Bootstrap, "step", loads)
    target = f"sqlite:///{tmp_path}/mirror.db"
    mirror = world.mirror(target)
    assert mirror.status.snapshots == 1
    same(database, target, "t")


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
