"""What a destination keeps of changes that it refused, and of tables that wait because of one.

With `on_error: suspend` the refused change is held, and so are all changes of its table after it:
none is skipped, and they are applied in order once an operator has mended the cause.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any

import orjson

from penstock.model.errors import Rejected, SettingsError
from penstock.model.position import ROWS
from penstock.sinks import Decode
from penstock.sinks.poison.dead_letter import Letter
from penstock.sinks.poison.stored_letters import StoredLetter, find_letter, find_suspended
from penstock.sinks.tables.settings import TableSinkSettings
from penstock.sinks.tables.source_table import BY_HAND, SourceTable
from penstock.sinks.tables.table_map import TableMap
from penstock.tables.database import HeldConnection, TableDatabase
from penstock.tables.ledger import TargetLedger
from penstock.tables.lines import SourceRelation, changes_of
from penstock.tables.states import WAITING, SuspendedByHand, TableEvent

_LARGEST = 1 << 20  # bytes of a dead letter at most


def keep_letters(ledger: TargetLedger, letters: Iterable[Letter]) -> None:
    """Stores dead letters that are new. Raises the driver's errors."""
    ledger.letters.keep((each.event_id, each.body(_LARGEST).decode()) for each in letters)


class LedgerLetters:
    """The `StoredLetters` of a ledger, in its transaction; raises the driver's errors."""

    def __init__(self, ledger: TargetLedger) -> None:
        self._ledger, self.name = ledger, ledger.letters_table

    def stored(self) -> Iterator[StoredLetter]:
        return self._letters(0)

    def get(self, id: int) -> StoredLetter | None:
        return next((each for each in self._letters(id) if each.id == id), None)

    def _letters(self, first: int) -> Iterator[StoredLetter]:
        for id, at, text in self._ledger.letters.stored(first):
            yield StoredLetter(id=id, stored_at=at.isoformat(), letter=Letter.parse(text.encode()))


class TableLetters:
    """A sink of tables as one that `KeepsLetters`."""

    def __init__(self, settings: TableSinkSettings) -> None:
        self.settings, self._database = settings, settings.database()
        self._connections: TableDatabase | HeldConnection = self._database
        self._made_by: Any = None  # the held connection that made the ledger

    def dead_letters(self) -> Iterator[Mapping[str, Any]]:
        with self._ledger() as (ledger, _):
            yield from (kept.listed() for kept in LedgerLetters(ledger).stored())

    def dead_letter(self, id: str) -> Mapping[str, Any]:
        with self._ledger() as (ledger, _):
            return find_letter(LedgerLetters(ledger), id).whole()

    def replay(self, id: str, decode: Decode, *, force: bool = False) -> Mapping[str, Any]:
        """See `KeepsLetters`: its change is applied as if it came now."""
        with self._ledger() as (ledger, cursor):
            kept = find_letter(LedgerLetters(ledger), id)
            batch, letter = kept.change(decode).batch, kept.letter
            mapped = TableMap(self.settings).mapped(
                letter.backend, letter.schema or "", letter.collection or ""
            )
            document = batch.column("delta")[0].as_py()
            if mapped is None or document is None:
                raise SettingsError(
                    f"the dead letter {kept.id} is of a table that is not in the map",
                    "tables",
                    hint="add it to `map`",
                )
            row = mapped.enter(ledger, letter.partition, initial=self.settings.initial)
            table = SourceTable(mapped=mapped, sid=letter.partition, id=row.id)
            row = ledger.lock([table.id])[table.id]
            if not row.is_live:
                raise Rejected(
                    f"{table.name} is suspended or loading",
                    "tables",
                    hint="replay the letter after that",
                )
            (change,) = changes_of(batch)
            relation = SourceRelation.of(orjson.loads(document))
            keys, at = change.keys(relation.key), letter.place
            lasts = [
                last for key in keys or {None} if (last := ledger.letters.last_of(table.id, key))
            ]
            # Changes after a row of all partitions together have places that do not compare.
            is_older = letter.partition == ROWS or at.cursor < row.point
            if not force and (is_older or max(lasts, default=at) > at):
                raise Rejected(
                    f"{table.target} has, or had, a later row: the dead letter {kept.id} is older",
                    "tables.letter-outdated",
                    hint="`penstock verify` with --repair gives the row the source's values;"
                    " --force applies the letter all the same",
                )
            staged = table.staged(cursor, self._database, relation, 0, lines_are="letters")
            staged.make(cursor)
            table.apply(cursor, self._database, table.plan(staged, [change]))
            ledger.letters.advance(table.id, dict.fromkeys(keys, max([*lasts, at])))
            ledger.letters.remove(kept.id)
            return {
                "id": kept.id, "event_id": letter.event_id, "target": table.target,
                "duplicate": False,
            }  # fmt: skip

    def tables(self) -> Sequence[Mapping[str, Any]]:
        """See `KeepsLetters`: every table of the map, of each source."""
        known = {(each.backend, each.source) for each in self.settings.tables()}
        with self._ledger() as (ledger, _):
            found = [each for each in ledger.tables() if (each.backend, each.table) in known]
            return [each.described() for each in found]

    def suspend_table(self, backend: str, table: str) -> Mapping[str, Any]:
        """See `KeepsLetters`: of all sources of the backend; its changes are held."""
        with self._ledger() as (ledger, _):
            found = [
                each for each in ledger.tables()
                if (each.backend, each.table) == (backend, table)
                and each.row.is_followed
            ]  # fmt: skip
            if not found:
                raise SettingsError(f"{backend} has no table {table} in the map", "tables")
            error = SuspendedByHand("suspended by hand", "tables.rejected")
            for row in ledger.lock(each.row.id for each in found).values():
                ledger.save(row.wait(error))
            return found[0].described() | {"state": "waiting"}

    def resume_table(self, backend: str | None, table: str) -> Mapping[str, Any]:
        """See `KeepsLetters`: of all its sources."""
        with self._ledger() as (ledger, _):
            found = [each for each in ledger.tables() if each.row.state in WAITING]
            waiting = {
                key: list(same) for key, same in groupby(found, attrgetter("backend", "table"))
            }
            known = {key: same[0].described() for key, same in waiting.items()}
            same = waiting[find_suspended(known, backend, table)]
            for row in ledger.lock(each.row.id for each in same).values():
                if row.state in WAITING:
                    ledger.save(row.become(TableEvent.RESUMED))
                if BY_HAND in row.detail:
                    ledger.keep_columns(row.id, replace(ledger.columns(row.id), is_resumed=True))
            held = [each for each in same if each.held]
            return same[0].described() | {
                "state": "resuming", "skipped": 0, "held": sum(each.held for each in held),
                "first_skipped": min((str(each.first) for each in held), default=None),
                "last_skipped": max((str(each.last) for each in held), default=None),
            }  # fmt: skip

    @contextmanager
    def _ledger(self) -> Iterator[tuple[TargetLedger, Any]]:
        """The ledger, which is made if it is missing, in a transaction, and its cursor."""
        with self._connections.transaction("opening the ledger") as cursor:
            ledger = self._database.ledger(cursor)
            if self._made_by is not cursor.connection:
                ledger.make()
                if self._connections is not self._database:  # it is held
                    self._made_by = cursor.connection
            yield ledger, cursor
