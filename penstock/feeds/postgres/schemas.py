"""The schema of a table: what the log announces of it, and what the catalogue adds.

A Relation message has names, types and the replica identity. Whether a column may be null, and its
default, only the catalogue knows: as they are now, which may be newer than the message.
"""

import struct
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from penstock.feeds.postgres.collecting import KnownRelation
from penstock.feeds.postgres.connect import database_name
from penstock.feeds.postgres.settings import PostgresSettings
from penstock.feeds.postgres.system_catalog import FIRST_OWN, Ask, needed, types_of
from penstock.model.errors import Malformed, Unavailable
from penstock.model.table_schema import TableName, TableSchema
from penstock.wire.pgoutput.context import TypeEntry
from penstock.wire.pgoutput.messages import Relation, decode_message, schema_version

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
       pg_catalog.pg_get_expr(d.adbin, d.adrelid)
FROM unnest(%s::text[], %s::oid[], %s::int[]) WITH ORDINALITY AS t (name, type, modifier, number)
LEFT JOIN pg_catalog.pg_attribute a
    ON a.attrelid = %s AND a.attname = t.name AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
ORDER BY t.number
"""

_NAMESAKES = """
SELECT count(DISTINCT schemaname) FROM pg_catalog.pg_publication_tables
WHERE pubname = %s AND tablename = %s
"""

# The tables that a publication sends, and those (by oid) that it would send, if it had them.
_SENT = """(
    SELECT pubname, schemaname, tablename, to_jsonb(t) -> 'attnames' AS sent
    FROM pg_catalog.pg_publication_tables t
    WHERE pubname = %s AND (%s::text IS NULL OR schemaname = %s AND tablename = %s) OFFSET 0)"""
_TO_BE_SENT = """(
    SELECT b.name AS pubname, n.nspname AS schemaname, o.relname AS tablename, (
        SELECT coalesce(jsonb_agg(u.attname), '[]') FROM pg_catalog.pg_attribute u
        WHERE u.attrelid = o.oid AND u.attgenerated IN (
            '', CASE WHEN to_jsonb(p) ->> 'pubgencols' = 's' THEN 's' END)) AS sent
    FROM (SELECT %s::text AS name) b
    LEFT JOIN pg_catalog.pg_publication p ON p.pubname = b.name,
    pg_catalog.pg_class o JOIN pg_catalog.pg_namespace n ON n.oid = o.relnamespace
    WHERE o.oid = ANY (%s::oid[]) OFFSET 0)"""
_UNSENT = """
SELECT attrelid::bigint, attname::text FROM pg_catalog.pg_attribute
WHERE attrelid = ANY (%s::oid[]) AND attgenerated <> '' AND NOT attisdropped ORDER BY attnum
"""

# As pgoutput finds them: the columns that it sends, in their order; those of the replica identity
# (all of them with FULL). PostgreSQL 15 lists generated columns, too, which it does not send. What
# is of the table is with its first column. The transaction that wrote a row (xmin) tells a setting
# that was changed and changed back, and a partition that was detached and attached again. A
# schema's entry in a publication is found by its dependencies: before PostgreSQL 15 there is no
# such catalogue. Functions of the catalogue see what was committed after the statement began: a
# partition counts once its entries in pg_inherits are seen, too. OFFSET: the view makes the list of
# a table's columns (not before PostgreSQL 15) once, and not for each of them. A table's row type is
# written anew for another name or schema alone. A rewrite (also SET UNLOGGED) makes another TOAST
# table, where there is one; TRUNCATE does not.
_RELATIONS = f"""
SELECT p.schemaname, p.tablename, c.oid, c.relreplident::text,
       a.attname, a.atttypid, a.atttypmod,
       c.relreplident = 'f' OR coalesce(a.attnum = ANY (k.keys), false),
       pg_catalog.format_type(a.atttypid, a.atttypmod),
       {_BASE % ("a.atttypid", "a.atttypmod")}, NOT a.attnotnull,
       pg_catalog.pg_get_expr(d.adbin, d.adrelid), a.attnum,
       a.atthasmissing OR c.relkind = 'p' AND EXISTS (
           SELECT FROM pg_catalog.pg_partition_tree(c.oid) t JOIN pg_catalog.pg_attribute m
           ON m.attrelid = t.relid AND m.attname = a.attname AND m.atthasmissing),
       a.attgenerated <> '', k.keys,
       CASE WHEN row_number() OVER (PARTITION BY c.oid ORDER BY a.attnum) = 1
            THEN jsonb_build_object(
    'last_number', c.relnatts, 'file', pg_catalog.pg_relation_filenode(c.oid)::bigint,
    'key_index', k.index::bigint,
    'named', (SELECT t.xmin::text FROM pg_catalog.pg_type t WHERE t.oid = c.reltype),
    'toast', c.reltoastrelid::bigint,
    'attached', CASE WHEN c.relispartition THEN (
        SELECT string_agg(i.xmin::text, ' ' ORDER BY i.inhrelid)
        FROM pg_catalog.pg_partition_ancestors(c.oid) a
        JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.relid) END,
    'is_listed', EXISTS (
        SELECT FROM pg_catalog.pg_publication_rel r
        WHERE r.prpubid = pub.oid AND r.prrelid = c.oid),
    'publication', jsonb_build_object(
        'oid', pub.oid::bigint, 'written', pub.xmin::text,
        'all_tables', pub.puballtables, 'via_root', pub.pubviaroot,
        'publish', concat_ws(',', CASE WHEN pub.pubinsert THEN 'insert' END,
            CASE WHEN pub.pubupdate THEN 'update' END, CASE WHEN pub.pubdelete THEN 'delete' END,
            CASE WHEN pub.pubtruncate THEN 'truncate' END),
        'entries', (
            SELECT jsonb_agg(e.entry ORDER BY e.entry) FROM (
                SELECT c.oid AS relid UNION
                SELECT relid FROM pg_catalog.pg_partition_ancestors(c.oid)) own
            JOIN pg_catalog.pg_class o ON o.oid = own.relid
            CROSS JOIN LATERAL (
                SELECT jsonb_build_object(
                    'oid', r.oid::bigint, 'columns', to_jsonb(r) ->> 'prattrs',
                    'filter', md5(to_jsonb(r) ->> 'prqual')) AS entry
                FROM pg_catalog.pg_publication_rel r
                WHERE r.prpubid = pub.oid AND r.prrelid = own.relid
                UNION ALL
                SELECT jsonb_build_object('oid', s.objid::bigint)
                FROM pg_catalog.pg_depend s JOIN pg_catalog.pg_depend b
                ON b.classid = s.classid AND b.objid = s.objid AND b.refobjid = pub.oid
                    AND b.refclassid = 'pg_catalog.pg_publication'::regclass
                WHERE s.classid = to_regclass('pg_catalog.pg_publication_namespace')
                  AND s.refclassid = 'pg_catalog.pg_namespace'::regclass
                  AND s.refobjid = o.relnamespace) e)),
    'partitions', CASE WHEN c.relkind = 'p' THEN (
        SELECT coalesce(jsonb_agg(jsonb_build_array(
            t.relid::oid::bigint,
            concat_ws(' ', pg_catalog.pg_relation_filenode(t.relid), attached.by),
            pg_catalog.pg_relation_size(t.relid) = 0) ORDER BY t.relid::oid), '[]')
        FROM pg_catalog.pg_partition_tree(c.oid) t, LATERAL (
            SELECT string_agg(i.xmin::text, ' ' ORDER BY i.inhrelid) AS by,
                   count(i.inhrelid) AS seen, count(*) AS ancestors
            FROM pg_catalog.pg_partition_ancestors(t.relid) a
            LEFT JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.relid) attached
        WHERE t.isleaf AND attached.seen = attached.ancestors - 1) END) END
FROM {_SENT} p
LEFT JOIN pg_catalog.pg_publication pub ON pub.pubname = p.pubname
JOIN pg_catalog.pg_namespace n ON n.nspname = p.schemaname
JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    AND (a.attgenerated = '' OR current_setting('server_version_num')::int >= 180000)
    AND (p.sent IS NULL OR p.sent ? a.attname)
LEFT JOIN pg_catalog.pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
LEFT JOIN LATERAL (
    SELECT i.indexrelid AS index, (i.indkey::int2[])[0:i.indnkeyatts - 1] AS keys
    FROM pg_catalog.pg_index i
    WHERE i.indrelid = c.oid AND i.indisvalid AND i.indimmediate
      AND CASE c.relreplident WHEN 'i' THEN i.indisreplident WHEN 'n' THEN false
                              ELSE i.indisprimary END
) k ON true
WHERE %s::oid IS NULL OR c.oid = %s
ORDER BY p.schemaname, p.tablename, a.attnum
"""


# As they are now: the columns that are sent, with their numbers, and what rows of before a column
# was added have in it, where they do not store it (of a partitioned table: in its leaves); columns
# that were dropped, and by which transaction. The files tell whether the rows were written anew.
# Without functions that wait for locks.
_NUMBERS = """
WITH RECURSIVE tree (oid) AS (
    SELECT %s::oid
    UNION ALL
    SELECT i.inhrelid FROM tree JOIN pg_catalog.pg_class r ON r.oid = tree.oid AND r.relkind = 'p'
    JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid)
SELECT c.relnatts::int, (
           SELECT CASE count(*) WHEN 1 THEN min(f.file) ELSE
                  md5(string_agg(f.file, ' ' ORDER BY f.oid)) END
           FROM (SELECT t.oid, coalesce(pg_catalog.pg_relation_filenode(t.oid)::text, '') AS file
                 FROM tree t) AS f),
       a.attnum::int, CASE WHEN NOT a.attisdropped THEN a.attname::text END, (
           SELECT (m.attmissingval::text::text[])[1] FROM tree t
           JOIN pg_catalog.pg_attribute m ON m.attrelid = t.oid
           WHERE m.attname = a.attname AND m.atthasmissing LIMIT 1), a.xmin::text::bigint
FROM pg_catalog.pg_class c
JOIN (SELECT c.oid, to_jsonb(t) -> 'attnames' AS sent
      FROM pg_catalog.pg_publication_tables t, pg_catalog.pg_class c
      WHERE pubname = %s AND c.oid = %s AND tablename = c.relname
        AND schemaname = (SELECT nspname FROM pg_catalog.pg_namespace WHERE oid = c.relnamespace)
      OFFSET 0) p ON p.oid = c.oid
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
WHERE (a.attgenerated = '' OR current_setting('server_version_num')::int >= 180000)
  AND (a.attisdropped OR p.sent IS NULL OR p.sent ? a.attname)
ORDER BY a.attnum
"""

# What the texts of values depend on: attributes and labels of these types, and of their parts.
_SHAPES = """
WITH RECURSIVE needed (root, oid) AS (
    SELECT u, u FROM unnest(%s::oid[]) u
    UNION
    SELECT n.root, p.part FROM needed n JOIN pg_catalog.pg_type t ON t.oid = n.oid,
    LATERAL (
        SELECT t.typbasetype UNION ALL SELECT t.typelem
        UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid
        UNION ALL SELECT a.atttypid FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped) p (part)
    WHERE p.part >= %s)
SELECT n.root::bigint, n.oid::text, jsonb_build_object(
    'attributes', (
        SELECT jsonb_agg(jsonb_build_array(a.attnum, a.attname, a.atttypid::bigint, a.atttypmod)
                         ORDER BY a.attnum)
        FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped),
    'labels', (
        SELECT jsonb_object_agg(e.oid::text, e.enumlabel)
        FROM pg_catalog.pg_enum e WHERE e.enumtypid = t.oid))
FROM needed n JOIN pg_catalog.pg_type t ON t.oid = n.oid
WHERE t.typrelid <> 0 OR t.typtype = 'e'
"""

_EMPTY = """
SELECT u.oid::bigint FROM unnest(%s::oid[]) AS u (oid)
WHERE (SELECT sum(pg_catalog.pg_relation_size(t.relid)) = 0
       FROM pg_catalog.pg_partition_tree(u.oid) t)
"""


class _Row(NamedTuple):
    """A column of a published table; null from `name` on where the table has no columns."""

    schema: str
    table: str
    oid: int
    identity: str
    name: str
    type: int
    modifier: int
    flagged: bool
    data_type: str
    base_type: str
    is_nullable: bool
    default: str | None
    number: int
    has_missing: bool
    is_generated: bool
    keys: list[int] | None
    state: Mapping[str, Any] | None


class _OwnTypes(NamedTuple):
    """Types that are not built in. `shapes`: a type, a part of it, and how values of that look."""

    entries: Mapping[int, TypeEntry]
    shapes: Sequence[tuple[int, str, Mapping[str, Any]]]

    def of(self, oids: Collection[int]) -> dict[str, Any]:
        """What documents of a table have of these."""
        own = needed(oids, self.entries)
        return {
            "types": {str(oid): asdict(entry) for oid, entry in own.items()},
            "shapes": {part: shape for root, part, shape in self.shapes if root in oids},
        }


_NO_TYPES = _OwnTypes({}, ())


def relation_of(
    ask: Ask,
    publication: str,
    schema: str,
    table: str,
    columns: Collection[str] = (),
    *,
    to_be: Collection[int] = (),
) -> bytes:
    """The Relation message of a published table, as the log would announce it now, or with some of
    its columns; b"" where the publication does not send it (under this name). `to_be`: that of this
    table (by oid), as if the publication had it."""
    rows = list(map(_Row._make, ask(_RELATIONS, publication, schema, schema, table, None, None)))
    if not rows and to_be:
        made = _RELATIONS.replace(_SENT, _TO_BE_SENT)
        rows = list(map(_Row._make, ask(made, publication, [*to_be], None, None)))
    rows = [row for row in rows if not columns or row.name in columns]
    return _relation(rows) if rows else b""


def schemas_of(ask: Ask, settings: PostgresSettings, oid: int | None = None) -> list[TableSchema]:
    """Those of all followed tables, or of one, as they are now; by one question, or three."""
    return [_schema(settings, *one) for one in _followed(ask, settings, oid)]


def schemas_to_be(ask: Ask, settings: PostgresSettings, oids: Sequence[int]) -> list[TableSchema]:
    """Those of all followed tables, and of these as they will be once they are; with the generated
    columns that changes lack."""
    now = schemas_of(ask, settings)
    wanted = sorted({*oids} - {each.relation_id for each in now})
    made = _RELATIONS.replace(_SENT, _TO_BE_SENT)
    rows = ask(made, settings.publication, wanted, None, None)
    now += [_schema(settings, *one) for one in _named(ask, settings, map(_Row._make, rows))]
    unsent = [*ask(_UNSENT, [each.relation_id for each in now])]
    return [
        replace(each, unsent=tuple(
            name for oid, name in unsent
            if oid == each.relation_id and all(name != column["name"] for column in each.columns)
        ))
        for each in now
    ]  # fmt: skip


def with_emptiness(ask: Ask, schemas: Sequence[TableSchema]) -> Sequence[TableSchema]:
    """The same, with which partitions are empty; of all of them nothing is said where one is locked
    for long. Rows that are not committed yet count."""
    leaves = [each.relation_id for each in schemas if each.state.get("attached")]
    with suppress(Unavailable):
        empty = {oid for (oid,) in ask(_EMPTY, leaves)} if leaves else ()
        return [replace(each, is_empty=each.relation_id in empty) for each in schemas]
    return schemas


def numbered_columns(ask: Ask, publication: str, oid: int, xid: int) -> Any:
    """What the catalogue has now of the columns of a relation that a transaction announced, for
    `Context.catalogs`; None where the publication does not send it any more."""
    rows = ask(_NUMBERS, oid, publication, oid)
    if not rows:
        return None
    return {
        "last": rows[0][0], "file": rows[0][1],
        "columns": [[number, name, value] for _, _, number, name, value, _ in rows if name],
        "gone": [
            number for _, _, number, name, _, by in rows
            if not name and (xid - by) % 2**32 < 2**31
        ],
    }  # fmt: skip


def announced(ask: Ask, settings: PostgresSettings, known: KnownRelation) -> list[TableSchema]:
    """What a Relation message announces of a followed table: the table as it is now, and before
    that the table of the message, where that is older. Raises Malformed."""
    relation, version = relation_in(known.raw), schema_version(known.raw, known.key)
    found = []
    for one in _followed(ask, settings, relation.oid):
        now, names = _schema(settings, *one), (relation.namespace, relation.name)
        if version != now.version and names == (now.schema, now.table):
            columns = _past_columns(ask, relation, known.key)
            found.append(replace(now, version=version, columns=columns, state={}, is_current=False))
        found.append(now)
    return found


def _followed(
    ask: Ask, settings: PostgresSettings, oid: int | None
) -> Iterator[tuple[list[_Row], TableName, "_OwnTypes"]]:
    rows = ask(_RELATIONS, settings.publication, None, None, None, oid, oid)
    return _named(ask, settings, map(_Row._make, rows), oid)


def _named(
    ask: Ask, settings: PostgresSettings, found: Iterable[_Row], oid: int | None = None
) -> Iterator[tuple[list[_Row], TableName, "_OwnTypes"]]:
    """Each table's columns, its name in messages and buckets, and types that are not built in."""
    tables = {key: list(some) for key, some in groupby(found, key=itemgetter(0, 1))}
    is_narrow = bool(settings.tables)
    ours = settings.table_names or {key for key in tables if settings.follows(*key)}
    count = Counter(table for _, table in ours)
    own = {row.type for rows in tables.values() for row in _columns(rows)
           if row.type >= FIRST_OWN}  # fmt: skip
    types = _OwnTypes(types_of(ask, own), ask(_SHAPES, [*own], FIRST_OWN)) if own else _NO_TYPES
    for (schema, table), rows in tables.items():
        if oid is not None and not is_narrow:
            count[table] = ask(_NAMESAKES, settings.publication, table)[0][0]
        if settings.follows(schema, table):
            yield rows, (table,) if count[table] < 2 else (schema, table), types


def _past_columns(
    ask: Ask, relation: Relation, key: Sequence[str]
) -> tuple[Mapping[str, Any], ...]:
    """Those of a message. What else the catalogue has of them is of now."""
    columns, is_whole = relation.columns, relation.replica_identity == "f"
    found = ask(
        _COLUMNS,
        [each.name for each in columns],
        [each.type_oid for each in columns],
        [each.type_modifier for each in columns],
        relation.oid,
    )
    return tuple(
        {
            "name": name, "position": position, "data_type": kind, "base_type": base,
            "is_nullable": nullable, "column_default": default,
            "key": name in key if is_whole else column.key,
        }
        for position, (column, (name, kind, base, nullable, default)) in enumerate(
            zip(columns, found, strict=True), 1
        )
    )  # fmt: skip


def _schema(
    settings: PostgresSettings,
    rows: Sequence[_Row],
    name: TableName,
    types: _OwnTypes,
) -> TableSchema:
    first, columns = rows[0], _columns(rows)
    names = {row.number: row.name for row in columns}
    keys = first.keys or []
    key = tuple(names[number] for number in keys) if names.keys() >= set(keys) else ()
    state = {**(first.state or {}), "key": list(key), **types.of({row.type for row in columns})}
    if not state["publication"]["via_root"]:
        state["partitions"] = None  # each leaf is a table
    return TableSchema(
        schema=first.schema,
        table=first.table,
        name=name,
        version=schema_version(_relation(rows), key if first.identity == "f" else ()),
        origin=f"{settings.name}/{database_name(settings)}",
        relation_id=first.oid,
        sends_all=first.identity == "f",
        state=state if key else {**state, "key_index": None},
        columns=tuple(
            {
                "name": row.name, "position": position, "data_type": row.data_type,
                "base_type": row.base_type, "is_nullable": row.is_nullable,
                "column_default": row.default, "key": row.name in key, "number": row.number,
                "type": row.type, "has_missing": row.has_missing, "is_generated": row.is_generated,
            }
            for position, row in enumerate(columns, 1)
        ),
    )  # fmt: skip


def _columns(rows: Sequence[_Row]) -> Sequence[_Row]:
    return [row for row in rows if row.number]


def _relation(rows: Sequence[_Row]) -> bytes:
    first, columns = rows[0], _columns(rows)
    parts = [b"R", struct.pack(">I", first.oid), _text(first.schema), _text(first.table)]
    parts += [first.identity.encode(), struct.pack(">H", len(columns))]
    for row in columns:
        parts += [bytes([row.flagged]), _text(row.name), struct.pack(">Ii", row.type, row.modifier)]
    return b"".join(parts)


def relation_in(raw: bytes) -> Relation:
    """A Relation message (from `R`, no xid), decoded. Raises Malformed."""
    relation = decode_message(raw, lenient=True)
    if not isinstance(relation, Relation):
        raise Malformed(f"{type(relation).__name__} is no Relation message", "postgres")
    return relation


def _text(name: str) -> bytes:
    return name.encode() + b"\0"
