"""The last state of a table, as its changes give it. Pure.

Unchanged is not null; a key change removes the old key; TRUNCATE empties; without a key, equal rows
are counted.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

import orjson

Row = Mapping[str, Any]
K = TypeVar("K", bound=Hashable)

EMPTYING = ("TRUNCATE", "DROP")
OF_ROWS = ("INSERT", "READ", "UPDATE", "REPLACE", "DELETE")


class Fold(Generic[K]):
    """Changes of one table or collection, as maps of the layout `penstock`, -> its rows.

    `identity` makes the key of a change that has a `key` or a `document_id`. `rows` are those with
    a key; `keyless` are the others: their JSON text, and how many there are.
    """

    def __init__(self, identity: Callable[[Mapping[str, Any]], K]) -> None:
        self.rows: dict[K, Row] = {}
        self.keyless: Counter[bytes] = Counter()
        self.changes = 0
        self._identity = identity

    def keys(self, change: Mapping[str, Any]) -> tuple[K, ...]:
        """The keys that a change names: where it changes the key, the old one and the new one."""
        key, before = change.get("key"), change.get("before") or {}
        if key is None and change.get("document_id") is None:
            return ()
        now = self._identity(change)
        if not key or any(name not in before for name in key):
            return (now,)
        old_key = {name: before[name] for name in key}
        was = self._identity({**change, "key": old_key, "data": before})
        return (now,) if was == now else (was, now)

    def apply(self, change: Mapping[str, Any]) -> dict[K, Row | None]:
        """Applies one change; returns the keys that it may have changed, and the row that each of
        them had before."""
        self.changes += 1
        if change["operation"] in EMPTYING:
            gone: dict[K, Row | None] = {**self.rows}
            self.rows.clear()
            self.keyless.clear()
            return gone
        if change["operation"] not in OF_ROWS:
            return {}
        keys = self.keys(change)
        if not keys:
            self._count(change)
            return {}
        found = {key: self.rows.pop(key, None) for key in keys}
        row = _after(change, found[keys[0]])
        if row is not None:
            self.rows[keys[-1]] = row
        return found

    def _count(self, change: Mapping[str, Any]) -> None:
        """A row without a key is known by all of its values."""
        before = change.get("before")
        if before is not None:
            self.keyless -= Counter([_text(before)])
        row = _after(change, before)
        if row is not None:
            self.keyless[_text(row)] += 1


def _after(change: Mapping[str, Any], old: Row | None) -> Row | None:
    """The row after a change; None: there is none."""
    if change["operation"] == "DELETE":
        return None
    # Without data a document was gone when it was looked up.
    data: Row | None = change.get("data") or old
    if data is None or old is None:
        return data
    return {**data, **{name: old[name] for name in change.get("unchanged") or () if name in old}}


def _text(row: Row) -> bytes:
    return orjson.dumps(
        row, default=bytes.hex, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS
    )
