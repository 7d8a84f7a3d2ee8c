"""A consumer's copy of the tables, made of the messages alone. Pure.

Applies each change once, by its event id, and records contradictions: an INSERT of a row that
exists, an UPDATE of a row that does not, an old row that differs from the copy.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from penstock.demo.ledger import Key, alone
from penstock.position import Place
from penstock.tail.message import Message

__all__ = ["Received", "Replica"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """What the verdict needs of one message, in the order of the stream.

    `keys` are the keys that the change touched, the new one last; empty for TRUNCATE.
    """

    sequence: int
    event_id: str
    place: Place
    transaction: str
    operation: str
    table: str
    keys: tuple[Key, ...]


class Replica:
    """Tables as key -> row. `keys` are each table's key columns."""

    def __init__(self, keys: Mapping[str, tuple[str, ...]]) -> None:
        self.tables: dict[str, dict[Key, dict[str, Any]]] = {table: {} for table in keys}
        self.received: list[Received] = []
        self.impossible: list[str] = []
        self.duplicates: Counter[str] = Counter()
        self._keys = dict(keys)
        self._seen: set[str] = set()

    @property
    def count(self) -> int:
        """Distinct changes so far."""
        return len(self._seen)

    def apply(self, message: Message) -> None:
        """Applies one message."""
        table = message.collection
        if table not in self._keys:
            self.impossible.append(f"{message.event_id}: nobody wrote to a table {table!r}")
            return
        received = self._received(message, table)
        self.received.append(received)
        if message.event_id in self._seen:
            self.duplicates[message.event_id] += 1
            return
        self._seen.add(message.event_id)
        problem = self._change(received, message.body)
        if problem:
            self.impossible.append(f"{message.event_id} {received.operation} {table}: {problem}")

    def _received(self, message: Message, table: str) -> Received:
        columns = self._keys[table]
        data, before = message.body.get("data"), message.body.get("before")
        images = (before, data) if before or data else (message.body.get("key"),)
        rows = [row for row in images if row and all(name in row for name in columns)]
        keys = [tuple(row[name] for name in columns) for row in rows]
        return Received(
            sequence=message.sequence,
            event_id=message.event_id,
            place=message.place,
            transaction=message.body.get("transaction") or alone(table, keys[-1] if keys else ()),
            operation=message.operation,
            table=table,
            keys=tuple(dict.fromkeys(keys)),
        )

    def _change(self, received: Received, body: Mapping[str, Any]) -> str:
        rows = self.tables[received.table]
        match received.operation:
            case "TRUNCATE":
                rows.clear()
                return ""
            case "INSERT":
                return self._insert(rows, received, body)
            case "UPDATE" | "REPLACE":
                return self._update(rows, received, body)
            case "DELETE":
                return self._delete(rows, received, body)
            case _:
                return "nobody did that"

    def _insert(
        self, rows: dict[Key, dict[str, Any]], received: Received, body: Mapping[str, Any]
    ) -> str:
        key = received.keys[-1]
        there = key in rows
        rows[key] = dict(body["data"])
        return f"{key} is there already" if there else ""

    def _update(
        self, rows: dict[Key, dict[str, Any]], received: Received, body: Mapping[str, Any]
    ) -> str:
        old = rows.pop(received.keys[0], None)
        # No data: the document was gone when the source looked it up for us.
        new = dict(body["data"] or old or {})
        missing = [name for name in body["unchanged"] if old is None or name not in old]
        if old is not None:
            # Unchanged is not null: a column that the source did not send keeps its value.
            new |= {name: old[name] for name in body["unchanged"] if name in old}
        rows[received.keys[-1]] = new
        if old is None:
            return f"{received.keys[0]} is not there"
        if missing:
            return f"{received.keys[0]} never had {', '.join(missing)}"
        return _contradiction(old, body)

    def _delete(
        self, rows: dict[Key, dict[str, Any]], received: Received, body: Mapping[str, Any]
    ) -> str:
        old = rows.pop(received.keys[-1], None)
        return f"{received.keys[-1]} is not there" if old is None else _contradiction(old, body)


def _contradiction(old: Mapping[str, Any], body: Mapping[str, Any]) -> str:
    before = body.get("before") or {}
    wrong = [name for name, value in before.items() if name not in old or old[name] != value]
    return f"the old {', '.join(wrong)} is not what it was" if wrong else ""
