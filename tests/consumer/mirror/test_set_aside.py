"""What is wrong with one table leaves the others running, and is named."""

import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from penstock.consumer.mirror import replica, snapshot_messages
from penstock.consumer.mirror.plan import RowCoder
from penstock.consumer.mirror.published_tables import Catalog
from penstock.consumer.mirror.replica import SetAside
from penstock.model.errors import Malformed, PenstockError, SettingsError, Unavailable
from penstock.nats.buckets import Bucket
from penstock.snapshots.records import Records
from tests.consumer.mirror.world import World, execute, same
from tests.servers import Database
from tests.waiting import until

pytestmark = pytest.mark.live

MakeWorld = Callable[..., World]
TWO = (
    "CREATE TABLE people (id int PRIMARY KEY, name text);"
    "INSERT INTO people SELECT n, 'n' || n FROM generate_series(1, 9) n;"
    "CREATE TABLE other (id int PRIMARY KEY, name text); INSERT INTO other VALUES (1, 'x')"
)


@pytest.fixture
def world(database: Database, world_of: MakeWorld) -> World:
    database.execute(TWO)
    return world_of(encoding="json").start()


def test_a_change_that_the_target_refuses(world: World, target: str) -> None:
    world.mirror(target)
    execute(target, "CREATE UNIQUE INDEX names ON people (name)")
    world.database.execute("INSERT INTO people VALUES (10, 'secret'), (11, 'secret')")
    for n in (2, 3):  # while it is live, and while it is loaded
        world.database.execute(f"INSERT INTO other VALUES ({n}, 'y')")
        with pytest.raises(SettingsError, match=r"people.* is refused: .*(names|name)") as caught:
            world.mirror(target)
        assert "secret" not in str(caught.value)
        assert ("the row with the key id=11 of default" in str(caught.value)) is False
        assert ("the row with the key id=11 of public.people" in str(caught.value)) == (n == 2)
        same(world.database, target, "other")
    execute(target, "DROP INDEX names")
    assert world.mirror(target).status.snapshots == 1
    same(world.database, target, "people")


def test_a_table_that_was_set_aside_is_asked_for_again(
    world: World, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replica, "_REFUSED", 0.2)
    world.mirror(target)
    execute(target, "CREATE UNIQUE INDEX names ON people (name)")
    with world.replica(target) as mirror:
        until(lambda: mirror.step(0.1) == 0 and len(mirror.tables) == 2)
        world.database.execute("INSERT INTO people VALUES (10, 'n1')")
        until(lambda: mirror.step(0.1) == 0 and len(mirror.tables) == 1)
        assert "people is refused" in mirror.status.loading[0].problem
        world.database.execute("UPDATE people SET name = 'n10' WHERE id = 10")
        until(lambda: mirror.step(0.1) == 0 and len(mirror.tables) == 2)
        world.database.execute("INSERT INTO people VALUES (12, 'n12')")
        world.published()
        mirror.run(once=True)
    same(world.database, target, "people")


@pytest.mark.parametrize("error", [TypeError, RecursionError, OverflowError, KeyError])
def test_an_error_while_a_value_is_encoded(
    error: type[Exception], world: World, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(value: Any) -> Any:
        if value == "odd":
            raise error("odd")
        return value

    world.mirror(file)
    made = RowCoder.__init__

    def with_encoder(coder: RowCoder, table: Any, names: Any, encoders: Mapping[str, Any]) -> None:
        made(coder, table, names, {**encoders, "name": encode} if "name" in names else encoders)

    monkeypatch.setattr(RowCoder, "__init__", with_encoder)
    world.database.execute("INSERT INTO people VALUES (10, 'odd'); INSERT INTO other VALUES (2)")
    text = "column name of the row with the key id=10 of public.people is refused: "
    for _ in range(2):  # of a change, and of a chunk
        with pytest.raises(SettingsError, match=f"{text}{error.__name__} ") as caught:
            world.mirror(file)
        assert "odd" not in str(caught.value)
        same(world.database, file, "other")
    world.database.execute("DELETE FROM people WHERE id = 10")
    # One that runs still would be loaded again, with the row.
    until(lambda: all(each.has_ended for each in Records(world.connection, "shop").all()))
    world.mirror(file)
    same(world.database, file, "people")


@pytest.mark.parametrize("error", [Malformed("no JSON"), TypeError("x"), RecursionError("x")])
def test_a_chunk_that_cannot_be_read(
    error: Exception, world: World, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = snapshot_messages.body_of

    def fails(headers: Any, payload: bytes, *more: Any, **how: Any) -> Any:
        body = read(headers, payload, *more, **how)
        if body["table"] == "people":
            raise error
        return body

    with monkeypatch.context() as patched:
        patched.setattr(snapshot_messages, "body_of", fails)
        with pytest.raises(Malformed, match="people: "):
            world.mirror(file)
    same(world.database, file, "other")
    first = world.api.last("INIT", "init.meta.people")
    world.mirror(file)
    same(world.database, file, "people")
    assert first != world.api.last("INIT", "init.meta.people")


def test_a_schema_that_is_missing(world: World, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    version = Catalog.version
    with monkeypatch.context() as patched:
        patched.setattr(
            Catalog, "version",
            lambda one, key, name: None if key == "people" else version(one, key, name),
        )  # fmt: skip
        with pytest.raises(Unavailable, match=r"bucket schemas does not have .* of people"):
            world.mirror(file)
    same(world.database, file, "other")
    world.mirror(file)
    same(world.database, file, "people")


def _garbage(world: World, **headers: str) -> None:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    subject = world.api.stream("CDC")["config"]["subjects"][0].replace(">", "garbage")  # type: ignore
    world.api.publish(subject, f"NATS/1.0\r\n{lines}\r\n".encode(), b'{"operation": ')


def test_a_message_that_cannot_be_read_concerns_the_table_of_its_schema(
    world: World, file: str
) -> None:
    world.mirror(file)
    key = Bucket(world.connection, "schemas").get("people")
    assert key is not None and key.value is not None
    version = orjson.loads(key.value)["version"]
    _garbage(world, X_Other="1")
    _garbage(world, Penstock_Table_Schema="of another table", Penstock_Position="default s 1:0")
    assert world.mirror(file).status.snapshots == 0
    _garbage(world, Penstock_Table_Schema=version, Penstock_Position="default s 1:0")
    world.database.execute("INSERT INTO people VALUES (10, 'after'); INSERT INTO other VALUES (2)")
    mirror = world.mirror(file)
    assert mirror.status.snapshots == 1  # of people alone
    same(world.database, file, "people")
    same(world.database, file, "other")
    _garbage(world, Penstock_Position="default s 1:0")
    assert world.mirror(file).status.snapshots == 2


def test_tables_that_cannot_be_read_again_and_again_wait(world: World, file: str) -> None:
    world.mirror(file)
    with world.replica(file) as mirror:
        until(lambda: mirror.step(0.1) == 0 and len(mirror.tables) == 2)
        _garbage(world, Penstock_Position="default s 1:0")
        until(lambda: mirror.step(0.1) == 0 and mirror.status.snapshots == 2)
        _garbage(world, Penstock_Position="default s 1:0")
        with pytest.raises(Malformed, match=r"other: message \d+: .*people: message"):
            until(lambda: mirror.step(0.1) < 0)


def test_a_table_that_was_dropped_at_the_source(world: World, file: str) -> None:
    names = ["people", "other"]
    world.mirror(file, tables=names)
    world.database.execute("DROP TABLE other; INSERT INTO people VALUES (10, 'x')")
    world.published()
    bucket = Bucket(world.connection, "schemas")
    bucket.delete("other")
    with world.replica(file, tables=names) as mirror:
        until(lambda: mirror.step(0.1) == 1)
        mirror.close()  # and connects again
        with pytest.raises(SettingsError, match=r"other is no table.*there are: people"):
            mirror.run(once=True)
        same(world.database, file, "people")
        world.database.execute(
            "CREATE TABLE other (id int PRIMARY KEY); INSERT INTO other VALUES (7)"
        )
        until(lambda: mirror.step(0.1) == 0 and len(mirror.tables) == 2)
    same(world.database, file, "other")


def test_tables_that_differ_by_case(database: Database, world_of: MakeWorld, target: str) -> None:
    database.execute(TWO + '; CREATE TABLE "Other" (id int PRIMARY KEY, name text)')
    database.execute("""INSERT INTO "Other" VALUES (7, 'upper')""")
    world = world_of().start()
    error: PenstockError | None = None
    try:
        world.mirror(target)
    except SettingsError as caught:
        error = caught
    same(database, target, "people")
    if target.startswith("sqlite"):
        assert re.search("[Oo]ther and [Oo]ther would both be .*two files", str(error))
    else:
        assert error is None
        same(database, target, "Other")
        same(database, target, "other")


def test_a_key_that_does_not_tell_rows_apart(
    world: World, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target has fewer rows than the snapshot: whatever the reason, that is no result."""
    version = Catalog.version

    def wrong(catalog: Catalog, key: str, name: str) -> Any:
        found = dict(version(catalog, key, name) or {})
        keyed = [{**one, "key": one["name"] == "name"} for one in found["columns"]]
        return {**found, "columns": keyed} if key == "people" else found

    world.database.execute("UPDATE people SET name = 'same' WHERE id < 4")
    monkeypatch.setattr(Catalog, "version", wrong)
    with pytest.raises(SettingsError, match=r"people is refused: .* 9 rows, and 7 are loaded"):
        world.mirror(target)
    same(world.database, target, "other")
    with pytest.raises(Exception, match="people"):
        same(world.database, target, "people")


def test_a_load_that_fails_is_tried_again_less_and_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 1000.0
    monkeypatch.setattr(replica, "time", SimpleNamespace(monotonic=lambda: now))
    tables, waits = SetAside(), []
    for error in (Malformed("x"), Malformed("x"), Malformed("x"), SettingsError("x")):
        tables.add("people", error)
        begun = now
        while not tables.is_due("people"):
            now += 1
        waits.append(now - begun)
    now += 10_000
    tables.add("people", Malformed("x"))
    assert (waits, tables.is_due("people")) == ([60, 120, 240, 60], False)
    now += 60
    assert tables.is_due("people")
