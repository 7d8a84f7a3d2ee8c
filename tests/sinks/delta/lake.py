"""A folder of Delta tables, as its readers see it."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars
from deltalake import DeltaTable

from tests.servers import Database
from tests.sinks.postgres.flow import Flow
from tests.waiting import until

Rows = list[tuple[Any, ...]]


class Lake:
    def __init__(self, folder: Path, schema: str = "public") -> None:
        self.folder, self._schema = folder, schema

    def table(self, name: str) -> DeltaTable:
        return DeltaTable(str(self.folder / self._schema / name))

    def is_there(self, name: str) -> bool:
        return DeltaTable.is_deltatable(str(self.folder / self._schema / name))

    def rows(self, name: str, columns: Sequence[str] = ()) -> Rows:
        """By delta-rs, in order; none before it is there, and has all of these columns."""
        if not self.is_there(name):
            return []
        given = self.table(name).to_pyarrow_dataset()
        if not {*columns} <= {*given.schema.names}:
            return []
        found = given.to_table(columns=[*columns] or None)
        return ordered(tuple(row.values()) for row in found.to_pylist())

    def by_duckdb(self, name: str, columns: Sequence[str] = ()) -> Rows:
        """By DuckDB, which is given the files and partitions as delta-rs lists them."""
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            given = self.table(name).to_pyarrow_dataset()
            connection.register("given", given)
            names = ", ".join(f'"{each}"' for each in columns) or "*"
            return ordered(connection.execute(f"SELECT {names} FROM given").fetchall())

    def by_polars(self, name: str, columns: Sequence[str]) -> Rows:
        found = polars.read_delta(str(self.folder / self._schema / name)).select(columns)
        return ordered(found.rows())


def ordered(rows: Any) -> Rows:
    return sorted((tuple(row) for row in rows), key=repr)


def same(flow: Flow, source: Database, lake: Lake, name: str, query: str = "*") -> None:
    """Waits until both have the same rows."""
    want: Rows = []
    got: Rows = []

    def are_same() -> bool:
        nonlocal want, got
        flow.check()
        want = ordered(source.execute(f"SELECT {query} FROM {name}"))
        got = lake.rows(name, [each.split("::")[0] for each in query.split(", ")] * (query != "*"))
        return want == got

    until(are_same, 60, problem=lambda: (want[:5], got[:5], flow.states()))


def change(source: Database, seed: int, transactions: int) -> None:
    """Random transactions on `items`: rows come, change, get other keys and go; large values stay
    as they are."""
    chance = random.Random(seed)
    for number in range(transactions):
        statements = [_statement(chance, number) for _ in range(chance.randint(1, 6))]
        source.execute("; ".join(["BEGIN", *statements, "COMMIT"]))


def _statement(chance: random.Random, number: int) -> str:
    key, other = chance.randint(1, 60), chance.randint(1, 60)
    kind = chance.choices("iumdlt", [6, 6, 3, 3, 2, 0.1])[0]
    if kind == "i":
        return (
            f"INSERT INTO items (id, name, n, large) VALUES ({key}, 'n{number}', {other}.25,"
            f" repeat('{key}', {chance.choice([1, 3000])})) ON CONFLICT (id) DO UPDATE SET n = 1"
        )
    if kind == "u":
        return f"UPDATE items SET n = n + {other}, name = 'u{number}' WHERE id % 9 = {key % 9}"
    if kind == "m":
        return (
            f"UPDATE items SET id = {key} WHERE id = {other}"
            f" AND NOT EXISTS (SELECT FROM items WHERE id = {key})"
        )
    if kind == "d":
        return f"DELETE FROM items WHERE id % 11 = {key % 11}"
    if kind == "l":
        return f"UPDATE items SET large = repeat('{number}', 2500) WHERE id = {key}"
    return "TRUNCATE items"
