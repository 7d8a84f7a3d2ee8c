"""Rows of a source's table as they would be at the destination, of which nothing stays there."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, Protocol, runtime_checkable

from penstock.model.errors import PenstockError, Rejected, SettingsError
from penstock.model.table_schema import TableSchema
from penstock.sinks.tables.check import to_be_made
from penstock.sinks.tables.fitness import taken, unfit, unset, wrong_expressions
from penstock.sinks.tables.settings import MappedTable, TableSinkSettings
from penstock.sinks.tables.source_table import relation_of
from penstock.tables.database import TableDatabase
from penstock.tables.lines import SourceRelation
from penstock.tables.staged import Destination


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewedRow:
    """A row of the source, and as it would be at the destination: not at all, where neither `after`
    nor a `problem` is there."""

    before: dict[str, Any]
    after: dict[str, Any] | None = None
    problem: PenstockError | None = None


class PreviewsTable(Protocol):
    """Makes rows of lines, of a table of the source with this name."""

    def __call__(
        self, table: MappedTable, sid: str, schema: TableSchema, lines: Sequence[str]
    ) -> Sequence[PreviewedRow]:
        """Raises Unavailable, and SettingsError for what the table would wait with."""


@runtime_checkable
class PreviewsTables(Protocol):
    """A sink that can show what it would write."""

    settings: TableSinkSettings

    def previewing(self) -> AbstractContextManager[PreviewsTable]:
        """A transaction at the destination, which is rolled back. Raises as `PreviewsTable`
        does."""
        ...


@contextmanager
def previewing(settings: TableSinkSettings) -> Iterator[PreviewsTable]:
    """See `PreviewsTables`."""
    database = settings.database()

    def preview(
        table: MappedTable, sid: str, schema: TableSchema, lines: Sequence[str]
    ) -> Sequence[PreviewedRow]:
        relation = relation_of(schema)
        # What fails ends with its savepoint: other tables come after it.
        with database.translated("previewing"), cursor.connection.transaction():
            found = _destination(database, cursor, table, relation)
            staged = database.staged(relation, found, table.mapping(sid, found))
            wrong = wrong_expressions(cursor, database, staged)
            for problem in chain(taken(table, relation, [*found.columns]), unfit(staged), wrong):
                raise problem
        rows = []
        for line in lines:
            try:
                with database.translated("previewing"), cursor.connection.transaction():
                    before, after = staged.preview(cursor, line)
            except Rejected as error:
                cells = line.split("\t")
                rows.append(
                    PreviewedRow(
                        before=dict(zip(relation.names, cells, strict=True)), problem=error
                    )
                )
            else:
                rows.append(PreviewedRow(before=before, after=after))
        return rows

    with database.previewing() as cursor:
        yield preview


def _destination(
    database: TableDatabase, cursor: Any, table: MappedTable, relation: SourceRelation
) -> Destination:
    """The target, as it would be once the table is loaded."""
    found = database.find(cursor, table.target_schema, table.target)
    if found is None and not table.options.create:
        raise SettingsError(
            f"there is no table {table.full_target} at the destination", "tables.target-missing",
            hint=f"create it, or set `create: true` for {table.source} in the map",
        )  # fmt: skip
    made = to_be_made(cursor, database, table, relation)
    if found is None:
        found = made
    elif table.follows_columns(is_made=found.is_made) and not table.options.set:
        found = replace(found, columns={**made.columns, **found.columns})
    for problem in unset(table, found):
        raise problem
    return found
