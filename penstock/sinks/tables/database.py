"""What a sink of tables asks of its database; there is one class for each kind of database."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from psycopg import sql

from penstock.model.errors import PenstockError
from penstock.sinks.tables.settings import MappedTable
from penstock.tables.history import HistoryColumns, open_index
from penstock.tables.ledger import TargetLedger
from penstock.tables.lines import RelationColumn, SourceRelation
from penstock.tables.staged import SID, Destination, RowMapping
from penstock.tables.staging import StagedTable


class TableDatabase(ABC):
    """One destination. Constructing it does no I/O, and it pickles. What takes a cursor is part of
    the cursor's transaction, and raises the driver's errors."""

    error: type[Exception]
    """What the driver raises."""
    ledger: TargetLedger

    @abstractmethod
    def connect(self) -> Any:
        """A connection in autocommit mode: with `cursor()`, `transaction()` (inside of another one
        a savepoint), `close()` and `closed`. Raises Unavailable, SettingsError."""

    @abstractmethod
    def translation(self, error: Exception, doing: str) -> PenstockError:
        """What an error of the driver means: Rejected for one of a row; without values."""

    @abstractmethod
    def is_conflict(self, error: Exception) -> bool:
        """Whether another row is in the way."""

    @abstractmethod
    def find(self, cursor: Any, schema: str, table: str) -> Destination | None:
        """A table as it is now; None if there is none."""

    @abstractmethod
    def type_at(self, cursor: Any, column: RelationColumn) -> str:
        """The type of a source's column in this database."""

    @abstractmethod
    def alter(self, cursor: Any, target: str, statements: Sequence[sql.Composed]) -> None:
        """Alters a table. Raises SettingsError where that does not come right by being tried
        again."""

    def create(
        self, cursor: Any, relation: SourceRelation, name: tuple[str, str], *,
        periods: HistoryColumns | None = None, has_sid: bool = False,
    ) -> None:  # fmt: skip
        """Makes the table of this name (schema, table) with the source's columns and key, and what
        a history has besides (and any other, if it `has_sid`, the source's name)."""
        kinds = {column.name: self.type_at(cursor, column) for column in relation.columns}
        key = [relation.columns[number].name for number in relation.key]
        if has_sid or periods is not None:
            kinds = {SID: "text"} | kinds
            key = [SID, *key] if key else []
        if periods is not None:
            kinds |= periods.kinds
            key = [*key, periods.start] if key else []
        parts = [
            sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(kind))
            for name, kind in kinds.items()
        ]
        if key:
            names = sql.SQL(", ").join(map(sql.Identifier, key))
            parts.append(sql.SQL("PRIMARY KEY ({})").format(names))
        cursor.execute(
            sql.SQL("CREATE TABLE {} ({})").format(sql.Identifier(*name), sql.SQL(", ").join(parts))
        )
        if periods is not None:
            cursor.execute(open_index(*name, key[:-1], periods))

    @abstractmethod
    def staged_rows(
        self, relation: SourceRelation, found: Destination, mapping: RowMapping, number: int,
        periods: HistoryColumns | None,
    ) -> StagedTable:  # fmt: skip
        """How lines of a relation are written to a table; `number` tells those of a session
        apart."""

    def staged(
        self, mapped: MappedTable, sid: str, relation: SourceRelation, found: Destination, *,
        number: int = 0, columns: Sequence[str] | None = None,
    ) -> StagedTable:  # fmt: skip
        """The same for a table of the map, of a source; to these of its target's columns, if not
        to those of the map."""
        mapping = RowMapping(
            sid=sid if SID in found.columns else None, source=sid,
            columns=mapped.options.columns if columns is None else columns,
            computed=mapped.options.set, filter=mapped.options.filter,
        )  # fmt: skip
        return self.staged_rows(relation, found, mapping, number, mapped.periods)

    @contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """The driver's errors as ours."""
        try:
            yield
        except self.error as error:
            raise self.translation(error, doing) from error

    @contextmanager
    def transaction(self, doing: str) -> Iterator[Any]:
        """The cursor of a transaction of its own. Raises Unavailable, SettingsError, Rejected."""
        with (
            closing(self.connect()) as connection,
            self.translated(doing),
            connection.transaction(),
        ):
            yield connection.cursor()
