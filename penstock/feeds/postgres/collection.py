"""A table's rows as they are now, to compare them with a stream."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import orjson
from psycopg import sql
from psycopg.rows import dict_row

from penstock.feeds.postgres.connect import connect_ordinary
from penstock.feeds.postgres.failures import translating
from penstock.feeds.postgres.settings import PostgresSettings
from penstock.model.errors import SettingsError
from penstock.tables.postgres_text import keep_text

_CURSOR = "penstock_compare"  # at the server: a table need not fit into memory
_KEY = """
SELECT a.attname FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a
ON a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
WHERE i.indrelid = to_regclass(%s) AND i.indisprimary AND i.indimmediate ORDER BY a.attnum"""


class PostgresTable:
    """A `feeds.Collection`. A row's values are psycopg's, but for text: json, jsonb, intervals."""

    def __init__(self, settings: PostgresSettings, name: str) -> None:
        self._settings = settings
        schema, _, table = name.rpartition(".")
        self.namespace, self.name = schema or "public", table
        self._table = sql.Identifier(self.namespace, self.name)

    def identity(self, change: Mapping[str, Any]) -> str:
        key = change.get("key")
        if key is None and change.get("document_id") is not None:
            names, text = self._primary_key, str(change["document_id"])
            values = [text] if len(names) == 1 else orjson.loads(text)
            key = dict(zip(names, values, strict=True))
        return _text(key or {})

    def key_of(self, image: Mapping[str, Any]) -> Mapping[str, Any] | None:
        names = self._primary_key
        return {name: image[name] for name in names} if all(n in image for n in names) else None

    def count(self) -> int:
        found = self._rows(sql.SQL("SELECT count(*) FROM {}").format(self._table))
        return int(next(iter(found))["count"])

    def count_before(self, transaction: str) -> tuple[int, int]:
        """See `feeds.DatesRows`."""
        # xids are compared by their ages: they begin anew after 2**32.
        query = sql.SQL(
            "SELECT count(*), count(*) FILTER (WHERE age(xmin) > age({}::xid)) AS older FROM {}"
        ).format(sql.Literal(transaction), self._table)
        found = next(iter(self._rows(query)))
        return int(found["count"]), int(found["older"])

    def rows(self, most: int | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
        query = sql.SQL("SELECT * FROM {}").format(self._table)
        if most is not None:
            query += sql.SQL(" ORDER BY random() LIMIT {}").format(sql.Literal(most))
        key = self._primary_key
        for row in self._rows(query):
            yield _text({name: row[name] for name in key}), row

    @cached_property
    def _primary_key(self) -> list[str]:
        where = self._table.as_string(None)
        key = [row["attname"] for row in self._rows(_KEY, (where,))]
        if not key:
            raise SettingsError(
                f"there is no table {where} with a primary key",
                "postgres.table-missing",
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
            keep_text(cursor.adapters)
            yield from cursor.execute(query, values or None)


def _text(key: Mapping[str, Any]) -> str:
    # A document id of one column has the digits of a number, not the number.
    found = {name: str(each) if type(each) is int else each for name, each in key.items()}
    return orjson.dumps(found, default=str, option=orjson.OPT_SORT_KEYS).decode()
