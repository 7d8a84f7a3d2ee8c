"""Values of all kinds come from PostgreSQL into a SQLite file: rows of the load, and changes."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from penstock.tables.staging import READS
from tests.servers import Database
from tests.sinks.postgres.flow import Flow
from tests.waiting import until
from tests.wire.kinds import KINDS, LIVE, LIVE_SETUP

VERSION = 16
TABLES = ("kinds", "keyless")
# Of the sessions that read a source.
SETTINGS = {**READS, "IntervalStyle": "iso_8601", "search_path": ""}


def _stored(kind: str, text: str | None) -> Any:
    """What SQLite has of a value that PostgreSQL writes so."""
    if text is None:
        return None
    if kind == "boolean":
        return int(text == "t")
    if kind in ("smallint", "integer", "bigint", "oid"):
        return int(text)
    if kind in ("real", "float8", "double precision") and text[-1] not in "Ny":
        return float(text)
    return bytes.fromhex(text[2:]) if kind == "bytea" else text


def test_values_of_all_kinds_arrive_as_they_are(database: Database, tmp_path: Path) -> None:
    file = tmp_path / "target.db"
    kinds = [kind for kind in (*KINDS, *LIVE) if kind.known_to(VERSION)]
    # Not casts to text, which write some otherwise than COPY does.
    form = "CASE WHEN num_nulls({0}) = 0 THEN format('%s', {0}) END"
    names = ", ".join(form.format(kind.name) for kind in kinds)
    values = ", ".join(kind.sql for kind in kinds)
    settings = "".join(f"SET {name} = '{value}';" for name, value in SETTINGS.items())
    database.execute(LIVE_SETUP)
    columns = ", ".join(f"{kind.name} {kind.type}" for kind in kinds)
    database.execute(f"CREATE TABLE kinds (id integer PRIMARY KEY, {columns})")
    database.execute(f"CREATE TABLE keyless (id integer, {columns})")
    database.execute("ALTER TABLE keyless REPLICA IDENTITY FULL")

    def fill(first: int) -> None:
        for table in TABLES:
            database.execute(f"INSERT INTO {table} VALUES ({first}, {values})")
            database.execute(f"INSERT INTO {table} (id) VALUES ({first + 1})")

    def here(table: str) -> list[tuple[Any, ...]]:
        rows = database.execute(
            f"{settings} SELECT id::text, {names} FROM public.{table} AS t ORDER BY t.id"
        )
        types = ["integer", *(kind.type for kind in kinds)]
        return [tuple(map(_stored, types, row)) for row in rows]

    def there(table: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(file)) as connection:
            return connection.execute(f"SELECT * FROM {table} ORDER BY id").fetchall()

    def differing() -> list[tuple[str, str, Any, Any]]:
        found = []
        for table in TABLES:
            ours, theirs = here(table), there(table)
            if len(ours) != len(theirs):
                found.append((table, "", len(ours), len(theirs)))
                continue
            for one, other in zip(ours, theirs, strict=True):
                pairs = zip(["id", *(kind.name for kind in kinds)], one, other, strict=True)
                found += [(table, name, was, now) for name, was, now in pairs if was != now]
        return found

    fill(1)
    with Flow(database, file, {table: {"create": True} for table in TABLES}) as flow:
        flow.loaded()
        assert not differing()
        fill(11)
        for table in TABLES:
            database.execute(f"UPDATE {table} SET id = id + 100 WHERE id = 1")
            database.execute(f"UPDATE {table} SET int2 = 7 WHERE id = 11")
            database.execute(f"DELETE FROM {table} WHERE id = 2")
        until(lambda: flow.check() or not differing(), 60, problem=differing)
