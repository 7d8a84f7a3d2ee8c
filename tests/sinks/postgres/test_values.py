"""Values, types and names of all kinds come into a target as they are at the source: as rows of the
load, and as changes."""

from collections.abc import Callable
from typing import Any

import pytest

from penstock.model.errors import Unavailable
from penstock.tables.staging import READS
from tests.servers import Database, Postgres, postgres_bin
from tests.sinks.postgres.flow import Flow
from tests.waiting import until
from tests.wire.kinds import KINDS, LIVE, LIVE_SETUP

# Names that are special in SQL, in formats and in the map; the last has 63 bytes.
NAMES = ("per%cent", 'quo"te', "dot.ted", "it's", "Ünï %s {} \\", "x" * 57 + "ü%s" + 'z"')
# By the target's database, which counts for nothing.
PREFERRED = (
    "array_nulls = off", "datestyle = 'SQL, DMY'", "intervalstyle = sql_standard",
    "timezone = 'Asia/Kolkata'", "standard_conforming_strings = off",
)  # fmt: skip
ALL = ("kinds", "keyless", "appended", "versions", "pairs", "wide", *NAMES)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def create(source: Database, kinds: dict[str, str]) -> None:
    """All tables, empty."""
    columns = ", ".join(f"{name} {kind}" for name, kind in kinds.items())
    for table, key in (
        ("kinds", "PRIMARY KEY"), ("keyless", ""), ("appended", "PRIMARY KEY"),
        ("versions", "PRIMARY KEY"),
    ):  # fmt: skip
        source.execute(f"CREATE TABLE {table} (id integer {key}, {columns})")
    source.execute("CREATE TABLE pairs (one int, two text, PRIMARY KEY (two, one))")
    wide = ", ".join(f"c{number} int" for number in range(1, 1600))
    source.execute(f"CREATE TABLE wide (id int PRIMARY KEY, {wide})")
    for name in NAMES:
        own, other = quoted(name), quoted(NAMES[0] + name[:20])
        source.execute(f"CREATE TABLE {own} ({own} int PRIMARY KEY, {other} text)")
    source.execute("ALTER TABLE keyless REPLICA IDENTITY FULL")


def fill(source: Database, values: str, first: int) -> None:
    """Rows of all tables, with their ids from `first` on."""
    for table in ("kinds", "keyless", "appended", "versions"):
        for id in (first, first + 1):
            source.execute(f"INSERT INTO {table} VALUES ({id}, {values})")
        source.execute(f"INSERT INTO {table} (id) VALUES ({first + 2})")
    pairs = f"({first}, 'a'), ({first}, E'b\\t\\\\'), ({first + 1}, '')"
    source.execute(f"INSERT INTO pairs VALUES {pairs}")
    numbers = ", ".join(str(number) for number in range(1, 1600))
    source.execute(f"INSERT INTO wide VALUES ({first}, {numbers}), ({first + 1}, {numbers})")
    source.execute(f"INSERT INTO wide (id, c1599) VALUES ({first + 2}, 7)")
    for name in NAMES:
        source.execute(
            f"INSERT INTO {quoted(name)} VALUES ({first}, E'%s\\t'), ({first + 1}, NULL)"
        )


def change(source: Database, values: str) -> None:
    """Changes of all kinds, of the rows 1 to 3."""
    for table in ("kinds", "keyless", "appended", "versions"):
        source.execute(f"UPDATE {table} SET id = id + 10 WHERE id = 1")
        source.execute(f"UPDATE {table} SET int2 = 7 WHERE id = 2")
        source.execute(f"INSERT INTO {table} VALUES (20, {values})")
        if table != "appended":
            source.execute(f"DELETE FROM {table} WHERE id = 3")
    source.execute("UPDATE pairs SET two = 'c' WHERE two = 'a'")
    source.execute("DELETE FROM pairs WHERE two = ''")
    source.execute("UPDATE wide SET c1 = 0, c1599 = NULL WHERE id = 1")
    source.execute("UPDATE wide SET id = 99 WHERE id = 2")
    for name in NAMES:
        key = quoted(name)
        source.execute(f"UPDATE {key} SET {key} = {key} + 100 WHERE {key} = 1")
        source.execute(f"DELETE FROM {key} WHERE {key} = 2")


def texts(database: Database, table: str, columns: str, condition: str = "") -> list[str]:
    """Its rows, as their texts."""
    settings = "".join(f"SET {name} = '{value}';" for name, value in READS.items())
    found = database.execute(
        f"{settings} SELECT ROW({columns})::text FROM {quoted(table)} {condition} ORDER BY 1"
    )
    return [text for (text,) in found]


@pytest.mark.parametrize(
    ("version", "target_version"),
    [
        (18, 15),
        pytest.param(15, 16, marks=pytest.mark.thorough),
        pytest.param(16, 18, marks=pytest.mark.thorough),
        pytest.param(15, 18, marks=pytest.mark.thorough),
        pytest.param(18, 16, marks=pytest.mark.thorough),
        pytest.param(18, 18, marks=pytest.mark.thorough),
        pytest.param(16, 15, marks=pytest.mark.thorough),
    ],
)
def test_all_kinds_of_values_and_names_arrive_as_they_are(
    postgres_of: Callable[[int], Postgres], version: int, target_version: int
) -> None:
    for each in (version, target_version):
        try:
            postgres_bin(each)
        except Unavailable as error:
            pytest.skip(str(error))
    kinds = [
        kind for kind in (*KINDS, *LIVE)
        if kind.known_to(version) and kind.known_to(target_version)
    ]  # fmt: skip
    values = ", ".join(kind.sql for kind in kinds)
    with (
        postgres_of(version).database() as source,
        postgres_of(target_version).database() as target,
    ):
        for database in (source, target):
            database.execute(LIVE_SETUP)
        for setting in PREFERRED:
            target.execute(f'ALTER DATABASE "{target.name}" SET {setting}')
        create(source, {kind.name: kind.type for kind in kinds})
        fill(source, values, 1)
        options: dict[str, dict[str, Any]] = {
            f"public.{table}": {"create": True, "target": f"public.{table}"} for table in ALL
        }
        options["public.appended"]["type"] = "append"
        options["public.versions"]["type"] = "history"
        columns = {
            table: ", ".join(
                quoted(name) for (name,) in source.execute(
                    "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s)"
                    " AND attnum > 0 ORDER BY attnum", [quoted(table)],
                )
            )
            for table in ALL
        }  # fmt: skip

        def differing() -> list[tuple[str, list[str], list[str]]]:
            found = []
            for table in ALL:
                current = "WHERE kvsz_end = '9999-01-01Z'" if table == "versions" else ""
                there = texts(target, table, columns[table], current)
                here = texts(source, table, columns[table])
                if here != there:
                    found.append((table, here, there))
            return found

        def show() -> str:
            return "\n".join(
                f"{table}: {len(here)} and {len(there)} rows: "
                f"{[*set(here) - set(there)][:1]} and {[*set(there) - set(here)][:1]}"
                for table, here, there in differing()
            )

        with Flow(source, target, options) as flow:
            flow.loaded()
            assert not differing(), show()
            fill(source, values, 31)
            change(source, values)
            until(lambda: flow.check() or not differing(), 60, problem=show)
