"""A relation, made ready for decoding its rows: one per shape of a table, kept across pages; and
their images: maps in JSON or MessagePack, or lines of COPY.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson
import ormsgpack

from penstock.model.change import Images, OnError
from penstock.model.errors import Malformed, SettingsError
from penstock.model.images import base64_of
from penstock.wire.pgoutput.context import Context, TypeEntry
from penstock.wire.pgoutput.frames import ByteReader
from penstock.wire.pgoutput.messages import Relation, decode_message, schema_version
from penstock.wire.pgoutput.values import Types, ValueKind, Written, value_of
from penstock.wire.pgoutput.values.scalars import Converter, text

TENANT_FIELD = "field:"

# A map of column values -> a row image. Raises TypeError on a value that the encoding can't hold.
Pack = Callable[[Any], bytes]

# What a row of a relation is decoded with: (name, converter) in the order of the wire.
Cells = list[tuple[str, Converter]]

# copyto.c, CopyAttributeOutText. (In a class, \b is a backspace.)
_SPECIAL = re.compile(r"[\\\b\f\n\r\t\v]")
_ESCAPES = str.maketrans({"\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r",
                          "\t": "\\t", "\v": "\\v"})  # fmt: skip
_NULL, _UNSENT = "\\N", "\\U"

_PACKERS: Mapping[Images, Pack] = {
    "json": orjson.dumps, "msgpack": ormsgpack.packb, "text": orjson.dumps,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSettings:
    """What a decoder must know besides its pages.

    `tenant` is a rule: `none`, `database`, or `field:<column>` (that column of the new row, of the
    old one for a delete; null where there is none). `tables` narrows to these (schema, table).
    `on_error`: with `stop` a change that can't be read makes its page Malformed; else it is a
    change of its own, with the operation ERROR, and all others are as ever. `sid`: of one source of
    several, whose cursors do not tell them apart: event ids are `backend:SID:cursor:ordinal`.
    `values`: how values are written; unless `typed`, an old key has all columns, null elsewhere.
    """

    backend: str
    database: str
    tenant: str = "none"
    tables: frozenset[tuple[str, str]] | None = None
    images: Images = "json"
    on_error: OnError = "stop"
    sid: str = ""
    values: Written = "typed"

    def __post_init__(self) -> None:
        if self.tenant not in ("none", "database") and not self.tenant_column:
            raise SettingsError(
                f"{self.tenant!r} is no rule for tenants",
                "wire",
                hint="none, database or field:<column>",
            )

    @property
    def events(self) -> str:
        """What event ids begin with."""
        return f"{self.backend}:{self.sid}" if self.sid else self.backend

    @property
    def tenant_column(self) -> str | None:
        head, column = self.tenant[: len(TENANT_FIELD)], self.tenant[len(TENANT_FIELD) :]
        return column if head == TENANT_FIELD else None

    @property
    def pack(self) -> Pack:
        """What turns a map into an image; with `text` only of what is no row."""
        return _PACKERS[self.images]


class Maps:
    """Row images that are maps of column name to value. Of one relation, as `Lines`: a row maps
    columns to what `cells` makes of them; `row` is the image of one as far as it was sent, `key`
    that of all columns of the key, and of `values` the document id and the tenant are made."""

    def __init__(self, cells: Cells, pack: Pack) -> None:
        self.cells = cells
        self.row = self.key = pack

    def values(self, row: Mapping[str, Any]) -> list[Any]:
        return list(row.values())


class Lines:
    r"""Row images that are lines of COPY's text format without their end: all columns in the
    relation's order, parted by tabs. Null is `\N`, and `\U` a column that was not sent, or (of a K
    tuple) is no key.
    `identifying` are the columns whose text is converted as well: the key's, the tenant's."""

    def __init__(self, cells: Cells, key: Sequence[str], identifying: Sequence[str | None]) -> None:
        self._converters = {name: convert for name, convert in cells if name in identifying}
        self.cells: Cells = [(name, text) for name, _ in cells]
        self._names = [name for name, _ in cells]
        self._key = [name for name in self._names if name in key]

    def row(self, row: dict[str, Any]) -> bytes:
        return _line(row, self._names)

    def key(self, key: dict[str, Any]) -> bytes:
        return _line(key, self._key)

    def values(self, row: Mapping[str, Any]) -> list[Any]:
        return [
            None if value is None else self._converters.get(name, text)(value.encode())
            for name, value in row.items()
        ]


def _line(row: Mapping[str, str | None], names: Sequence[str]) -> bytes:
    if _SPECIAL.search("\0".join(filter(None, row.values()))):
        row = {name: value and value.translate(_ESCAPES) for name, value in row.items()}
    cells = [row.get(name, _UNSENT) for name in names]
    return "\t".join([_NULL if cell is None else cell for cell in cells]).encode()


class RowLayout:
    """How the rows of one Relation message are decoded.

    `images` makes their images, and has what converts their columns; `kinds` is what the native
    kernel knows these as; `key` names the columns that identify a row, () if nothing does;
    `old_key` those that are taken of a K tuple (it has null for all that are no key); `kept` is
    whether the table passes the filter; `unknown` are types delivered as text because they are
    unknown.
    `fault` is why the relation can't be decoded, and then none of its rows can; `raw` its message,
    `version` that message's hash, and `plan` what the native kernel made of it all.
    """

    __slots__ = (
        "_made_by", "_single", "fault", "images", "kept", "key",
        "kinds", "old_key", "plan", "raw", "relation", "unknown", "version",
    )  # fmt: skip

    def __init__(
        self,
        relation: Relation,
        raw: bytes,
        context: Context,
        settings: DecoderSettings,
        fault: Malformed | None = None,
    ) -> None:
        keys, seen = context.keys.get(relation.oid), _Seen(context.types)
        catalog = context.catalogs.get(relation.oid)
        self.raw, self.relation, self.fault = raw, relation, fault
        tables = settings.tables
        self.kept = tables is None or (relation.namespace, relation.name) in tables
        self.unknown: set[str] = set()
        cells: Cells = []
        self.kinds: list[ValueKind | None] = []
        for column in relation.columns:
            convert, kind = value_of(
                column.type_oid, seen, settings.images, self.unknown, values=settings.values
            )
            cells.append((column.name, convert))
            self.kinds.append(kind)
        self.plan: Any = None
        self._made_by = seen.asked, keys, catalog
        flagged = tuple(column.name for column in relation.columns if column.key)
        known = {column.name for column in relation.columns}
        self.key, self.old_key = flagged, frozenset(flagged)
        if settings.values != "typed":
            self.old_key = frozenset(known)
        is_full = relation.replica_identity == "f"
        if is_full or not flagged:
            self.key = keys if keys and known.issuperset(keys) else ()
        self._single = self.key[0] if len(self.key) == 1 else None
        self.images: Maps | Lines = (
            Lines(cells, self.key, [*self.key, settings.tenant_column])
            if settings.images == "text"
            else Maps(cells, settings.pack)
        )
        self.version = schema_version(raw, self.key if is_full else ())

    @classmethod
    def of(cls, raw: bytes, context: Context, settings: DecoderSettings) -> "RowLayout":
        """From a raw Relation message without a streamed xid. Raises Malformed; but where errors
        are no reason to stop, only if it has no OID."""
        try:
            relation = decode_message(raw)
            if not isinstance(relation, Relation):
                what = type(relation).__name__
                raise Malformed(f"a page's context has {what} among its relations", "wire")
            return cls(relation, raw, context, settings)
        except Malformed as fault:
            if settings.on_error == "stop":
                raise
            return cls(_undecodable(raw), raw, context, settings, fault)

    def holds(self, context: Context) -> bool:
        """Whether it would come out the same in this context."""
        (asked, names, catalog), oid = self._made_by, self.relation.oid
        is_same = (context.keys.get(oid), context.catalogs.get(oid)) == (names, catalog)
        return is_same and all(context.types.get(oid) == entry for oid, entry in asked.items())

    @property
    def columns(self) -> Cells:
        """(name, converter) in the order of the wire."""
        return self.images.cells

    @property
    def description(self) -> bytes:
        """The relation, for readers of lines; see `change.schema`."""
        types, _, catalog = self._made_by
        relation = self.relation
        return orjson.dumps({
            "schema": relation.namespace, "table": relation.name, "relation_id": relation.oid,
            "version": self.version,
            "columns": [
                {
                    "name": column.name, "type": column.type_oid,
                    "modifier": column.type_modifier, "key": column.name in self.key,
                }
                for column in relation.columns
            ],
            "types": {str(oid): asdict(entry) for oid, entry in types.items() if entry},
            **({} if catalog is None else {"catalog": catalog}),
        })  # fmt: skip

    def identify(
        self, row: dict[str, Any], old: dict[str, Any] | None = None
    ) -> tuple[bytes | None, str | None]:
        """The key's image and the document id of a row. Key columns that `row` lacks (an unchanged
        TOASTed key) come from `old`. (None, None) without a key, or if neither has it."""
        if (single := self._single) is not None and single in row:
            value = row[single]
            key = {single: value}
            if type(value) is int:
                return self.images.key(key), str(value)
            return self.images.key(key), self.text_of(key)
        if not self.key:
            return None, None
        source = row if old is None else {**old, **row}
        if any(name not in source for name in self.key):
            return None, None
        key = {name: source[name] for name in self.key}
        return self.images.key(key), self.text_of(key)

    def text_of(self, row: Mapping[str, Any]) -> str:
        """The document id of a key; of another column what it would be."""
        return key_text(self.images.values(row))


def _undecodable(raw: bytes) -> Relation:
    """In place of a relation that can't be decoded: has the table's OID, and its name as well as it
    can be written. Raises Malformed if there is no OID."""
    reader = ByteReader(raw, lenient=True)
    reader.tag()
    oid = reader.uint32()
    try:
        namespace, name = reader.string(), reader.string()
    except Malformed:
        namespace, name = "", f"relation {oid}"
    return Relation(
        xid=None, oid=oid, namespace=namespace, name=name, replica_identity="n", columns=()
    )


class _Seen(dict[int, TypeEntry]):
    """Types, with a record of those that were looked up, found or not."""

    def __init__(self, types: Types) -> None:
        super().__init__(types)
        self.asked: dict[int, TypeEntry | None] = {}

    def get(self, oid: int, default: Any = None) -> Any:
        entry = super().get(oid, default)
        self.asked[oid] = entry
        return entry


def key_text(values: list[Any]) -> str:
    """The document id: one text as it is, one other value as JSON, several as a JSON array.
    Compact, and the same whichever way images are encoded: bytes are base64."""
    plain: Any = [_plain(value) for value in values]
    if len(plain) == 1:
        (plain,) = plain
    return plain if isinstance(plain, str) else orjson.dumps(plain).decode()


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            return base64_of(value)
        case orjson.Fragment():
            return orjson.dumps(value).decode()
        case list():
            return [_plain(item) for item in value]
        case _:
            return value
