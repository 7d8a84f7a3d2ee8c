"""What was committed, recorded by the writer itself: the verdict compares the stream with it.

Nothing here comes from the pipeline. A transaction is entered after its COMMIT returned.
"""

from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Key", "Ledger", "Written"]

# The values of a table's key columns, in order; empty for TRUNCATE.
Key = tuple[object, ...]


class Written(NamedTuple):
    """One row change inside a transaction; `key` is the new one when it changed."""

    operation: str
    table: str
    key: Key


class Ledger:
    """Transaction id -> its changes in order. One thread writes, others may read `count`."""

    def __init__(self) -> None:
        self.committed: dict[str, tuple[Written, ...]] = {}
        self.rolled_back: set[str] = set()
        self.count = 0

    def commit(self, transaction: str, changes: Sequence[Written]) -> None:
        """Enters a transaction that is committed."""
        self.committed[transaction] = tuple(changes)
        self.count += len(changes)

    def roll_back(self, transaction: str) -> None:
        """Enters a transaction that was rolled back: nothing of it may arrive."""
        self.rolled_back.add(transaction)
