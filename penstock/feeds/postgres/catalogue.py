"""What a Relation message does not say: types that are not built in, and primary keys.

Asked on an ordinary connection when a relation is announced, never on the hot path. The answer is
of now, the relation perhaps of an hour ago: what no longer fits is left out, and decodes as text.
"""

from collections.abc import Iterable

from penstock.feeds.postgres.connect import SideConnection
from penstock.feeds.postgres.pages import KnownRelation
from penstock.wire.pgoutput.context import TypeEntry
from penstock.wire.pgoutput.messages import Relation, decode_message

# OIDs below are the same in every database; from here on they were made by initdb or later.
_FIRST_OWN = 10_000

_TYPES = """
WITH RECURSIVE needed (oid) AS (
    SELECT unnest(%s::oid[])
    UNION
    SELECT CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE t.typelem END
    FROM needed JOIN pg_catalog.pg_type t ON t.oid = needed.oid
    WHERE t.typtype = 'd' OR (t.typcategory = 'A' AND t.typelem <> 0)
)
SELECT t.oid, t.typname,
       CASE WHEN t.typcategory = 'A' AND t.typelem <> 0 AND t.typtype = 'b' THEN 'a'
            ELSE t.typtype::text END,
       CASE WHEN t.typtype = 'd' THEN t.typbasetype
            WHEN t.typcategory = 'A' THEN t.typelem ELSE 0 END,
       coalesce(e.typdelim, t.typdelim)::text
FROM needed
JOIN pg_catalog.pg_type t ON t.oid = needed.oid
LEFT JOIN pg_catalog.pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'
WHERE t.oid >= %s
"""

_KEY = """
SELECT a.attname
FROM pg_catalog.pg_index i
CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, position)
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %s AND i.indisprimary
ORDER BY k.position
"""


class Catalogue:
    """Describes relations; asks only for types that it has not seen, and for keys."""

    def __init__(self, side: SideConnection) -> None:
        self._side = side
        self._types: dict[int, TypeEntry] = {}

    def describe(self, raw: bytes) -> KnownRelation:
        """What to remember of a Relation message (from `R`, no xid). Raises Unavailable when the
        catalogue can't be asked. What a broken message is worth, the decoder says."""
        relation = decode_message(raw, lenient=True)
        if not isinstance(relation, Relation):
            return KnownRelation(raw=raw)
        names = {column.name for column in relation.columns}
        key: tuple[str, ...] = ()
        if relation.replica_identity == "f":
            key = self._key(relation.oid)
        return KnownRelation(
            raw=raw,
            types=self._entries(column.type_oid for column in relation.columns),
            key=key if names.issuperset(key) else (),
        )

    def _entries(self, oids: Iterable[int]) -> dict[int, TypeEntry]:
        own = {oid for oid in oids if oid >= _FIRST_OWN}
        unknown = own - self._types.keys()
        if unknown:
            for oid, name, kind, inner, delimiter in self._side.rows(
                _TYPES, sorted(unknown), _FIRST_OWN
            ):
                self._types[oid] = TypeEntry(
                    kind=kind if kind in "daecrm" else "b",
                    name=name,
                    inner=inner,
                    delimiter=delimiter,
                )
        entries: dict[int, TypeEntry] = {}
        while own:
            oid = own.pop()
            entry = self._types.get(oid)
            if entry is not None and oid not in entries:
                entries[oid] = entry
                own.add(entry.inner)
        return entries

    def _key(self, oid: int) -> tuple[str, ...]:
        return tuple(name for (name,) in self._side.rows(_KEY, oid))
