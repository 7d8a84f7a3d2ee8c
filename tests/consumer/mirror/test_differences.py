"""What no change in the stream tells is loaded anew, and nothing that is harmless."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from penstock.consumer.mirror.differences import difference_since
from penstock.consumer.mirror.published_tables import Catalog, Revision
from penstock.model.errors import Unavailable
from penstock.nats.connection import Connection
from penstock.nats.services import asked
from penstock.snapshots.records import Records
from penstock.tables.difference import difference
from tests.consumer.mirror.world import World, rows_of, same
from tests.servers import Database
from tests.waiting import until

MakeWorld = Callable[..., World]
ROWS = "INSERT INTO t SELECT n, 'a' || n, n % 3 FROM generate_series(1, 6) n"
PLAIN = f"CREATE TABLE t (id int PRIMARY KEY, a text, n int); {ROWS}"
WHOLE = (
    "CREATE TABLE t (id int NOT NULL, a text, n int NOT NULL, CONSTRAINT k PRIMARY KEY (id));"
    f"ALTER TABLE t REPLICA IDENTITY FULL; {ROWS}"
)
PUBLISHED = "CREATE PUBLICATION p FOR TABLE t"
CHANGE = "UPDATE t SET a = 'changed' WHERE id = 3"

# name -> what there is, and what is done; the last statement is a change that the log has.
NOTICED = {
    "a column is published later": (
        f"{PLAIN}; {PUBLISHED} (id, a)", "ALTER PUBLICATION p SET TABLE t (id, a, n)", CHANGE,
    ),
    "another row filter": (
        f"{PLAIN}; {PUBLISHED} WHERE (id > 2)", "ALTER PUBLICATION p SET TABLE t", CHANGE,
    ),
    "other operations are published": (
        f"{PLAIN}; {PUBLISHED} WITH (publish = 'insert')",
        "UPDATE t SET a = 'unseen'; ALTER PUBLICATION p SET (publish = 'insert, update, delete')",
        CHANGE,
    ),
    "out of the publication and back": (
        f"{PLAIN}; {PUBLISHED}",
        "ALTER PUBLICATION p DROP TABLE t; UPDATE t SET a = 'unseen'; DELETE FROM t WHERE id = 2",
        "ALTER PUBLICATION p ADD TABLE t", CHANGE,
    ),
    "its schema out of the publication and back": (
        f"{PLAIN}; CREATE PUBLICATION p FOR TABLES IN SCHEMA public",
        "ALTER PUBLICATION p DROP TABLES IN SCHEMA public; UPDATE t SET a = 'unseen'",
        "ALTER PUBLICATION p ADD TABLES IN SCHEMA public", CHANGE,
    ),
    "a generated column becomes an ordinary one": (
        "CREATE TABLE t (id int PRIMARY KEY, a text, n int, g int GENERATED ALWAYS AS (n + 1)"
        f" STORED); INSERT INTO t SELECT n, 'a', n FROM generate_series(1, 6) n; {PUBLISHED}",
        "ALTER TABLE t ALTER g DROP EXPRESSION", CHANGE,
    ),
    "a domain has a default": (
        f"{PLAIN}; CREATE DOMAIN d AS text DEFAULT 'new'", "ALTER TABLE t ADD s d", CHANGE,
    ),
    "a default is gone again": (
        PLAIN, "ALTER TABLE t ADD s int DEFAULT 5; ALTER TABLE t ALTER s DROP DEFAULT", CHANGE,
    ),
    "a default that differs by row is gone again": (
        PLAIN, "ALTER TABLE t ADD s float DEFAULT random(); ALTER TABLE t ALTER s DROP DEFAULT",
        CHANGE,
    ),
    "another primary key under FULL": (
        WHOLE, "ALTER TABLE t DROP CONSTRAINT k, ADD PRIMARY KEY (id, n)",
        "INSERT INTO t VALUES (1, 'second', 9)", "DELETE FROM t WHERE id = 1 AND n = 1",
    ),
    "no primary key under FULL": (
        WHOLE, "ALTER TABLE t DROP CONSTRAINT k", "INSERT INTO t VALUES (1, 'second', 9)",
    ),
    "a key is gone for a while under FULL": (
        WHOLE, "ALTER TABLE t DROP CONSTRAINT k; INSERT INTO t VALUES (1, 'second', 9);"
        "DELETE FROM t WHERE id = 1 AND n = 9; ALTER TABLE t ADD PRIMARY KEY (id)", CHANGE,
    ),
    "another name and back": (
        PLAIN, "ALTER TABLE t RENAME TO t_old; UPDATE t_old SET a = 'unseen' WHERE id < 3",
        "ALTER TABLE t_old RENAME TO t", CHANGE,
    ),
    "another schema and back": (
        f"{PLAIN}; CREATE SCHEMA other",
        "ALTER TABLE t SET SCHEMA other; UPDATE other.t SET a = 'unseen' WHERE id < 3",
        "ALTER TABLE other.t SET SCHEMA public", CHANGE,
    ),
    "a renamed column, and another one under its name": (
        PLAIN, "ALTER TABLE t RENAME a TO old_a; ALTER TABLE t ADD a text", CHANGE,
    ),
    "two columns change their names": (
        "CREATE TABLE t (id int PRIMARY KEY, a text, b text); INSERT INTO t VALUES (3, 'a', 'b')",
        "ALTER TABLE t RENAME a TO c; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME c TO b",
        CHANGE,
    ),
    "the last column goes and comes": (
        PLAIN, "ALTER TABLE t DROP n; ALTER TABLE t ADD n int", CHANGE,
    ),
    "another enum under the old name": (
        "CREATE TYPE mood AS ENUM ('x', 'y'); CREATE TABLE t (id int PRIMARY KEY, a text, m mood);"
        "INSERT INTO t SELECT n, 'a', 'x' FROM generate_series(1, 6) n",
        "CREATE TYPE new_mood AS ENUM ('x', 'z'); ALTER TABLE t ALTER m TYPE new_mood USING 'z';"
        "DROP TYPE mood; ALTER TYPE new_mood RENAME TO mood", CHANGE,
    ),
    "dropped and made again": (PLAIN, f"DROP TABLE t; {PLAIN.replace('6', '4')}", CHANGE),
    "rewritten by an expression of the same type": (
        PLAIN, "ALTER TABLE t ALTER a TYPE text USING upper(a)", CHANGE,
    ),
    "unlogged for a while": (
        PLAIN, "ALTER TABLE t SET UNLOGGED", "UPDATE t SET a = 'unseen' WHERE id < 3",
        "ALTER TABLE t SET LOGGED", CHANGE,
    ),
    "unlogged for a while, without large values": (
        "CREATE TABLE t (id int PRIMARY KEY, n int); INSERT INTO t VALUES (1, 1), (3, 3)",
        "ALTER TABLE t SET UNLOGGED", "UPDATE t SET n = 7", "ALTER TABLE t SET LOGGED",
        "UPDATE t SET n = 8 WHERE id = 3",
    ),
    "another schema and back, published by schemas": (
        f"{PLAIN}; CREATE SCHEMA other; CREATE PUBLICATION p FOR TABLES IN SCHEMA public",
        "ALTER TABLE t SET SCHEMA other; UPDATE other.t SET a = 'unseen' WHERE id < 3;"
        "ALTER TABLE other.t SET SCHEMA public", CHANGE,
    ),
    "a leaf is no partition for a while": (
        "CREATE TABLE r (id int PRIMARY KEY, a text) PARTITION BY RANGE (id);"
        "CREATE TABLE t PARTITION OF r FOR VALUES FROM (0) TO (100);"
        "INSERT INTO r SELECT n, 'a' FROM generate_series(1, 6) n;"
        "CREATE PUBLICATION p FOR TABLE r",
        "ALTER TABLE r DETACH PARTITION t", "UPDATE t SET a = 'unseen' WHERE id < 3",
        "ALTER TABLE r ATTACH PARTITION t FOR VALUES FROM (0) TO (100)", CHANGE,
    ),
    "a composite type gets an attribute": (
        f"CREATE TYPE c AS (x int, y text); {PLAIN}; ALTER TABLE t ADD c c[];"
        "UPDATE t SET c = ARRAY[ROW(id, 'y')::c]", "ALTER TYPE c ADD ATTRIBUTE z int", CHANGE,
    ),
    "a composite type within another one loses an attribute": (
        f"CREATE TYPE i AS (x int, y text); CREATE TYPE c AS (i i); {PLAIN}; ALTER TABLE t ADD c c;"
        "UPDATE t SET c = ROW(ROW(id, 'y')::i)::c", "ALTER TYPE i DROP ATTRIBUTE y", CHANGE,
    ),
    "a label of an enum gets another name": (
        f"CREATE TYPE e AS ENUM ('x', 'y'); {PLAIN}; ALTER TABLE t ADD e e; UPDATE t SET e = 'x'",
        "ALTER TYPE e RENAME VALUE 'x' TO 'z'", CHANGE,
    ),
}  # fmt: skip


# Each in one of the two ways, half of them in either; the other way is thorough.
BOTH = [
    pytest.param(
        case, stopped, id=f"{case}-{'stopped' if stopped else 'running'}",
        marks=[pytest.mark.thorough] if (number + stopped) % 2 else [],
    )
    for number, case in enumerate(NOTICED) for stopped in (False, True)
]  # fmt: skip


@pytest.mark.parametrize(("case", "stopped"), BOTH)
def test_what_the_log_does_not_tell_is_loaded_anew(
    case: str, stopped: bool, database: Database, world_of: MakeWorld, tmp_path: Any
) -> None:
    """Also where neither the pipeline nor the mirror runs meanwhile."""
    made, *statements = NOTICED[case]
    database.execute(made)
    world, target = world_of().start(), f"sqlite:///{tmp_path}/mirror.db"
    world.mirror(target)
    if stopped:
        world.stop_pump()
    for statement in statements:
        database.execute(statement)
    if stopped:
        world.start_pump()
    mirror = world.mirror(target)
    same(database, target, "t")
    assert mirror.status.snapshots >= 1


@pytest.fixture
def looking(world_of: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> MakeWorld:
    """A `world_of` whose services look at the tables often."""
    monkeypatch.setattr("penstock.service.tables._LOOK", 0.2)
    return world_of


def execute_and_look(world: World, statement: str) -> None:
    """Returns once the bucket has another document of `t`."""
    with closing(Connection(world.settings)) as connection:
        connection.open()
        catalog = Catalog(connection)
        before = catalog.read()["t"]
        world.database.execute(statement)
        # A look between a DROP and its CREATE takes the table out of the bucket.
        until(lambda: catalog.read().get("t", before).revision > before.revision)


PARTITIONED = (
    "CREATE TABLE t (id int, d int, PRIMARY KEY (id, d)) PARTITION BY RANGE (d);"
    "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (1) TO (2);"
    "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (2) TO (3);"
    "INSERT INTO t SELECT n, 1 + n % 2 FROM generate_series(1, 9) n;"
    "CREATE PUBLICATION p FOR TABLE t WITH (publish_via_partition_root = true)"
)
LOOKS = {
    "a partition is emptied": (PARTITIONED, "TRUNCATE t1"),
    "a partition is dropped": (PARTITIONED, "DROP TABLE t1"),
    "a partition leaves": (PARTITIONED, "ALTER TABLE t DETACH PARTITION t1"),
    "a partition comes with rows": (
        PARTITIONED, "CREATE TABLE t9 (id int, d int, PRIMARY KEY (id, d));"
        "INSERT INTO t9 VALUES (90, 9); ALTER TABLE t ATTACH PARTITION t9 FOR VALUES FROM (9) TO"
        " (10)",
    ),
    "a partition takes another one's place": (
        PARTITIONED, "CREATE TABLE t9 (id int, d int, PRIMARY KEY (id, d)); INSERT INTO t9 VALUES"
        " (90, 1); DROP TABLE t1; ALTER TABLE t ATTACH PARTITION t9 FOR VALUES FROM (1) TO (2)",
    ),
    "another table has its name": (
        f"{PLAIN}; CREATE TABLE u (LIKE t INCLUDING ALL); INSERT INTO u VALUES (99, 'other', 0)",
        "ALTER TABLE t RENAME TO v; ALTER TABLE u RENAME TO t",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", LOOKS)
def test_what_leaves_nothing_in_the_log_is_found_by_looking(
    case: str, database: Database, looking: MakeWorld, file: str
) -> None:
    made, statement = LOOKS[case]
    database.execute(made)
    world, target = looking().start(), file
    world.mirror(target, tables=["t"])
    same(database, target, "t")
    execute_and_look(world, statement)
    assert world.mirror(target, tables=["t"]).status.snapshots == 1
    same(database, target, "t")


def test_a_partition_that_is_empty_when_it_comes_and_a_new_column_load_nothing(
    database: Database, looking: MakeWorld, file: str
) -> None:
    database.execute(PARTITIONED)
    world, target = looking().start(), file
    world.mirror(target)
    execute_and_look(world, "CREATE TABLE t9 PARTITION OF t FOR VALUES FROM (9) TO (10)")
    database.execute("INSERT INTO t VALUES (90, 9); ALTER TABLE t ADD s text")
    database.execute("INSERT INTO t VALUES (91, 9, 's')")
    mirror = world.mirror(target)
    same(database, target, "t")
    assert mirror.status.snapshots == 0
    assert [table.name for table in mirror.copies] == ["t"], "leaves are no tables"


def test_a_snapshot_from_before_a_difference_is_not_used(
    database: Database, looking: MakeWorld, file: str, tmp_path: Any
) -> None:
    """No service runs, and the last snapshot of the table is of another one."""
    database.execute(PLAIN)
    world = looking().start()
    world.mirror(f"sqlite:///{tmp_path}/first.db")
    execute_and_look(world, "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, a text, n int)")
    world.stop_service()
    world.published()
    mirror = world.replica(file)
    with pytest.raises(Exception, match="nobody takes a snapshot of t"), mirror:
        mirror.run(once=True)


def test_a_table_made_again_right_before_the_service_stops_is_loaded_anew(
    database: Database, world_of: MakeWorld, file: str, tmp_path: Path
) -> None:
    """No change of it is in the log, and no look comes between."""
    database.execute(f"{PLAIN}; {PUBLISHED}")
    world = world_of().start()
    world.mirror(file)
    database.execute(f"DROP TABLE t; {PLAIN.replace('6', '4')}; ALTER PUBLICATION p ADD TABLE t")
    world.stop_service()
    fresh = f"sqlite:///{tmp_path / 'fresh.db'}"
    for target in (file, fresh):
        with pytest.raises(Unavailable, match="nobody takes a snapshot of t"):
            world.mirror(target)
    world.start_service()
    for target in (file, fresh):
        world.mirror(target)
        same(database, target, "t")


def test_a_snapshot_that_says_so_is_loaded_for_what_nothing_shows(
    database: Database, world_of: MakeWorld, file: str
) -> None:
    """Also by a mirror that ran only after another snapshot; and no snapshot but that one is."""
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, n int); {PUBLISHED}")
    database.execute("INSERT INTO t VALUES (1, 1), (2, 2)")
    world, target = world_of().start(), file
    world.mirror(target)
    database.execute("ALTER TABLE t ALTER n TYPE int USING n + 1")
    take(world)
    assert world.mirror(target).status.snapshots == 0
    take(world, reload=True)
    take(world)
    assert world.mirror(target).status.snapshots == 1
    same(database, target, "t")
    take(world)
    assert world.mirror(target).status.snapshots == 0


def take(world: World, **options: Any) -> None:
    """Asks for a snapshot of `t`, and waits for its end."""
    payload = orjson.dumps({"pipeline": world.pipeline.name, **options})
    with closing(Connection(world.settings)) as connection:
        connection.open()
        answer = asked(connection, "snapshot.request.t", payload, 30)
        taken = orjson.loads(answer.payload)["snapshot_id"]
        records = Records(connection, world.pipeline.name)
        until(lambda: (one := records.get(taken)) is not None and one.state == "done")


def test_a_table_in_another_schema_is_loaded_under_its_new_name(
    database: Database, looking: MakeWorld, target: str
) -> None:
    database.execute(f"{PLAIN}; {PUBLISHED}; CREATE SCHEMA away")
    world = looking().start()
    world.mirror(target)
    for schema, name in (("away", "away_t"), ("public", "t")):
        there = "t" if name != "t" else "away.t"
        execute_and_look(world, f"ALTER TABLE {there} SET SCHEMA {schema}")
        assert world.mirror(target).status.snapshots == 1
        database.execute(f"UPDATE {schema}.t SET a = '{schema}' WHERE id = 3")
        assert world.mirror(target).status.snapshots == 0
        source = f"{database.url}?options=-csearch_path%3D{schema}"
        assert rows_of(source, "t") == rows_of(target, name)


HARMLESS = (
    "ALTER TYPE e ADD VALUE 'z'", "ALTER TABLE t ADD s text", "CREATE INDEX ON t (a)",
    "GRANT SELECT ON t TO public", "ALTER TABLE t ADD CHECK (n < 100)", "ANALYZE t", "VACUUM t",
    "CREATE TABLE fk (id int REFERENCES t)", "VACUUM FREEZE",
)  # fmt: skip


def test_what_does_not_touch_rows_loads_nothing(
    database: Database, looking: MakeWorld, file: str
) -> None:
    database.execute(f"CREATE TYPE e AS ENUM ('x', 'y'); {PLAIN}; ALTER TABLE t ADD e e")
    world, target = looking().start(), file
    world.mirror(target, tables=["t"])
    for statement in HARMLESS:
        database.execute(statement)
    execute_and_look(world, "ALTER TABLE t ADD last text")
    database.execute("UPDATE t SET a = 'x', last = 'x'")
    assert world.mirror(target, tables=["t"]).status.snapshots == 0
    same(database, target, "t")
    execute_and_look(world, "TRUNCATE t CASCADE")
    database.execute("INSERT INTO t VALUES (90, 'a', 1, 'x')")
    assert world.mirror(target, tables=["t"]).status.snapshots == 0
    same(database, target, "t")


def document(**columns: int) -> dict[str, Any]:
    """Columns and their numbers; `id` is the key."""
    return {
        "relation_id": 1, "version": "v",
        "columns": [
            {"name": name, "data_type": "text", "type": 25, "number": number,
             "key": name == "id", "has_missing": False, "is_generated": False}
            for name, number in columns.items()
        ],
        "state": {
            "last_number": max(columns.values()), "file": 5, "key_index": 9, "partitions": None,
            "publication": {"oid": 7, "entries": []},
        },
    }  # fmt: skip


def test_a_document_of_before_is_never_proof() -> None:
    old = {"version": "v", "columns": [{"name": "id", "data_type": "text", "key": True}]}
    assert difference(old, document(id=1))


@pytest.mark.parametrize(
    ("old", "new", "is_harmless"),
    [
        (document(id=1), document(id=1, a=2), True),
        (document(id=1, b=4), document(id=1, a=2, b=4), False),
        (document(id=1, a=2), document(id=1), True),
        (document(id=1, a=2), document(id=1, b=3), False),
        (document(id=1, a=2), document(id=1, a=3), False),
        (document(id=1), document(id=1) | {"schema": "other"}, False),
    ],
)
def test_only_a_new_highest_column_and_one_that_goes_are_harmless(
    old: dict[str, Any], new: dict[str, Any], *, is_harmless: bool
) -> None:
    assert (difference(old, new) == "") is is_harmless


CALCULATED = document(id=1, a=2)
CALCULATED["columns"][1] |= {"is_generated": True, "column_default": "(id * 2)"}


@pytest.mark.parametrize(
    ("old", "changed", "why"),
    [
        (document(id=1), {"has_missing": True}, "a new column has values in old rows"),
        (document(id=1), {"is_generated": True}, "a new column has values in old rows"),
        (document(id=1, a=2), {"data_type": "bigint"}, "its columns changed"),
        (document(id=1, a=2), {"key": True}, "its key changed"),
        (
            CALCULATED,
            {"is_generated": True, "column_default": "(id * 3)"},
            "a generated column has another expression",
        ),
    ],
    ids=["default", "generated", "type", "key", "expression"],
)
def test_what_changes_old_rows_is_named(
    old: dict[str, Any], changed: dict[str, Any], why: str
) -> None:
    new = document(id=1, a=2)
    new["columns"][1] |= changed
    assert difference(old, new) == why


def test_a_table_that_left_the_bucket_or_whose_document_did_is_loaded() -> None:
    one, other = Revision(3, document(id=1)), Revision(8, document(id=1))
    past = Revision(7, {**document(id=1, a=2), "current": False})
    assert difference_since(3, [one, past, other]) == ""
    assert difference_since(3, [one, other, past]) == ""
    assert "not followed" in difference_since(3, [one, Revision(5, None), other])
    assert "not in the bucket" in difference_since(3, [other])
