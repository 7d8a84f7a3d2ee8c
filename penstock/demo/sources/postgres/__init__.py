"""PostgreSQL: an embedded server, and a shop whose tables cover what a change can contain."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import psycopg
from psycopg.rows import dict_row

from penstock.demo.ledger import Ledger
from penstock.demo.postgres import Postgres
from penstock.demo.sources import DemoSource
from penstock.demo.sources.postgres import shop
from penstock.demo.sources.postgres.writer import PostgresWriter
from penstock.demo.verdict import TableRows
from penstock.demo.workload import Writer
from penstock.feeds.postgres.collection import keep_text

_DATABASE = "shop"


class PostgresDemo(DemoSource):
    """PostgreSQL."""

    title = "PostgreSQL"
    keys = shop.KEYS
    mirrored = shop.MIRRORED
    backend: Mapping[str, Any] = {
        "type": "postgres",
        "connection": "${PG_URL}",
        "slot": shop.SLOT,
        "publication": shop.PUBLICATION,
    }

    _server: Postgres

    def __init__(self) -> None:
        self._server = Postgres()
        self._lag = ""
        self._asked_at = 0.0

    def set_up(self) -> None:
        """A database of its own."""
        self._server.execute(f"CREATE DATABASE {_DATABASE}")
        psycopg.connect(self._url, autocommit=True).execute(shop.CREATE.encode()).close()

    @property
    def _url(self) -> str:
        return self._server.url_of(_DATABASE)

    @property
    def environment(self) -> Mapping[str, str]:
        return {"PG_URL": self._url}

    def writer(self, ledger: Ledger, rate: float) -> Callable[[], AbstractContextManager[Writer]]:
        return PostgresWriter(self._url, ledger, rate=rate).connected

    def lag(self) -> str:
        """The log that the slot still holds; asked once a second."""
        if time.monotonic() - self._asked_at >= 1.0:
            self._asked_at = time.monotonic()
            rows = self._server.execute(
                """
                SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn)::bigint
                FROM pg_replication_slots WHERE slot_name = %s""",
                [shop.SLOT],
            )
            self._lag = f"{rows[0][0] / 1024:,.0f} KiB" if rows and rows[0][0] is not None else ""
        return self._lag

    def tables(self) -> Mapping[str, TableRows]:
        with psycopg.connect(self._url, row_factory=dict_row) as connection:
            connection.execute("SET intervalstyle = 'iso_8601'")
            keep_text(connection.adapters)
            keys = self.keys | self.mirrored
            return {
                table: {
                    tuple(row[column] for column in keys[table]): row
                    for row in connection.execute(select.encode())
                }
                for table, select in shop.SELECTS.items()
            }

    def hints(self) -> Sequence[str]:
        return (f"{self._server.bin}/psql {self._url}",)


DEMO = PostgresDemo
