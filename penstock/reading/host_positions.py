"""The positions of one host among several that share a feed: its rows are leases, too.

The rows of one partition have one writer in a process: what renews, takes and releases leases
(`leases.holder`) writes the same rows under the same lock.
"""

import logging
import time
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any

from penstock.leases import Lease, LeaseStore
from penstock.leases.kinds import verify_kind
from penstock.leases.owned import OwnedRows
from penstock.model.errors import Malformed
from penstock.model.position import Bookmark, Bookmarks, PartitionId
from penstock.reading.positions import Positions, bookmark_text, read_bookmark

# Nothing is saved by time: the caller says when.
_NEVER = float("inf")

log = logging.getLogger("penstock")


class HostPositions(Positions):
    """The positions `NAME/BACKEND` of the host `owner` of a processor."""

    def __init__(
        self,
        store: LeaseStore,
        prefix: str,
        owner: str,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.prefix = prefix
        self.unreadable = ""  # why a row could not be read, at the last survey
        super().__init__(
            store,
            prefix,
            interval=_NEVER,
            event_count=1,
            clock=clock,
            owner=owner,
            shared=True,
            kind="processor",
        )

    @property
    def rows(self) -> OwnedRows:
        """The rows themselves, for what else their owner writes: leases are held with these."""
        return self._rows

    def name(self, partition: PartitionId) -> str:
        """The name of the partition's row."""
        return self._name(partition)

    def partition(self, name: str) -> PartitionId:
        """The partition whose row has this name."""
        return self._partition(name)

    def survey(self) -> dict[PartitionId, tuple[Lease, Bookmark]]:
        """All rows as they are now, whoever owns them; changes nothing. Raises Unavailable, and
        SettingsError for a row of another kind. One that penstock did not write is `unreadable`,
        and nobody's: the others go on."""
        rows = self._rows.list()
        verify_kind(rows, self.kind)
        found, unreadable = {}, ""
        for row in rows:
            try:
                found[self._partition(row.name)] = row, read_bookmark(row)
            except Malformed as error:
                unreadable = str(error)
        if unreadable != self.unreadable:
            log.error("%s", unreadable or "all stored positions can be read again")
        self.unreadable = unreadable
        return found

    def plant(
        self,
        bookmarks: Bookmarks,
        properties: Mapping[PartitionId, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        """Makes the rows of partitions that have none, nobody's and with the user's `properties`;
        the first bookmark wins. Raises Unavailable, SettingsError."""
        rows = [
            self._rows.state(
                Lease(
                    name=self._name(name),
                    continuation=bookmark_text(bookmark),
                    properties=properties.get(name, {}),
                )
            )
            for name, bookmark in bookmarks.items()
        ]
        self._rows.store.put_all(rows)

    def stored(self, partition: PartitionId) -> Bookmark | None:
        """What this object knows to be stored of a partition of ours."""
        return self._stored.get(partition)

    def record_taken(self, partitions: Collection[PartitionId]) -> dict[PartitionId, Bookmark]:
        """The rows of these partitions were just taken (`rows.adopt`) and are saved from now on;
        returns their bookmarks."""
        with self._lock:
            rows = self._rows.known([self._name(name) for name in partitions])
            found = {self._partition(row.name): read_bookmark(row) for row in rows}
            self._stored |= found
            self._note_lost()
            return found

    def record_released(self, partitions: Collection[PartitionId]) -> None:
        """The rows of these partitions are not ours any more: nothing is saved for them until
        they are taken."""
        with self._lock:
            self._rows.drop([self._name(name) for name in partitions])
            for name in partitions:
                self._stored.pop(name, None)
            self._note_lost()
