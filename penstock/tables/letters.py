"""Dead letters in a ledger, and the keys that have them."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from penstock.model.position import Place
from penstock.tables.ledger_tables import LedgerTables


class LetterRows:
    """In the transaction of a ledger."""

    def __init__(self, tables: LedgerTables) -> None:
        self._own, self._run = tables.own, tables.run

    def keep(self, letters: Iterable[tuple[str, str]]) -> None:
        """Stores dead letters (event id, text) that are new."""
        for letter in letters:
            self._run(
                f"INSERT INTO {self._own}dead_letter (event_id, letter) VALUES (%s, %s)"
                " ON CONFLICT DO NOTHING",
                letter,
            )

    def keys(self, id: int) -> set[str]:
        """The keys of a table that have, or had, dead letters."""
        found = self._run(f"SELECT key FROM {self._own}refused WHERE ledger = %s", [id])
        return {key for (key,) in found.fetchall()}

    def refuse(self, id: int, keys: Iterable[str]) -> None:
        """Changes of these keys are dead letters."""
        insert = f"INSERT INTO {self._own}refused (ledger, key) VALUES (%s, %s)"
        for key in keys:
            self._run(f"{insert} ON CONFLICT DO NOTHING", [id, key])

    def advance(self, id: int, places: Mapping[str, Place]) -> None:
        """Changes of keys with dead letters were applied, up to these places."""
        update = f"UPDATE {self._own}refused SET place = %s WHERE ledger = %s AND key = %s"
        for key, place in places.items():
            self._run(update, [str(place), id, key])

    def last_of(self, id: int, key: str | None) -> Place | None:
        """The place of the last change of a key that was applied, as far as it is known: where that
        has had no dead letter, of its table."""
        query = f"SELECT place FROM {self._own}refused WHERE ledger = %s AND key = %s"
        if (found := self._run(query, [id, key]).fetchone()) is None:
            found = self._run(f"SELECT place FROM {self._own}ledger WHERE id = %s", [id]).fetchone()
        return Place.parse(found[0]) if found[0] else None

    def stored(self, first: int = 0) -> Iterator[tuple[int, datetime, str]]:
        """Dead letters (number, when it was stored, text) from a number on, oldest first."""
        query = (
            f"SELECT id, stored_at, letter FROM {self._own}dead_letter WHERE id >= %s"
            " ORDER BY id LIMIT 100"
        )
        while rows := self._run(query, [first]).fetchall():
            yield from rows
            first = rows[-1][0] + 1

    def forget(self, prefix: str) -> None:
        """Removes the dead letters whose event ids begin so."""
        self._run(
            f"DELETE FROM {self._own}dead_letter WHERE substr(event_id, 1, %s) = %s",
            [len(prefix), prefix],
        )

    def remove(self, id: int) -> None:
        self._run(f"DELETE FROM {self._own}dead_letter WHERE id = %s", [id])
