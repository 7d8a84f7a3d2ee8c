"""A table's rows as they are now, to compare them with a stream."""

from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from psycopg import sql
from psycopg.rows import dict_row

from penstock.errors import SettingsError
from penstock.feeds.postgres.connect import connect_ordinary
from penstock.feeds.postgres.failures import translating
from penstock.feeds.postgres.settings import PostgresSettings

_CURSOR = "penstock_compare"  # at the server: a table need not fit into memory
_KEY = """
SELECT a.attname FROM pg_index i JOIN pg_attribute a
ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
WHERE i.indrelid = to_regclass(%s) AND i.indisprimary ORDER BY a.attnum"""


class PostgresTable:
    """A `feeds.Collection`. A row's values are psycopg's."""

    def __init__(self, settings: PostgresSettings, name: str) -> None:
        self._settings = settings
        schema, _, table = name.rpartition(".")
        self.namespace, self.name = schema or "public", table
        self._table = sql.Identifier(self.namespace, self.name)
        self._key: list[str] = []

    def identity(self, change: Mapping[str, Any]) -> str:
        """See `feeds.Collection`."""
        return _text(change.get("key") or {"": change.get("document_id")})

    def count(self) -> int:
        """See `feeds.Collection`."""
        found = self._rows(sql.SQL("SELECT count(*) FROM {}").format(self._table))
        return int(next(iter(found))["count"])

    def rows(self, most: int | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """See `feeds.Collection`."""
        query = sql.SQL("SELECT * FROM {}").format(self._table)
        if most is not None:
            query += sql.SQL(" ORDER BY random() LIMIT {}").format(sql.Literal(most))
        key = self._primary_key()
        for row in self._rows(query):
            yield _text({name: row[name] for name in key}), row

    def _primary_key(self) -> list[str]:
        where = self._table.as_string(None)
        key = [row["attname"] for row in self._rows(_KEY, (where,))]
        if not key:
            raise SettingsError(
                f"there is no table {where} with a primary key",
                hint="name a table as SCHEMA.TABLE; without a primary key rows can't be compared",
            )
        return key

    def _rows(self, query: Any, values: tuple[Any, ...] = ()) -> Iterator[dict[str, Any]]:
        with (
            connect_ordinary(self._settings) as connection,
            translating("reading a table"),
            connection.transaction(),
            connection.cursor(_CURSOR, row_factory=dict_row) as cursor,
        ):
            connection.execute("SET LOCAL statement_timeout = 0")
            yield from cursor.execute(query, values or None)


def _text(key: Mapping[str, Any]) -> str:
    return orjson.dumps(dict(key), default=str, option=orjson.OPT_SORT_KEYS).decode()
