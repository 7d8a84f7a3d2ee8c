"""A table of a replica: what it is called, its columns, and how far it is. Plain values."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter

State = Literal["loading", "live"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetColumn:
    """A column as the source has it. `data_type` is as PostgreSQL writes it, and `base_type` the
    type that its values are of: of a domain the type under it."""

    name: str
    data_type: str
    base_type: str = ""

    @property
    def type(self) -> str:
        """The type that its values are written as."""
        return self.base_type or self.data_type

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """The column in a document of the bucket `schemas`."""
        return cls(
            name=document["name"],
            data_type=document["data_type"],
            base_type=document.get("base_type") or "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTable:
    """What a table is called, and its columns. `name` is what messages and buckets call it;
    `target` what the target does. `kept`: columns that the source does not have any more.
    `document`: the column that has whole documents, where the source has these; then those of the
    key are JSON text. `revision`: the newest document of the bucket `schemas` that its rows are
    right under. `origin`: the backend and database of its changes, where the document names them.
    """

    name: str
    backend: str
    schema: str
    table: str
    target: str
    columns: tuple[TargetColumn, ...] = ()
    key: tuple[str, ...] = ()
    kept: tuple[TargetColumn, ...] = ()
    document: str = ""
    version: str = ""
    relation_id: int | None = None
    revision: int = 0
    origin: str = ""

    def is_called(self, backend: str, schema: str, table: str) -> bool:
        """Whether messages name the table so."""
        ours = self.backend in ("", backend) and schema in ("", self.schema)
        return ours and table == self.table

    def is_renamed(self, origin: str, relation_id: int | None) -> bool:
        """Whether changes of this table, under another name, are its own."""
        return relation_id is not None and (self.origin, self.relation_id) == (origin, relation_id)

    @property
    def has_documents(self) -> bool:
        """Whether a column is PostgreSQL's json or jsonb, or an array of these."""
        return not self.document and any(
            column.type.removesuffix("[]") in ("json", "jsonb") for column in self.columns
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def with_schema(self, document: Mapping[str, Any]) -> Self:
        """The same table with the columns of a document of the bucket `schemas`."""
        columns = tuple(TargetColumn.of(one) for one in document["columns"])
        key = tuple(one["name"] for one in document["columns"] if one["key"])
        whole = ""
        if document.get("documents"):
            whole = "document"
            while whole in key:
                whole += "_"
            columns = tuple(TargetColumn(name=name, data_type="text") for name in key)
            columns += (TargetColumn(name=whole, data_type="json"),)
        return replace(
            self, columns=columns, key=key, document=whole, version=document["version"],
            origin=document.get("origin") or "",
        )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetTable(NamedTable):
    """A table, and how far it is.

    Changes whose cursor sorts before `cursor` are in the rows of the snapshot; those before
    `last_point` are in some of them, as chunks are of several points in the log: in all that were
    written after the first point; "" once they were applied. Those of messages up to `sequence`
    are applied, of the stream that was made at `created`. `places`: the last change under each
    subject (and of each partition), which a writer that repeats itself sends again. `losses`: of
    the snapshot's meta.
    """

    state: State = "loading"
    snapshot_id: str = ""
    losses: str = ""
    stream: str = ""
    created: str = ""
    cursor: str = ""
    last_point: Annotated[str, Field(alias="settled")] = ""  # as stored tables call it
    sequence: int = 0
    places: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_several_points(self) -> bool:
        """Whether its rows are of several points in the log, and changes between them may come."""
        return bool(self.key) and self.cursor < self.last_point

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = _TABLE.dump_python(self, mode="json", by_alias=True)
        return found

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> "TargetTable":
        return _TABLE.validate_python(document)


_TABLE = TypeAdapter(TargetTable)
