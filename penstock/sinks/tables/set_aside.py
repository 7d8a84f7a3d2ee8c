"""What a destination keeps of changes that it refused, and of tables that wait because of one.

With `on_error: suspend` the refused change is held, and so are all changes of its table after it:
none is skipped, and they are applied in order once an operator has mended the cause.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any

import orjson

from penstock.model.errors import Rejected, SettingsError
from penstock.sinks import Decode
from penstock.sinks.poison.dead_letter import Letter
from penstock.sinks.poison.stored_letters import StoredLetter, find_letter, find_suspended
from penstock.sinks.tables.database import TableDatabase
from penstock.sinks.tables.source_table import BY_HAND, SourceTable
from penstock.sinks.tables.table_map import TableMap
from penstock.tables.lines import SourceRelation, changes_of


class TableLetters:
    """The `StoredLetters` of a destination; all that is done is in the transaction of `cursor`, and
    raises the driver's errors."""

    def __init__(self, database: TableDatabase, cursor: Any) -> None:
        self._database, self._cursor = database, cursor
        self._ledger = database.ledger
        self.name = self._ledger.letters_table

    def stored(self) -> Iterator[StoredLetter]:
        """All, oldest first."""
        return self._letters(0)

    def get(self, id: int) -> StoredLetter | None:
        """One, by its number."""
        return next((each for each in self._letters(id) if each.id == id), None)

    def _letters(self, first: int) -> Iterator[StoredLetter]:
        for id, at, text in self._ledger.letters(self._cursor, first):
            yield StoredLetter(id=id, stored_at=at.isoformat(), letter=Letter.parse(text.encode()))

    def replay(self, id: str, decode: Decode) -> dict[str, Any]:
        """Applies a letter's change as if it came now, and removes the letter. Raises Malformed,
        Rejected and SettingsError."""
        kept = find_letter(self, id)
        batch, letter = kept.change(decode).batch, kept.letter
        mapped = TableMap(self._database).mapped(
            letter.backend, letter.schema or "", letter.collection or ""
        )
        document = batch.column("delta")[0].as_py()
        if mapped is None or document is None:
            raise SettingsError(
                f"the dead letter {kept.id} is of a table that is not in the map",
                hint="add it to `map`",
            )
        initial = self._database.settings.initial
        row = mapped.enter(self._ledger, self._cursor, letter.partition, initial=initial)
        table = SourceTable(mapped=mapped, sid=letter.partition, id=row.id)
        if self._ledger.lock(self._cursor, [table.id])[table.id].state != "live":
            raise Rejected(
                f"{table.name} is suspended or loading", hint="replay the letter after that"
            )
        relation = SourceRelation.of(orjson.loads(document))
        staged = table.staged(self._cursor, self._database, relation, 0, lines_are="letters")
        staged.make(self._cursor)
        table.apply(self._cursor, self._database, staged, changes_of(batch))
        self._ledger.remove_letter(self._cursor, kept.id)
        return {
            "id": kept.id, "event_id": letter.event_id, "target": table.target, "duplicate": False,
        }  # fmt: skip

    def tables(self) -> list[dict[str, Any]]:
        """Every table of the map, of each source, as plain JSON."""
        known = {(each.backend, each.source) for each in self._database.settings.tables()}
        return [
            each.described() for each in self._ledger.tables(self._cursor)
            if (each.backend, each.table) in known
        ]  # fmt: skip

    def suspend(self, backend: str, table: str) -> dict[str, Any]:
        """Has a table wait, of all sources of the backend: its changes are held. Raises
        SettingsError where there is none of that name."""
        found = [
            each for each in self._ledger.tables(self._cursor)
            if (each.backend, each.table) == (backend, table)
        ]  # fmt: skip
        if not found:
            raise SettingsError(f"{backend} has no table {table} in the map")
        for each in found:
            self._ledger.enter_state(
                self._cursor, each.id, "waiting", Rejected("suspended by hand")
            )
        return found[0].described() | {"state": "waiting"}

    def resume(self, backend: str | None, table: str) -> dict[str, Any]:
        """Sets a suspended table going, of all its sources; raises SettingsError where there is
        none of that name."""
        found = self._ledger.tables(self._cursor, unfinished=True)
        waiting = {
            key: list(same)
            for key, same in groupby(
                (each for each in found if each.state == "waiting"),
                key=attrgetter("backend", "table"),
            )
        }
        known = {key: same[0].described() for key, same in waiting.items()}
        same = waiting[find_suspended(known, backend, table)]
        for each in same:
            self._ledger.resume(self._cursor, each.id)
            if BY_HAND in each.detail:
                columns = self._ledger.columns(self._cursor, each.id)
                self._ledger.keep_columns(self._cursor, each.id, replace(columns, is_resumed=True))
        held = [each for each in same if each.held]
        return same[0].described() | {
            "state": "resuming", "skipped": 0, "held": sum(each.held for each in held),
            "first_skipped": min((str(each.first) for each in held), default=None),
            "last_skipped": max((str(each.last) for each in held), default=None),
        }  # fmt: skip
