"""A relation, made ready for decoding its rows: one per shape of a table, kept across pages."""

from collections.abc import Collection
from typing import Any

from penstock.model.change import Images
from penstock.model.errors import Malformed
from penstock.wire.pgoutput.context import TypeEntry
from penstock.wire.pgoutput.images import Pack, key_text, packer
from penstock.wire.pgoutput.messages import Relation, decode_message
from penstock.wire.pgoutput.reader import ByteReader
from penstock.wire.pgoutput.schema import schema_version
from penstock.wire.pgoutput.values import Converter, Types, converter
from penstock.wire.pgoutput.values.kinds import ValueKind, kind_of


class RowLayout:
    """How the rows of one Relation message are decoded.

    `columns` are (name, converter) in the order of the wire; `key` names the columns that identify
    a row, () if nothing does; `kept` is whether the table passes the filter; `unknown` are types
    delivered as text because they are unknown.
    `fault` is why the relation can't be decoded, and then none of its rows can; `raw` its message,
    and `version` that message's hash.
    """

    __slots__ = (
        "_made_by", "_single", "columns", "fault", "kept", "key",
        "kinds", "old_key", "pack", "plan", "raw", "relation", "unknown", "version",
    )  # fmt: skip

    def __init__(
        self,
        relation: Relation,
        *,
        types: Types,
        keys: tuple[str, ...] | None,
        images: Images,
        tables: Collection[tuple[str, str]] | None,
    ) -> None:
        self.raw = b""
        self.version = ""
        self.fault: Malformed | None = None
        self.relation = relation
        self.kept = tables is None or (relation.namespace, relation.name) in tables
        self.unknown: set[str] = set()
        seen = _Seen(types)
        self.columns: list[tuple[str, Converter]] = [
            (column.name, converter(column.type_oid, seen, images, self.unknown))
            for column in relation.columns
        ]
        # For the native kernel, and what it made of this layout.
        self.kinds: list[ValueKind | None] = [
            kind_of(column.type_oid, seen) for column in relation.columns
        ]
        self.plan: Any = None
        self._made_by = seen.asked, keys
        self.pack: Pack = packer(images)
        flagged = tuple(column.name for column in relation.columns if column.key)
        self.key = flagged
        # What a K tuple carries; the other columns are null in it.
        self.old_key = frozenset(flagged)
        if relation.replica_identity == "f" or not flagged:
            known = {column.name for column in relation.columns}
            self.key = keys if keys and known.issuperset(keys) else ()
        self._single = self.key[0] if len(self.key) == 1 else None

    @classmethod
    def of(
        cls,
        raw: bytes,
        *,
        types: Types,
        keys: dict[int, tuple[str, ...]],
        images: Images,
        tables: Collection[tuple[str, str]] | None,
    ) -> "RowLayout":
        """From a raw Relation message without a streamed xid; raises Malformed."""
        relation = decode_message(raw)
        if not isinstance(relation, Relation):
            raise Malformed(f"a page's context has {type(relation).__name__} among its relations")
        names = keys.get(relation.oid)
        layout = cls(relation, types=types, keys=names, images=images, tables=tables)
        key = layout.key if relation.replica_identity == "f" else ()
        layout.raw, layout.version = raw, schema_version(raw, key)
        return layout

    @classmethod
    def undecodable(
        cls,
        raw: bytes,
        fault: Malformed,
        *,
        keys: dict[int, tuple[str, ...]],
        images: Images,
        tables: Collection[tuple[str, str]] | None,
    ) -> "RowLayout":
        """In place of `of` when that raised `fault`: has the table's OID, and its name as well
        as it can be written. Raises Malformed if there is no OID."""
        reader = ByteReader(raw, lenient=True)
        reader.tag()
        oid = reader.uint32()
        try:
            namespace, name = reader.string(), reader.string()
        except Malformed:
            namespace, name = "", f"relation {oid}"
        relation = Relation(
            xid=None, oid=oid, namespace=namespace, name=name, replica_identity="n", columns=()
        )
        layout = cls(relation, types={}, keys=keys.get(oid), images=images, tables=tables)
        layout.raw, layout.fault, layout.version = raw, fault, schema_version(raw)
        return layout

    def holds(self, types: Types, keys: dict[int, tuple[str, ...]]) -> bool:
        """Whether it would come out the same with these."""
        asked, names = self._made_by
        return keys.get(self.relation.oid) == names and all(
            types.get(oid) == entry for oid, entry in asked.items()
        )

    def identify(
        self, row: dict[str, Any], old: dict[str, Any] | None = None
    ) -> tuple[bytes | None, str | None]:
        """The key's image and the document id of a row.

        Key columns that `row` lacks (an unchanged TOASTed key) come from `old`. (None, None)
        without a key, or if neither has it.
        """
        single = self._single
        if single is not None and single in row:
            value = row[single]
            if type(value) is int:
                return self.pack({single: value}), str(value)
            return self.pack({single: value}), key_text([value])
        if not self.key:
            return None, None
        source = row if old is None else {**old, **row}
        if any(name not in source for name in self.key):
            return None, None
        key = {name: source[name] for name in self.key}
        return self.pack(key), key_text(list(key.values()))


class _Seen(dict[int, TypeEntry]):
    """Types, with a record of those that were looked up, found or not."""

    def __init__(self, types: Types) -> None:
        super().__init__(types)
        self.asked: dict[int, TypeEntry | None] = {}

    def get(self, oid: int, default: Any = None) -> Any:
        entry = super().get(oid, default)
        self.asked[oid] = entry
        return entry
