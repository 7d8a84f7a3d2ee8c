"""The schema of a table: what the log announces of it, and what the catalogue adds.

A Relation message has names, types and the replica identity. Whether a column may be null, and its
default, only the catalogue knows: as they are now, which may be newer than the message.
"""

import struct
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

from penstock.errors import Malformed
from penstock.feeds.postgres.settings import PostgresSettings, split_table
from penstock.table_schema import TableName, TableSchema
from penstock.wire.pgoutput.messages import Relation, decode_message
from penstock.wire.pgoutput.schema import schema_version

# A query with parameters -> its rows.
Ask = Callable[..., Sequence[tuple[Any, ...]]]

_COLUMN = "name", "position", "data_type", "base_type", "is_nullable", "column_default", "key"

# The type under domains, also of an array's elements: what values are written as.
_BASE = """(
    WITH RECURSIVE base (type, modifier, array_of, depth) AS (
        SELECT %s, %s, '', 0
        UNION ALL
        SELECT CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.typelem END,
               CASE t.typtype WHEN 'd' THEN t.typtypmod ELSE base.modifier END,
               array_of || CASE t.typtype WHEN 'd' THEN '' ELSE '[]' END, depth + 1
        FROM base JOIN pg_catalog.pg_type t ON t.oid = base.type
        LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
        WHERE t.typtype = 'd' OR e.oid IS NOT NULL)
    SELECT pg_catalog.format_type(type, modifier) || array_of FROM base
    ORDER BY depth DESC LIMIT 1)"""

_COLUMNS = f"""
SELECT t.name, pg_catalog.format_type(t.type, t.modifier),
       {_BASE % ("t.type", "t.modifier")}, NOT coalesce(a.attnotnull, false),
       pg_catalog.pg_get_expr(d.adbin, d.adrelid),
       coalesce(a.attnum = ANY (i.indkey::int2[]), false)
FROM unnest(%s::text[], %s::oid[], %s::int[]) WITH ORDINALITY AS t (name, type, modifier, number)
LEFT JOIN pg_catalog.pg_attribute a
    ON a.attrelid = %s AND a.attname = t.name AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
LEFT JOIN pg_catalog.pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
ORDER BY t.number
"""

_NAMESAKES = """
SELECT count(DISTINCT schemaname) FROM pg_catalog.pg_publication_tables
WHERE pubname = %s AND tablename = %s
"""

# As pgoutput finds them: the columns that it sends, in their order; those of the replica identity
# (all of them with FULL). PostgreSQL 15 lists generated columns, too, which it does not send.
_RELATIONS = f"""
SELECT p.schemaname, p.tablename, c.oid, c.relreplident::text,
       a.attname, a.atttypid, a.atttypmod,
       c.relreplident = 'f' OR coalesce(a.attnum = ANY (k.keys), false),
       pg_catalog.format_type(a.atttypid, a.atttypmod),
       {_BASE % ("a.atttypid", "a.atttypmod")}, NOT a.attnotnull,
       pg_catalog.pg_get_expr(d.adbin, d.adrelid),
       coalesce(a.attnum = ANY (i.indkey::int2[]), false)
FROM pg_catalog.pg_publication_tables p
JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
LEFT JOIN pg_catalog.pg_index i ON i.indrelid = c.oid AND i.indisprimary
LEFT JOIN LATERAL (
    SELECT (i.indkey::int2[])[0:i.indnkeyatts - 1] AS keys FROM pg_catalog.pg_index i
    WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
      AND CASE c.relreplident WHEN 'd' THEN i.indisprimary
                              WHEN 'i' THEN i.indisreplident ELSE false END
) k ON true
WHERE p.pubname = %s AND (%s::text IS NULL OR p.schemaname = %s AND p.tablename = %s)
  AND (a.attgenerated = '' OR current_setting('server_version_num')::int >= 180000)
  AND CASE WHEN to_jsonb(p) ? 'attnames'
           THEN to_jsonb(p) -> 'attnames' ? a.attname ELSE true END
ORDER BY p.schemaname, p.tablename, a.attnum
"""


def relation_of(
    ask: Ask, publication: str, schema: str, table: str, columns: Collection[str] = ()
) -> bytes:
    """The Relation message of a published table, as the log would announce it now, or with some of
    its columns; b"" where the publication does not send it (under this name)."""
    rows = ask(_RELATIONS, publication, schema, schema, table)
    rows = [row for row in rows if not columns or row[4] in columns]
    return _relation(rows) if rows else b""


def schemas_of(ask: Ask, settings: PostgresSettings) -> list[TableSchema]:
    """Those of all followed tables, as they are now; by one question."""
    rows = ask(_RELATIONS, settings.publication, None, None, None)
    tables = {key: list(some) for key, some in groupby(rows, key=itemgetter(0, 1))}
    wanted = {split_table(each) for each in settings.tables} or tables.keys()
    count = Counter(table for _, table in wanted)
    return [
        TableSchema(
            schema=schema,
            table=table,
            name=(table,) if count[table] < 2 else (schema, table),
            version=schema_version(_relation(some)),
            relation_id=some[0][2],
            columns=tuple(
                _column((name, number, kind, base, nullable, default,
                         primary if whole == "f" else key))
                for number, (_, _, _, whole, name, _, _, key, kind, base, nullable, default,
                             primary)
                in enumerate(some, 1)
            ),
        )
        for (schema, table), some in tables.items()
        if (schema, table) in wanted
    ]  # fmt: skip


def _relation(rows: Sequence[tuple[Any, ...]]) -> bytes:
    schema, table, oid, identity = rows[0][:4]
    parts = [b"R", struct.pack(">I", oid), _text(schema), _text(table), identity.encode()]
    parts.append(struct.pack(">H", len(rows)))
    for name, kind, modifier, key in (row[4:8] for row in rows):
        parts += [bytes([key]), _text(name), struct.pack(">Ii", kind, modifier)]
    return b"".join(parts)


def relation_in(raw: bytes) -> Relation:
    """A Relation message (from `R`, no xid), decoded. Raises Malformed."""
    relation = decode_message(raw, lenient=True)
    if not isinstance(relation, Relation):
        raise Malformed(f"{type(relation).__name__} is no Relation message")
    return relation


def schema_of(ask: Ask, settings: PostgresSettings, raw: bytes) -> TableSchema:
    """The schema that a Relation message (from `R`, no xid) announces. Raises Malformed."""
    relation = relation_in(raw)
    columns = relation.columns
    found = ask(
        _COLUMNS,
        [each.name for each in columns],
        [each.type_oid for each in columns],
        [each.type_modifier for each in columns],
        relation.oid,
    )
    whole = relation.replica_identity == "f"  # which marks every column
    return TableSchema(
        schema=relation.namespace,
        table=relation.name,
        name=table_name(ask, settings, relation.namespace, relation.name),
        version=schema_version(raw),
        relation_id=relation.oid,
        columns=tuple(
            _column((name, number, kind, base, nullable, default, primary if whole else column.key))
            for number, (column, (name, kind, base, nullable, default, primary)) in enumerate(
                zip(columns, found, strict=True), 1
            )
        ),
    )


def table_name(ask: Ask, settings: PostgresSettings, schema: str, table: str) -> TableName:
    """What messages and buckets call a table."""
    if settings.tables:
        count = sum(split_table(each)[1] == table for each in settings.tables)
    else:
        count = ask(_NAMESAKES, settings.publication, table)[0][0]
    return (table,) if count < 2 else (schema, table)


def _column(values: tuple[Any, ...]) -> dict[str, Any]:
    return dict(zip(_COLUMN, values, strict=True))


def _text(name: str) -> bytes:
    return name.encode() + b"\0"
