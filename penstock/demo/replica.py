"""A consumer's copy of the tables, made of the messages alone. Pure.

Applies each change once, by its event id, and records contradictions: an INSERT of a row that
exists, an UPDATE of a row that does not, an old row that differs from the copy.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from penstock.consumer.mirror.fold import Fold
from penstock.consumer.tail.message import Message
from penstock.demo.ledger import Key, alone
from penstock.model.position import Place


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


class DemoReplica:
    """Tables as key -> row. `keys` are each table's key columns."""

    def __init__(self, keys: Mapping[str, tuple[str, ...]]) -> None:
        self._folds = {table: Fold(_key_of(columns)) for table, columns in keys.items()}
        self.received: list[Received] = []
        self.impossible: list[str] = []
        self.duplicates: Counter[str] = Counter()
        self._seen: set[str] = set()

    @property
    def tables(self) -> Mapping[str, Mapping[Key, Mapping[str, Any]]]:
        """The rows of each table."""
        return {table: fold.rows for table, fold in self._folds.items()}

    @property
    def count(self) -> int:
        """Distinct changes so far."""
        return len(self._seen)

    def apply(self, message: Message) -> None:
        """Applies one message."""
        table = message.collection
        fold = self._folds.get(table)
        if fold is None:
            self.impossible.append(f"{message.event_id}: nobody wrote to a table {table!r}")
            return
        received = _received(message, fold.keys(message.body))
        self.received.append(received)
        if message.event_id in self._seen:
            self.duplicates[message.event_id] += 1
            return
        self._seen.add(message.event_id)
        old = fold.apply(message.body)
        problem = _impossible(received, old, message.body)
        if problem:
            self.impossible.append(f"{message.event_id} {received.operation} {table}: {problem}")


def _key_of(columns: tuple[str, ...]) -> Callable[[Mapping[str, Any]], Key]:
    def key(change: Mapping[str, Any]) -> Key:
        # From the row where there is one: the key of a document has its values in another form.
        rows = (change["data"], change["before"], change["key"])
        row = next(row for row in rows if row and all(name in row for name in columns))
        return tuple(row[name] for name in columns)

    return key


def _received(message: Message, keys: tuple[Key, ...]) -> Received:
    return Received(
        sequence=message.sequence,
        event_id=message.event_id,
        place=message.place,
        transaction=message.body.get("transaction")
        or alone(message.collection, keys[-1] if keys else ()),
        operation=message.operation,
        table=message.collection,
        keys=keys,
    )


def _impossible(
    received: Received, rows: Mapping[Key, Mapping[str, Any] | None], body: Mapping[str, Any]
) -> str:
    """What contradicts the copy; `rows` are those that were there before."""
    if received.operation == "TRUNCATE":
        return ""
    if received.operation not in ("INSERT", "UPDATE", "REPLACE", "DELETE"):
        return "nobody did that"
    old = rows[received.keys[0]]
    if received.operation == "INSERT":
        return "" if old is None else f"{received.keys[0]} is there already"
    if old is None:
        return f"{received.keys[0]} is not there"
    if missing := [name for name in body["unchanged"] if name not in old]:
        return f"{received.keys[0]} never had {', '.join(missing)}"
    before = body.get("before") or {}
    wrong = [name for name, value in before.items() if name not in old or old[name] != value]
    return f"the old {', '.join(wrong)} is not what it was" if wrong else ""
