"""A replica's connection to its database of tables: statements, and what writes rows of a table."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from psycopg import sql

from penstock.consumer.mirror.target_table import TargetColumn, TargetTable
from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.process.closing import Closes, closing_on_failure
from penstock.tables.database import TableDatabase
from penstock.tables.lines import RelationColumn, SourceRelation
from penstock.tables.staged import Destination, RowMapping, StagedRows, kinds_listed
from penstock.tables.values import Encoder


class TargetSession(Closes):
    """Connects when it is used first; its errors are ours. Names are of the default schema."""

    def __init__(self, database: TableDatabase) -> None:
        self.database = database
        self._connection: Any = None
        self._schema = ""  # where the tables are
        # By target: its columns and key, and what has temporary tables for these.
        self._staged: dict[str, tuple[Any, StagedRows]] = {}
        self._numbers: dict[str, int] = {}
        self._types: dict[str, str] = {}  # by the source's

    def close(self) -> None:
        """Disconnects; the next call connects again."""
        self._staged.clear()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def encoders(self, table: TargetTable) -> Mapping[str, Encoder]:
        """What makes values of the target of values of messages (not null), by the columns that
        need it."""
        encoder = self.database.encoder
        made = {one.name: encoder(one.type, self._stored_type(one)) for one in table.columns}
        return {name: encode for name, encode in made.items() if encode is not None}

    def _create(self, table: TargetTable, name: str) -> None:
        cursor = self._opened().cursor()
        self.database.create(cursor, self._relation(table), (self._schema, name))

    def _alter(self, target: str, gone: Iterable[str], new: Mapping[str, str]) -> None:
        """Columns go, and others come with these types."""
        start = sql.SQL("ALTER TABLE {} ").format(sql.Identifier(self._schema, target))
        drops = [sql.SQL("DROP COLUMN {}").format(sql.Identifier(name)) for name in gone]
        adds = [sql.SQL("ADD COLUMN {}").format(kinds_listed({one: new[one]})) for one in new]
        commands = (start + each for each in (*drops, *adds))
        with self._translated():
            self.database.alter(self._opened().cursor(), target, *commands, waits=True)

    def _rename(self, old: str, new: str) -> None:
        self._run(f"ALTER TABLE {quoted(old)} RENAME TO {quoted(new)}")

    def _rows_of(self, table: TargetTable) -> StagedRows:
        shape, known = (table.columns, table.key), self._staged.get(table.target)
        if known is None or known[0] != shape:
            number = self._numbers.setdefault(table.target, len(self._numbers))
            if (found := self._find(table.target)) is None:
                raise SettingsError(
                    f"the target has no table {table.target} any more", "tables.target-missing"
                )
            relation = self._relation(table)
            staged = self.database.staged(relation, found, RowMapping(), number)
            known = self._staged[table.target] = shape, staged
            staged.make(self._opened().cursor())
        return known[1]

    def _kind(self, column: TargetColumn) -> str:
        """The type of a column here."""
        with self._translated():
            own = RelationColumn(column.name, self._stored_type(column))
            return self.database.type_at(self._opened().cursor(), own)

    def _relation(self, table: TargetTable) -> SourceRelation:
        """What rows of a table are of."""
        columns = [
            RelationColumn(one.name, self._stored_type(one), one.name in table.key)
            for one in table.columns
        ]
        return SourceRelation(schema="", table=table.target, columns=tuple(columns))

    def _stored_type(self, column: TargetColumn) -> str:
        if column.type not in self._types:
            with self._translated():
                cursor = self._opened().cursor()
                self._types[column.type] = self.database.stored_type(cursor, column.type)
        return self._types[column.type]

    def _find(self, name: str) -> Destination | None:
        with self._translated():
            return self.database.find(self._opened().cursor(), self._schema, name)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Connects if need be; translates errors, after which temporary tables are gone."""
        try:
            with self._translated(), self._opened().transaction():
                yield
        except BaseException:
            self._staged.clear()
            raise

    def _opened(self) -> Any:
        if self._connection is None or self._connection.closed:
            try:
                found = self.database.connect("mirror")
            except PenstockError as error:
                raise _mirrored(error) from error
            with closing_on_failure(found):
                self._schema = self.database.default_schema(found.cursor())
            self._connection = found
        return self._connection

    def _run(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        with self._translated():
            text = statement.replace("%s", self.database.mark) if values else statement
            done = self._opened().cursor().execute(text, *[values] if values else [])
            return done.fetchall() if done.description else []

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """The driver's errors as ours."""
        try:
            yield
        except self.database.error as error:
            raise _mirrored(self.database.translation(error, "writing")) from error


def _mirrored(error: PenstockError) -> PenstockError:
    """An error of the database as a mirror's: what is refused is the operator's to mend."""
    if isinstance(error, Unavailable):
        return type(error)(error.message, "tables.unavailable", hint=error.hint)
    return SettingsError(error.message, "tables", hint=error.hint)


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
