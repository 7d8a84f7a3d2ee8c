"""A PostgreSQL server: a scratch database, and a slot of its own for each feed."""

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.errors import ObjectInUse

from penstock.feeds import Feed, GapPolicy
from penstock.model.errors import SettingsError
from penstock.stream.opening import feed_of
from penstock.testing.losses import LostHistory
from penstock.testing.services import Loss, SourceService

_TABLES = """
CREATE TABLE one (id text PRIMARY KEY, text text);
CREATE TABLE two (id text PRIMARY KEY, number numeric);
ALTER TABLE two REPLICA IDENTITY FULL;
"""
_FREE = (
    "SELECT pg_catalog.pg_terminate_backend(active_pid) FROM pg_catalog.pg_replication_slots"
    " WHERE slot_name = %s AND active_pid IS NOT NULL"
)
_PATIENCE = 30.0  # seconds in which a reader lets a slot go


class PostgresService(SourceService):
    """See above."""

    kind = "PostgreSQL"
    drivers = ("psycopg",)
    makes = "the database {0}, and replication slots {0}_N"
    stays = "a slot is one partition, which is never split or moved"
    needs = "a role with CREATEDB and REPLICATION, and wal_level = logical"
    remembers = starts_bare = True
    collection = ("public", "one")

    def __init__(self, url: str, given: Mapping[str, str]) -> None:
        super().__init__(url, given)
        parts = urlsplit(url)
        self._own = parts._replace(path=f"/{self.name}").geturl()
        self._slots = count(1)
        self.reader()  # raises SettingsError, which repeats nothing of a URL
        if conninfo_to_dict(self._own)["dbname"] != self.name:
            raise SettingsError(
                "the URL names its database as an option", "cli.prove-url",
                hint="write it as the path: postgresql://host/database",
            )  # fmt: skip

    def _ask(self, query: Any, *values: Any, url: str = "") -> list[tuple[Any, ...]]:
        with closing(psycopg.connect(url or self.url, autocommit=True)) as connection:
            found = connection.execute(query, values or None)
            return found.fetchall() if found.description else []

    def make(self) -> None:
        self._ask(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self.name)))
        self._execute(_TABLES)

    def version(self) -> str:
        return str(self._ask("SELECT pg_catalog.version()")[0][0]).removeprefix("PostgreSQL ")

    def remove(self) -> None:
        query = "SELECT slot_name FROM pg_catalog.pg_replication_slots WHERE slot_name LIKE %s"
        for (slot,) in self._ask(query, self.name.replace("_", r"\_") + r"\_%"):
            self._drop(slot)
        drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)")
        self._ask(drop.format(sql.Identifier(self.name)))

    def _execute(self, query: str, *values: Any) -> None:
        self._ask(query, *values, url=self._own)

    def _drop(self, slot: str) -> None:
        until = time.monotonic() + _PATIENCE
        while True:
            try:
                self._ask(_FREE, slot)
                self._ask(
                    "SELECT pg_catalog.pg_drop_replication_slot(slot_name)"
                    " FROM pg_catalog.pg_replication_slots WHERE slot_name = %s", slot,
                )  # fmt: skip
            except ObjectInUse:
                if time.monotonic() > until:
                    raise
                time.sleep(0.05)
            else:
                return

    def reader(self, policy: GapPolicy = "fail", slot: str = "") -> Feed:
        return feed_of("postgres", {
            "name": "prove", "connection": self._own, "slot": slot, "publication": self.name,
            "create_publication": True, "page_rows": 3, "on_gap": policy,
        })  # fmt: skip

    @contextmanager
    def feed(self) -> Iterator[Feed]:
        slot = f"{self.name}_{next(self._slots)}"
        try:
            yield self.reader(slot=slot)
        finally:
            self._drop(slot)

    def insert(self, ids: Sequence[str]) -> None:
        with closing(psycopg.connect(self._own, autocommit=True)) as connection:
            for each in ids:
                connection.execute("INSERT INTO one VALUES (%s, 'x')", (each,))

    def workload(self) -> Sequence[tuple[str, str]]:
        first = [f"a{n:02}" for n in range(12)]
        self._execute("INSERT INTO one SELECT unnest(%s::text[]), 'row'", first)
        self._execute(
            "INSERT INTO one VALUES ('b', 'x'); UPDATE one SET text = 'y' WHERE id < 'a03';"
            "DELETE FROM one WHERE id = 'a11'"
        )
        self._execute("INSERT INTO two VALUES ('c', 1.5), ('d', NULL); UPDATE two SET number = 7")
        self._execute("BEGIN; UPDATE one SET text = 'z'; ROLLBACK")
        self._execute("INSERT INTO one VALUES ('e', repeat('long ', 2000))")
        return [
            *((each, "INSERT") for each in (*first, "b")),
            *((each, "UPDATE") for each in first[:3]),
            ("a11", "DELETE"),
            *((each, kind) for kind in ("INSERT", "UPDATE") for each in ("c", "d")),
            ("e", "INSERT"),
        ]

    @contextmanager
    def lost(self) -> Iterator[LostHistory]:
        with self.feed() as feed:
            partition, bookmark = self.read_some(feed)
            self._drop(partition)
            reader = partial(self.reader, slot=partition)
            yield Loss(reader, partition, bookmark, ["slot_missing"], self.insert)


build = PostgresService
