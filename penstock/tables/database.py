"""A database of tables, for sinks and mirrors; there is one class for each kind of database."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from psycopg import sql

from penstock.model.errors import PenstockError
from penstock.model.finding import Finding
from penstock.process.closing import Closes
from penstock.tables.history import HistoryColumns, open_index
from penstock.tables.ledger import TargetLedger
from penstock.tables.lines import RelationColumn, SourceRelation
from penstock.tables.references import References
from penstock.tables.staged import (
    Destination,
    RowMapping,
    StagedRows,
    joined_names,
    kinds_listed,
)
from penstock.tables.values import Encoder

# Whose session it is.
Owner = Literal["sink", "mirror"]


class TableDatabase(ABC):
    """One destination. Constructing it does no I/O, and it pickles. What takes a cursor is part of
    the cursor's transaction, and raises the driver's errors."""

    error: type[Exception]
    """What the driver raises."""
    alters_columns = True
    """Whether the default and the type of a column can be changed."""
    mark = "%s"
    """How a parameter is written."""
    locks_rows = True
    """Whether a SELECT may lock rows (FOR SHARE); else writers of the database wait anyway."""
    gathers_in: Path | None = None
    """In a file of which folder rows of a part of a load are gathered (None: they are not): all are
    read before the transaction begins then, for which other writers of the ledger would wait."""
    makes_computed = False
    """Whether a table that is made has the columns that `set` computes, of the types that
    `kind_computed` finds; else it has the source's."""
    side_by_side = 1
    """How many tables are written at the same time by `StagedRows.early`."""

    @abstractmethod
    def ledger(self, cursor: Any) -> TargetLedger:
        """The ledger, in the cursor's transaction."""

    @abstractmethod
    def connect(self, owner: Owner = "sink") -> Any:
        """A connection in autocommit mode: with `cursor()`, `transaction()` (inside of another one
        a savepoint), `close()` and `closed`. Raises Unavailable, SettingsError."""

    @abstractmethod
    def translation(self, error: Exception, doing: str) -> PenstockError:
        """What an error of the driver means: Rejected for one of a row; without values."""

    @abstractmethod
    def is_conflict(self, error: Exception) -> bool:
        """Whether another row is in the way."""

    def folded(self, name: str) -> str:
        """A name as the database compares it."""
        return name

    @abstractmethod
    def default_schema(self, cursor: Any) -> str:
        """Where tables are of which only the name is said."""

    def is_ambiguous(self, error: Exception) -> bool:
        """Whether two rows of one statement have one key: one after the other, they come out."""
        return False

    def is_too_large(self, error: object) -> bool:
        """Whether a value has no room in its column."""
        return False

    def is_of_type(self, error: object) -> bool:
        """Whether the type of its column does not have a value."""
        return False

    def check_deferred(self, cursor: Any) -> None:  # noqa: B027 - a database may have none
        """Has constraints and triggers that wait for the end of the transaction checked now."""

    @abstractmethod
    def find(self, cursor: Any, schema: str, table: str) -> Destination | None:
        """A table as it is now; None if there is none."""

    def size(self, target: str) -> Mapping[str, Any]:
        """Of a table (`schema.table`) that is files, see `LoadsTables.size`; else empty."""
        return {}

    @abstractmethod
    def type_at(self, cursor: Any, column: RelationColumn) -> str:
        """The type of a source's column in this database."""

    def stored_type(self, cursor: Any, kind: str) -> str:
        """The type of a source, by its name, as which values of messages are stored."""
        return kind

    @abstractmethod
    def encoder(self, kind: str, stored: str) -> Encoder:
        """What makes a value of the database of a value (not null) of messages, of this type of the
        source, which is stored as that."""

    @abstractmethod
    def alter(self, cursor: Any, target: str, *commands: sql.Composed, waits: bool = False) -> None:
        """Alters a table. Raises SettingsError where another try would not help, and for another
        session's lock, unless the caller `waits` until that is gone."""

    def fill(
        self, cursor: Any, found: Destination, name: str, value: str, only: Mapping[str, str]
    ) -> None:  # fmt: skip
        """Rows that have no value in a column get this one, which is a text: those with the values
        `only`."""
        statement = sql.SQL("UPDATE {0} SET {1} = {2} WHERE {1} IS NULL").format(
            sql.Identifier(found.schema, found.table), sql.Identifier(name), sql.Literal(value)
        )
        for column, wanted in only.items():
            statement += sql.SQL(" AND {} = {}").format(sql.Identifier(column), sql.Literal(wanted))
        cursor.execute(statement)

    def copies(self, cursor: Any, staged: StagedRows, rows: Sequence[Any]) -> bool:
        """Adds new rows in bulk; or none, and is false, where another row is in the way of one."""
        try:
            with cursor.connection.transaction():
                staged.copy(cursor, rows)
        except self.error as error:
            if self.is_conflict(error):
                return False
            raise
        return True

    def labels(self, cursor: Any, kind: str) -> Sequence[str]:
        """Those of a type that is an enum."""
        return ()

    @abstractmethod
    def may_be_large(self, cursor: Any, column: RelationColumn) -> bool:
        """Whether values of a source's column may be so large that they are not always sent."""

    def references(self, cursor: Any) -> References:
        """The foreign keys that statements run."""
        return References()

    def execute_one(self, cursor: Any, statement: sql.Composed) -> None:
        """Runs a text that is one statement, else fails."""
        cursor.execute(statement)

    def check(self, connection: Any, found: Destination | None) -> Iterator[Finding]:
        """What would keep rows out of a table, or make them different; without one, what would keep
        the ledger from being made."""
        yield from ()

    def create(
        self, cursor: Any, relation: SourceRelation, name: tuple[str, str], *,
        periods: HistoryColumns | None = None, sid_column: str = "",
    ) -> None:  # fmt: skip
        """Makes the table of this name (schema, table) with the source's columns and key, and what
        a history has besides, and the source's name, if that has a column."""
        kinds, key = self.shape(cursor, relation, periods=periods, sid_column=sid_column)
        parts = kinds_listed(kinds)
        if key:
            parts += sql.SQL(", PRIMARY KEY ({})").format(joined_names(key))
        cursor.execute(sql.SQL("CREATE TABLE {} ({})").format(sql.Identifier(*name), parts))
        if periods is not None:
            cursor.execute(open_index(*name, key[:-1], periods))

    def shape(
        self, cursor: Any, relation: SourceRelation, *, periods: HistoryColumns | None = None,
        sid_column: str = "",
    ) -> tuple[Mapping[str, str], Sequence[str]]:  # fmt: skip
        """The columns and the key that `create` gives a table."""
        kinds = {column.name: self.type_at(cursor, column) for column in relation.columns}
        key = [relation.columns[number].name for number in relation.key]
        if sid_column:
            kinds = {sid_column: "text"} | kinds
            key = [sid_column, *key] if key else []
        if periods is not None:
            kinds |= periods.kinds
            key = [*key, periods.start] if key else []
        return kinds, key

    @abstractmethod
    def staged(
        self, relation: SourceRelation, found: Destination, mapping: RowMapping, number: int = 0,
        periods: HistoryColumns | None = None,
    ) -> StagedRows:  # fmt: skip
        """How lines of a relation are written to a table; `number` is unique in a session."""

    def kind_computed(self, cursor: Any, query: sql.Composed) -> str:
        """The name of the type of a query's only column; where the database `makes_computed`."""
        raise NotImplementedError

    @contextmanager
    def translated(self, doing: str) -> Iterator[None]:
        """The driver's errors as ours."""
        try:
            yield
        except self.error as error:
            raise self.translation(error, doing) from error

    @contextmanager
    def previewing(self) -> Iterator[Any]:
        """The cursor of a transaction of which nothing stays. Raises as `transaction` does."""
        with closing(self.connect()) as connection, suppress(_Undone), connection.transaction():
            yield connection.cursor()
            raise _Undone

    @contextmanager
    def transaction(self, doing: str) -> Iterator[Any]:
        """The cursor of a transaction of its own. Raises Unavailable, SettingsError, Rejected."""
        with HeldConnection(self) as held, held.transaction(doing) as cursor:
            yield cursor


class _Undone(Exception):
    """Ends a transaction without its changes."""


class HeldConnection(Closes):
    """A connection that the first transaction opens, and that stays for the next one, unless one
    failed. Used by one thread."""

    def __init__(self, database: TableDatabase) -> None:
        self._database = database
        self._connection: Any = None

    @contextmanager
    def transaction(self, doing: str) -> Iterator[Any]:
        """See `TableDatabase`."""
        if self._connection is None:
            self._connection = self._database.connect()
        try:
            with self._database.translated(doing), self._connection.transaction():
                yield self._connection.cursor()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
