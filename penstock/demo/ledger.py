"""What was committed, recorded by the writer itself: the verdict compares the stream with it.

Nothing here comes from the pipeline. A transaction is entered after its COMMIT returned.
"""

from collections.abc import Sequence
from typing import NamedTuple

# The values of a table's key columns, in order; empty for TRUNCATE.
Key = tuple[object, ...]


def alone(table: str, key: Key) -> str:
    """The name under which the changes of a key are entered that are in no transaction."""
    return f"{table}({','.join(map(str, key))})"


class Written(NamedTuple):
    """One row change inside a transaction; `key` is the new one when it changed."""

    operation: str
    table: str
    key: Key


class Ledger:
    """Transaction id -> its changes in order. One thread writes, others may read `count`.

    A change without a transaction is in the one that `alone` names: the history of its key.
    """

    def __init__(self) -> None:
        self.committed: dict[str, tuple[Written, ...]] = {}
        self.rolled_back: set[str] = set()
        self.count = 0

    def commit(self, transaction: str, changes: Sequence[Written]) -> None:
        """Enters a transaction that is committed."""
        self.committed[transaction] = tuple(changes)
        self.count += len(changes)

    def write(self, change: Written) -> None:
        """Enters a change that is in no transaction; `commit` and this may be mixed."""
        name = alone(change.table, change.key)
        self.committed[name] = (*self.committed.get(name, ()), change)
        self.count += 1

    def roll_back(self, transaction: str) -> None:
        """Enters a transaction that was rolled back: nothing of it may arrive."""
        self.rolled_back.add(transaction)
