"""Rows as lines of COPY: images of the form `text`, and what they are of. Pure.

A line has the cells of all columns of its relation: `\\N` is null, `\\U` a value that the source
did not send.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import repeat
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from penstock.wire.document_lines import OF_DOCUMENTS

NULL, UNSENT = "\\N", "\\U"
FIRST_OWN = 10_000  # numbers of types that are not built in
_BUILT_IN = {"name": ""}


class RelationColumn(NamedTuple):
    """A column as the source has it. `type` is a name, `oid` and `modifier` are PostgreSQL's, and
    say what a built-in type is; 0: the name says it."""

    name: str
    type: str
    is_key: bool = False
    oid: int = 0
    modifier: int = -1


def own_type(oid: int) -> int:
    """The number of a type that is not built in; 0 for others, whose name has their modifier."""
    return oid if oid >= FIRST_OWN else 0


class CatalogColumn(NamedTuple):
    """A column of the catalogue. `missing`: what older rows have in it, if not null."""

    number: int
    name: str
    missing: str | None = None


class SourceCatalog(NamedTuple):
    """What a source's catalogue has of a table, not before the changes with its relation: the
    highest number it gave a column, the file with the rows ("": unknown), its columns, and the
    numbers of those that were dropped by older transactions than that of the changes, or by it."""

    last: int
    file: str
    columns: tuple[CatalogColumn, ...]
    gone: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRelation:
    """What lines are of: a version of a source's table."""

    schema: str
    table: str
    columns: tuple[RelationColumn, ...]
    version: str = ""
    catalog: SourceCatalog | None = None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "SourceRelation":
        """The relation in the first change of a page."""
        types = document.get("types") or {}
        columns = tuple(
            RelationColumn(
                each["name"], types.get(str(each["type"]), _BUILT_IN)["name"], each["key"],
                each["type"], each["modifier"],
            )
            for each in document["columns"]
        )  # fmt: skip
        catalog = None
        if found := document.get("catalog"):
            numbers = tuple(CatalogColumn(*each) for each in found["columns"])
            catalog = SourceCatalog(found["last"], found["file"], numbers, tuple(found["gone"]))
        return cls(
            schema=document["schema"], table=document["table"], columns=columns,
            version=document["version"] or "", catalog=catalog,
        )  # fmt: skip

    def to_json(self) -> str:
        """The relation as text; `SourceRelation.of` reads it."""
        # Types that only their names say have a number each.
        oids = [each.oid or -number for number, each in enumerate(self.columns, 1)]
        columns = [
            {"name": each.name, "type": oid, "key": each.is_key, "modifier": each.modifier}
            for oid, each in zip(oids, self.columns, strict=True)
        ]
        types = {
            str(oid): {"name": each.type}
            for oid, each in zip(oids, self.columns, strict=True) if each.type
        }  # fmt: skip
        document: dict[str, Any] = {
            "schema": self.schema, "table": self.table, "version": self.version,
        }  # fmt: skip
        if (catalog := self.catalog) is not None:
            numbers = [[*each] for each in catalog.columns]
            document["catalog"] = catalog._asdict() | {"columns": numbers}
        return orjson.dumps(document | {"columns": columns, "types": types}).decode()

    @property
    def is_of_documents(self) -> bool:
        """Whether rows have a key, and the document as JSON text."""
        return self.version == OF_DOCUMENTS

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def key(self) -> tuple[int, ...]:
        """Which columns are the key."""
        return tuple(number for number, column in enumerate(self.columns) if column.is_key)


def replaced_columns(
    before: Sequence[str], now: Sequence[str]
) -> list[tuple[Sequence[str], Sequence[str]]]:
    """Columns that are gone, and those that stand where they were: a renamed column keeps its place
    among the others, and a new one is after all of them. So between columns that stayed they were
    renamed; at the end they may have been."""
    edits = SequenceMatcher(None, before, now, autojunk=False).get_opcodes()
    return [(before[a:b], now[c:d]) for kind, a, b, c, d in edits if kind == "replace"]


class LineChange(NamedTuple):
    """A change; its images are lines, or rows of another form. `has_unsent`: `after` has unsent
    values. `committed_at`: microseconds since 1970; `cursor` and `ordinal` are its place, and its
    transaction's changes have one cursor. `old`: the key before; a line `before` has it, too."""

    operation: str
    key: Any
    before: Any
    after: Any
    has_unsent: bool = False
    committed_at: int | None = None
    cursor: str = ""
    ordinal: int = 0
    event_id: str = ""
    old: Any = None

    def keys(self, key: Sequence[int]) -> set[Any]:
        """The keys that its row has and had, if there are; `key`: see `old_key`."""
        return {self.key, self.old_key(key)} - {None} if key else set()

    def old_key(self, key: Sequence[int]) -> Any:
        """The key that the row had before; `key`: which columns are the key."""
        if self.before is None or self.old is not None:
            return self.key if self.old is None else self.old
        cells = self.before.split("\t")
        return "\t".join([cells[number] for number in key])


NOTHING = SourceRelation(schema="", table="", columns=())


def changes_of(batch: pa.RecordBatch) -> list[LineChange]:
    """The changes of a batch whose images are lines."""
    columns: Any = batch.column
    unchanged = columns("unchanged")
    has_unsent: Iterable[bool] = repeat(False)
    if len(unchanged.flatten()):
        has_unsent = [bool(count) for count in unchanged.value_lengths().to_pylist()]
    return list(
        map(
            LineChange, columns("operation").to_pylist(), columns("key").to_pylist(),
            columns("before").to_pylist(), columns("after").to_pylist(), has_unsent,
            columns("committed_at").cast(pa.int64()).to_pylist(), columns("cursor").to_pylist(),
            columns("ordinal").to_pylist(), columns("event_id").to_pylist(),
        )
    )  # fmt: skip
