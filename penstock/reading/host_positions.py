"""The positions of one host among several that share a feed: its rows are leases, too.

The rows of one partition have one writer in a process: what renews, takes and releases leases
(`leases.holder`) writes the same rows under the same lock. A row that another host took is no
error: nothing is saved for it any more.
"""

import logging
import time
from collections.abc import Collection

from penstock.leases import Lease, LeaseStore
from penstock.leases.holder import SAVED, now_text
from penstock.model.errors import Malformed, Unavailable
from penstock.model.position import Bookmark, Bookmarks, PartitionId
from penstock.process.backoff import Clock
from penstock.reading.positions import BookmarkRows, read_bookmark

log = logging.getLogger("penstock")


class HostPositions(BookmarkRows):
    """The positions `NAME/BACKEND` of a processor's host `owner`, one process's name."""

    def __init__(
        self, store: LeaseStore, prefix: str, owner: str, *, clock: Clock = time.monotonic
    ) -> None:
        super().__init__(store, prefix, owner, "processor", exact=False)
        self.unreadable = ""  # why a row could not be read, at the last survey
        self._clock = clock

    def survey(self) -> dict[PartitionId, tuple[Lease, Bookmark]]:
        """All rows, whoever owns them; changes nothing. Raises Unavailable, and SettingsError for
        one of another kind. One that penstock did not write is `unreadable`, and nobody's."""
        found, unreadable = {}, ""
        for row in self._list():
            try:
                found[self.partition(row.name)] = row, read_bookmark(row)
            except Malformed as error:
                unreadable = str(error)
        if unreadable != self.unreadable:
            log.error("%s", unreadable or "all stored positions can be read again")
        self.unreadable = unreadable
        return found

    def stored(self, partition: PartitionId) -> Bookmark | None:
        """What this object knows to be stored of a partition of ours."""
        return self._stored.get(partition)

    def save(self, newest: Bookmarks) -> None:
        """Writes what is new, but for rows that another host has by now, also ones that this would
        make: `stored` tells. Raises Unavailable, SettingsError."""
        began = self._clock()
        try:
            with self.rows.lock:
                self._stored |= self._read(self.rows.resolve())
                fresh = self._fresh(newest)
                self._write(fresh, **{SAVED: now_text()})
        except Unavailable as error:
            self._note_write(began, self._clock(), str(error))
            raise
        if fresh or self.error:
            self._note_write(began, self._clock())

    def verify(self, partition: PartitionId | None = None) -> None:
        """Reads our rows again (a partition's alone, if it is ours): this process may have been
        frozen while another host took them. From any thread."""
        names = () if partition is None else (self.name(partition),)
        with self.rows.lock:
            self._stored |= self._read(self.rows.verify(names))

    def record_taken(self, partitions: Collection[PartitionId]) -> dict[PartitionId, Bookmark]:
        """These rows were just taken, and are saved from now on; returns their bookmarks."""
        with self.rows.lock:
            found = self._read(self.rows.known([self.name(name) for name in partitions]))
            self._stored |= found
            return found

    def record_released(self, partitions: Collection[PartitionId]) -> None:
        """These rows are not ours any more: nothing is saved for them."""
        with self.rows.lock:
            self.rows.drop([self.name(name) for name in partitions])
            for name in partitions:
                self._stored.pop(name, None)
