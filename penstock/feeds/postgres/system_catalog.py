"""What a Relation message does not say: types that are not built in, and primary keys.

Asked on an ordinary connection when a relation is announced, never on the hot path. The answer is
of now, the relation perhaps of an hour ago: a type that is gone by now is known by what the log
has of it and by what was stored when it was there. What is not known is told, and decodes as text.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

from penstock.feeds import AnnouncedSchemas
from penstock.feeds.postgres.collecting import KnownRelation
from penstock.feeds.postgres.connect import SideConnection
from penstock.wire.pgoutput.context import TypeEntry
from penstock.wire.pgoutput.messages import Relation, Type, decode_message, schema_version

# OIDs below are the same in every database; from here on they were made by initdb or later.
FIRST_OWN = 10_000

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
SELECT a.attname, i.indexrelid::bigint, i.xmin::text::bigint
FROM pg_catalog.pg_index i
CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, position)
JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indrelid = %s AND i.indisprimary AND i.indisvalid AND i.indimmediate
  AND k.position <= i.indnkeyatts
ORDER BY k.position
"""


_BUILT_IN = """
SELECT typname, oid::bigint FROM pg_catalog.pg_type
WHERE typname = ANY (%s) AND typnamespace = 'pg_catalog'::regnamespace
"""

log = logging.getLogger("penstock")


# A query with parameters -> its rows.
Ask = Callable[..., Sequence[tuple[Any, ...]]]


class Catalogue:
    """Describes relations; asks only for types that it has not seen, and for keys. What is gone is
    known by the log itself (a domain's base type) and by what was `stored`. `unknown` gets a line
    for each table of which a type was not known by any of these."""

    def __init__(
        self,
        side: SideConnection,
        stored: AnnouncedSchemas | None = None,
        unknown: dict[str, str] | None = None,
    ) -> None:
        self._side, self._stored = side, stored
        self._unknown = {} if unknown is None else unknown
        self._types: dict[int, TypeEntry] = {}

    def describe(
        self, raw: bytes, announced: Mapping[int, Type] = MappingProxyType({}), xid: int = 0
    ) -> KnownRelation:
        """What to remember of a Relation message (from `R`, no xid) of a transaction, with the Type
        messages before it. A broken one is for the decoder to judge. Raises Unavailable."""
        relation = decode_message(raw, lenient=True)
        if not isinstance(relation, Relation):
            return KnownRelation(raw=raw)
        names = {column.name for column in relation.columns}
        key: tuple[str, ...] = ()
        if relation.replica_identity == "f":
            key = self._key(relation, raw, xid)
        return KnownRelation(
            raw=raw,
            types=self._entries(relation, announced),
            key=key if names.issuperset(key) else (),
        )

    def _entries(self, relation: Relation, announced: Mapping[int, Type]) -> dict[int, TypeEntry]:
        oids = {column.type_oid for column in relation.columns if column.type_oid >= FIRST_OWN}
        if lacking := oids - self._types.keys():
            self._types |= types_of(self._side.rows, lacking)
        if lacking := oids - self._types.keys():
            self._learn(relation, lacking, announced)
        if lacking := oids - self._types.keys():
            table = f"{relation.namespace}.{relation.name}"
            columns = [one.name for one in relation.columns if one.type_oid in lacking]
            text = (
                f"types of {table} ({', '.join(columns)}) were dropped before its changes were"
                " read: these columns have the source's text"
            )
            if self._unknown.get(table) != text:
                log.warning(text)
            self._unknown[table] = text
        return needed(oids, self._types)

    def _history(self, relation: Relation) -> Sequence[Mapping[str, Any]]:
        stored = self._stored
        return () if stored is None else stored.history(relation.namespace, relation.name)

    def _learn(self, relation: Relation, lacking: Set[int], announced: Mapping[int, Type]) -> None:
        """Types that are gone. The log has the name of a domain's base type under its OID."""
        named = [announced[oid] for oid in lacking & announced.keys()]
        bases = {one.oid: one.name for one in named if one.namespace == "pg_catalog"}
        found = dict(self._side.rows(_BUILT_IN, list(bases.values()))) if bases else {}
        for oid, name in bases.items():
            if name in found:
                self._types[oid] = TypeEntry(kind="d", name=name, inner=found[name])
        if lacking - self._types.keys():
            for document in self._history(relation):
                for oid, entry in _state(document).get("types", {}).items():
                    self._types.setdefault(int(oid), TypeEntry(**entry))
        for one in named:
            if not one.name.startswith("_"):  # no array: its values are text
                self._types.setdefault(one.oid, TypeEntry(kind="e", name=one.name))

    def _key(self, relation: Relation, raw: bytes, xid: int) -> tuple[str, ...]:
        """The primary key, where the message marks all columns. One that is younger than the
        transaction is not the one of then, if another one was stored."""
        found = self._side.rows(_KEY, relation.oid)
        key = tuple(name for name, _, _ in found)
        if not found or not xid or (xid - found[0][2]) % 2**32 < 2**31:
            return key
        before = [
            state["key"]
            for document in self._history(relation)
            if (state := _state(document)) and state["key_index"] != found[0][1]
            and schema_version(raw, state["key"]) == document["version"]
        ]  # fmt: skip
        return tuple(before[-1]) if before else key


def _state(document: Mapping[str, Any]) -> Mapping[str, Any]:
    found = document.get("state") or {}
    return found if "key" in found else {}


def types_of(ask: Ask, oids: Iterable[int]) -> dict[int, TypeEntry]:
    """Those of these types that the catalogue has, and their parts, but for built-in ones."""
    return {
        oid: TypeEntry(
            kind=kind if kind in "daecrm" else "b", name=name, inner=inner, delimiter=delimiter
        )
        for oid, name, kind, inner, delimiter in ask(_TYPES, sorted(oids), FIRST_OWN)
    }


def needed(oids: Iterable[int], known: Mapping[int, TypeEntry]) -> dict[int, TypeEntry]:
    """These types, and those that they are made of."""
    entries: dict[int, TypeEntry] = {}
    left = list(oids)
    while left:
        oid = left.pop()
        if oid in known and oid not in entries:
            entries[oid] = known[oid]
            left.append(known[oid].inner)
    return entries
