"""A database of each kind, for claims that hold in all of them, and what users do there."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest

from penstock.process.plugins import plugin
from penstock.sinks.tables.sink import TableSink
from tests.servers import Postgres

# Names longer than five characters are refused.
TARGET = "CREATE TABLE items (id integer PRIMARY KEY, name text CHECK (length(name) <= 5))"


@dataclass(frozen=True, slots=True)
class Place:
    """`url`, as mirrors have it; `execute` is another session."""

    kind: str
    url: str
    execute: Callable[[str], list[Any]]

    @property
    def items(self) -> list[Any]:
        return self.execute("SELECT * FROM items ORDER BY 1, 2")

    def make_again(self, statement: str) -> None:
        """The table `items`, otherwise, with its rows."""
        for each in ("ALTER TABLE items RENAME TO old", statement,
                     "INSERT INTO items SELECT * FROM old", "DROP TABLE old"):  # fmt: skip
            self.execute(each)

    def sink(self, settings: dict[str, Any] | None = None, **options: Any) -> TableSink:
        """A sink with a map of the table `items`, with these options."""
        found = plugin("sinks", self.kind)
        own = {"file": self.url.removeprefix("sqlite:///")}
        if self.kind == "postgres":
            own = {"connection": self.url}
        entries = [{"backend": "default", "tables": {"items": options}}]
        given = {"map": entries, "commit": {"wait": "20ms"}, **own, **(settings or {})}
        return found.build(found.settings.model_validate(given))  # type: ignore[no-any-return]


def file_at(path: Any) -> Place:
    def execute(statement: str) -> list[Any]:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()

    return Place("sqlite", f"sqlite:///{path}", execute)


def places(request: pytest.FixtureRequest, folder: Any) -> Iterator[Place]:
    """That of the kind that is the fixture's parameter."""
    if request.param == "sqlite":
        yield file_at(folder / "target.db")
        return
    postgres: Postgres = request.getfixturevalue("postgres")
    with postgres.database() as fresh:
        yield Place("postgres", fresh.url, fresh.execute)
