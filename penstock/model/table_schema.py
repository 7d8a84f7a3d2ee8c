"""The schema of a table as a value: what is published of it beside its changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol

# What messages and buckets call a table: (table,), or (schema, table) where followed tables of
# several schemas have that name; the backend's name comes first where a pipeline has several.
TableName = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """A table's columns, and the `version` that changes name (`schema_version`).

    A column has `name`, `position` (from 1), `data_type` as the source writes it, `is_nullable`,
    `column_default` (an expression, or None) and `key`. `is_nullable` and `column_default` are as
    they were when this was made, and may be newer than the version. `position` is the place of the
    source's log at which the schema was announced, where that is known, and `relation_id` what
    changes of the table have as theirs. `suspended`: why the changes of the table are not stored;
    "" for one that is followed, None where it is not known. `is_of_documents`: rows are whole
    documents, and only the columns of their key are known.

    `state` is what decides about rows besides columns, and no log announces: where a table is
    published, by which index its rows are identified, its partitions; docs/reference/messages.md
    has its fields. `origin`: the backend and its database, as messages have them. A schema that
    `is_current` is of the catalogue; any other is of a message of the log that is older than it.
    `sends_all`: changes have all values, also large ones that did not change. `unsent`: generated
    columns that changes lack, where that was asked for. `is_empty`: it is a partition in which no
    row was ever stored, although it was followed already. `sends_deletes`: changes say which rows
    are deleted.
    """

    schema: str
    table: str
    name: TableName
    version: str
    columns: tuple[Mapping[str, Any], ...]
    position: str | None = None
    relation_id: int | None = None
    suspended: str | None = None
    is_of_documents: bool = False
    origin: str = ""
    state: Mapping[str, Any] = field(default_factory=dict)
    is_current: bool = True
    sends_all: bool = False
    unsent: tuple[str, ...] = ()
    is_empty: bool = False
    sends_deletes: bool = True

    def within(self, backend: str) -> "TableSchema":
        """As lines of its documents name it: after its backend, where a source has no schemas."""
        return self if self.schema else replace(self, schema=backend)

    def document(self, now: datetime, pipeline: str) -> dict[str, Any]:
        """Plain JSON; docs/reference/messages.md has every field."""
        return {
            "table": self.table,
            "schema": self.schema,
            "qualified_name": f"{self.schema}.{self.table}",
            "version": self.version,
            "position": self.position,
            "suspended": self.suspended or None,
            "documents": self.is_of_documents,
            "pipeline": pipeline,
            "timestamp": now.isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "columns": list(self.columns),
            "relation_id": self.relation_id,
            "origin": self.origin,
            "state": dict(self.state),
            "current": self.is_current,
        }


class SchemaStore(Protocol):
    """Where the schemas of tables are kept for consumers. Its methods do I/O. They raise
    Unavailable where nobody can be reached, and SettingsError (or what else) where the other side
    is there and does not store. Owned by one thread."""

    def put(self, *schemas: TableSchema) -> Mapping[TableName, int]:
        """Stores each, unless the last one of its table is the same, or it was put before it by
        this store. One that is not current is stored only where its version never was. Returns the
        revisions of the current ones."""

    def history(self, schema: str, table: str) -> Sequence[Mapping[str, Any]]:
        """The documents that are stored of a table, the oldest first."""

    def remove(self, name: TableName) -> None:
        """The table is gone: deletes its schema, if it is this pipeline's."""

    def keep(self, *names: TableName) -> None:
        """Deletes the schemas of this pipeline's other tables: they went while it did not run."""
