"""The tables of a PostgreSQL database, with their columns, keys and partitions, by one question."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.tables.lines import RelationColumn

# The key is that by which the log identifies rows. Generated columns are not sent.
_TABLES = """
SELECT n.nspname, c.relname, c.relispartition,
       CASE WHEN c.relkind = 'p' THEN ARRAY(
           SELECT l.relname::text FROM pg_catalog.pg_partition_tree(c.oid) t
           JOIN pg_catalog.pg_class l ON l.oid = t.relid WHERE t.isleaf ORDER BY l.relname) END,
       (SELECT coalesce(jsonb_agg(jsonb_build_array(
               a.attname, pg_catalog.format_type(a.atttypid, a.atttypmod),
               coalesce(a.attnum = ANY (k.indkey::int2[]), false), a.atttypid::bigint, a.atttypmod)
               ORDER BY a.attnum), '[]')
        FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '')
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_index k ON k.indrelid = c.oid AND k.indisvalid AND k.indimmediate
    AND CASE c.relreplident WHEN 'i' THEN k.indisreplident WHEN 'n' THEN false
                            ELSE k.indisprimary END
WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
  AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\\_%'
ORDER BY 1, 2
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class InventoriedTable:
    """A table. `partitions`: the names of its leaves, None where it is not partitioned."""

    schema: str
    name: str
    is_partition: bool
    partitions: tuple[str, ...] | None
    columns: tuple[RelationColumn, ...]

    def shown(self) -> dict[str, Any]:
        return {
            each.name: {
                "column_type": each.type, "data_type_oid": each.oid, "primary_key": each.is_key,
            }
            for each in self.columns
        }  # fmt: skip


def inventory(connection: Any) -> Mapping[tuple[str, str], InventoriedTable]:
    """All permanent tables of the database, by (schema, name). Raises psycopg's errors."""
    return {
        (schema, name): InventoriedTable(
            schema=schema, name=name, is_partition=is_partition,
            partitions=None if leaves is None else tuple(leaves),
            columns=tuple(RelationColumn(*each) for each in columns),
        )
        for schema, name, is_partition, leaves, columns in connection.execute(_TABLES.encode())
    }  # fmt: skip
