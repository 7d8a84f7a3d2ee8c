"""Every kind of value comes back into a database as it left one: by a chunk and by a change."""

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from penstock.sinks.jetstream.poison import DeadLetters
from penstock.wire.pgoutput.values import SESSION
from tests.consumer.mirror.world import World, sqlite_rows
from tests.servers import Nats, Postgres
from tests.wire.kinds import KINDS, LIVE, LIVE_SETUP, Kind

_SOURCE = 16
_ALL = tuple(kind for kind in (*KINDS, *LIVE) if kind.known_to(_SOURCE))
# By the target's database, which counts for nothing.
_PREFERRED = (
    "array_nulls = off", "datestyle = 'SQL, DMY'", "intervalstyle = sql_standard",
    "timezone = 'Asia/Kolkata'", "client_encoding = latin1", "standard_conforming_strings = off",
)  # fmt: skip
_DOCUMENTS = ("json", "jsonb", "ddoc")


def _columns(*, definition: bool = False) -> str:
    return ", ".join(f"{kind.name} {kind.type if definition else ''}" for kind in _ALL)


def _texts(url: str, table: str) -> list[dict[str, str | None]]:
    """The rows of a table by `::text`, in the session of values."""
    with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as connection:
        for name, value in SESSION.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        columns = ", ".join(f"{kind.name}::text" for kind in _ALL)
        return connection.execute(
            f"SELECT id, {columns} FROM public.{table} ORDER BY id".encode()
        ).fetchall()


def _in_sqlite(kind: Kind, text: str) -> Any:
    """What docs/how-to/mirror.md says that a SQLite mirror has, of the source's text."""
    if kind.type in _DOCUMENTS:
        return text
    if kind.type.removesuffix("[]") in _DOCUMENTS:
        return kind.as_msgpack
    return kind.as_msgpack if isinstance(kind.as_msgpack, bytes) else kind.json


@pytest.fixture(params=["json", "msgpack"])
def world(request: pytest.FixtureRequest, world_of: Callable[..., World]) -> World:
    """A pipeline with a row of every kind of value, in a table with a key and one without."""
    world = world_of(encoding=request.param)
    execute = world.database.execute
    execute(LIVE_SETUP)
    values = ", ".join(kind.sql for kind in _ALL)
    for table, key in (("kinds", "PRIMARY KEY"), ("keyless", "")):
        execute(f"CREATE TABLE {table} (id integer {key}, {_columns(definition=True)})")
        if not key:
            execute(f"ALTER TABLE {table} REPLICA IDENTITY FULL")
        execute(f"INSERT INTO {table} VALUES (1, {values}), (3, {values})")
    world.start()
    for table in ("kinds", "keyless"):
        execute(f"INSERT INTO {table} VALUES (2, {values}), (4{', NULL' * len(_ALL)})")
    return world


def test_every_kind_of_value_comes_back_as_it_left(world: World, postgres: Postgres) -> None:
    with postgres.database() as target:
        for setting in _PREFERRED:
            target.execute(f'ALTER DATABASE "{target.name}" SET {setting}')
        file = f"sqlite:///{world.folder / 'mirror.db'}"
        targets = (target.url, file)
        for url in targets:
            world.mirror(url)
        for table in ("kinds", "keyless"):
            world.database.execute(f"UPDATE {table} SET id = id + 10 WHERE id = 2")
            world.database.execute(f"DELETE FROM {table} WHERE id = 3")
        for url in targets:
            world.mirror(url)
        for table in ("kinds", "keyless"):
            source, copy = _texts(world.database.url, table), _texts(target.url, table)
            assert [row["id"] for row in copy] == [1, 4, 12]
            assert _different(source, copy) == []
            rows = sorted(sqlite_rows(file, table), key=lambda row: row["id"])
            assert [row["id"] for row in rows] == [1, 4, 12]
            assert _different_in_sqlite(source, rows) == []


def _different(source: list[dict[str, Any]], copy: list[dict[str, Any]]) -> list[Any]:
    return [
        (name, value[:99], str(theirs[name])[:99])
        for ours, theirs in zip(source, copy, strict=True)
        for name, value in ours.items()
        if value != theirs[name]
    ]


def _different_in_sqlite(source: list[dict[str, Any]], copy: list[dict[str, Any]]) -> list[Any]:
    found = []
    for ours, theirs in zip(source, copy, strict=True):
        for kind in _ALL:
            value, wanted = theirs[kind.name], ours[kind.name] and _in_sqlite(kind, ours[kind.name])
            if isinstance(wanted, list):
                value = json.loads(value)
            if value != wanted or isinstance(value, float) != isinstance(wanted, float):
                found.append((kind.name, str(wanted)[:99], str(value)[:99]))
    return found


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
def test_a_row_that_is_not_utf8_is_set_aside_and_the_snapshot_goes_on(
    key: str, postgres: Postgres, own_nats: Callable[..., Nats], tmp_path: Path
) -> None:
    with postgres.database(options="ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0") as source:
        source.execute(f'CREATE TABLE "é" (id int {key}, v text)')
        source.execute("INSERT INTO \"é\" SELECT n, 'é' || n FROM generate_series(1, 999) n")
        source.execute("INSERT INTO \"é\" VALUES (1000, E'caf\\xe9')")
        with closing(World(source, own_nats(), tmp_path)) as world:
            world.start()
            file = f"sqlite:///{tmp_path / 'mirror.db'}"
            world.mirror(file)
            rows = sqlite_rows(file, "é")
            assert sorted(row["id"] for row in rows) == list(range(1, 1000))
            assert rows[0]["v"] == f"é{rows[0]['id']}"
            letters = DeadLetters(world.connection, world.api, world.settings)
            (kept,) = letters.stored()
            assert (kept.letter.table, kept.letter.reason) == ("public.é", "not-utf8")
            assert b"caf\xe9" in kept.letter.raw
