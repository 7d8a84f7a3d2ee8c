"""Bookmarks of partitions in the rows of a lease store: a row for each partition."""

import json
import logging
from collections.abc import Callable, Iterable

from penstock.leases import Lease, LeaseStore
from penstock.leases.gaps import Gaps
from penstock.leases.holder import KIND
from penstock.leases.kinds import Kind, verify_kind
from penstock.leases.owned import OwnedRows
from penstock.model.errors import Malformed
from penstock.model.position import Bookmark, Bookmarks, PartitionId

# What a row holds before anything was saved.
NOTHING = Bookmark(mark={})

log = logging.getLogger("penstock")


class BookmarkRows:
    """The rows `prefix/PARTITION` of one owner, of a pipeline or of a processor. With `exact`, a
    row is the owner's only if it is as this object wrote it."""

    def __init__(
        self, store: LeaseStore, prefix: str, owner: str, kind: Kind, *, exact: bool
    ) -> None:
        self.prefix = prefix  # NAME/BACKEND
        self.kind: Kind = kind
        self.rows = OwnedRows(store, f"{prefix}/", owner, exact=exact, stated={KIND: kind})
        # Why the last write failed; "" after one that did not.
        self.error = ""
        # Called after each write, with the seconds that it took and its error.
        self.on_write: Callable[[float, str], None] = lambda _seconds, _error: None
        # What the rows hold, as far as this object knows; the rows' lock guards both.
        self._stored: dict[PartitionId, Bookmark] = {}

    @property
    def gaps(self) -> Gaps:
        """The gaps of the same backend, in the same store."""
        return Gaps(self.rows.store, self.prefix)

    def name(self, partition: PartitionId) -> str:
        """The name of the partition's row."""
        return f"{self.prefix}/{partition}"

    def partition(self, name: str) -> PartitionId:
        """The partition whose row has this name."""
        return PartitionId(name.removeprefix(f"{self.prefix}/"))

    def _fresh(self, bookmarks: Bookmarks) -> dict[PartitionId, Bookmark]:
        """Those of the bookmarks that are to be written."""
        fresh = {}
        for name, newest in bookmarks.items():
            stored = self._stored.get(name, NOTHING)
            # Without a mark: none that is newer than the stored one.
            bookmark = newest if newest.mark is not None else newest._replace(mark=stored.mark)
            # A first bookmark is stored even where it says nothing: what descends from it descends
            # from something known.
            if name not in self._stored or bookmark != stored:
                fresh[name] = bookmark
        return fresh

    def _note_write(self, began: float, now: float, error: str = "") -> None:
        if error and not self.error:
            log.warning("positions cannot be saved; trying again: %s", error)
        if self.error and not error:
            log.warning("positions are saved again")
        self.error = error
        self.on_write(now - began, error)

    def _list(self) -> list[Lease]:
        """All rows, whoever owns them. Raises SettingsError for one of another kind."""
        rows = self.rows.list()
        verify_kind(rows, self.kind)
        return rows

    def _read(self, rows: Iterable[Lease]) -> dict[PartitionId, Bookmark]:
        """The bookmarks of rows; raises Malformed."""
        return {self.partition(row.name): read_bookmark(row) for row in rows}


def bookmark_text(bookmark: Bookmark) -> str:
    """A row's continuation."""
    return json.dumps(bookmark.to_json())


def read_bookmark(lease: Lease) -> Bookmark:
    """The bookmark in a row; raises Malformed for one that penstock did not write."""
    try:
        bookmark = Bookmark.from_json(json.loads(lease.continuation))
    except (ValueError, Malformed) as error:
        raise Malformed(
            f"the stored position {lease.name!r} can't be read",
            hint="was the positions store written by something else?",
        ) from error
    # A store keeps marks: none is one that says nothing.
    return bookmark if bookmark.mark is not None else bookmark._replace(mark={})
