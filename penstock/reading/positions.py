"""Saves bookmarks to the lease store, at intervals; a source is acknowledged only what is saved.

Without a store (penstock as a library) Spark's own checkpoint is the record: what `latestOffset`
is called with is in it already.
"""

import json
import logging
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

from penstock.config import Checkpoint
from penstock.leases import Lease, LeaseStore
from penstock.leases.gaps import Gaps
from penstock.leases.holder import KIND, SAVED, now_text
from penstock.leases.kinds import Kind, verify_kind
from penstock.leases.open import open_store
from penstock.leases.owned import OwnedRows
from penstock.model.errors import LeaseLost, Malformed, Unavailable
from penstock.model.position import Bookmark, Bookmarks, PartitionId

# Seconds without a `save` after which the rows are read again: it is called twice a second, so this
# process was frozen, or its sink was away.
PAUSE = 2.0
_CLAIMS = 100
_NOTHING = Bookmark(mark={})
# Seconds after a failed save before the next, at most: each may wait for the store's own timeout.
_AGAIN = 5.0

log = logging.getLogger("penstock")


class Positions:
    """The saved bookmarks of one backend of one pipeline: a lease for each partition.

    Saves when `interval` seconds have passed or `event_count` changes have come since the last
    time, and when asked to; many rows in one write. `clock` is monotonic seconds. `owner` is this
    instance of the pipeline; rows of another one are not touched, and one that another process
    wrote is LeaseLost. With `shared`, partitions are divided between owners, whose names are their
    processes' alone: a row that another one took is in `lost`, and no error; nothing is saved for
    it any more. A row that `save` would make and finds there is lost, too. Rows of another `kind`
    of owner are a SettingsError.

    A store that is away delays acknowledgements and nothing else: `save` returns nothing, and
    `error` says why, until it is back. `on_write` gets, after each write, the seconds that it took
    and the error, if it failed.
    """

    def __init__(
        self,
        store: LeaseStore,
        prefix: str,
        *,
        interval: float,
        event_count: int,
        clock: Callable[[], float],
        owner: str = "",
        shared: bool = False,
        kind: Kind = "pipeline",
    ) -> None:
        # Partitions of which another owner has the row.
        self.lost: set[PartitionId] = set()
        # Why the last write failed; "" after one that did not.
        self.error = ""
        self.on_write: Callable[[float, str], None] = lambda _seconds, _error: None
        self._prefix = prefix
        self._shared = shared
        self.kind: Kind = kind
        self._rows = OwnedRows(store, f"{prefix}/", owner, exact=not shared, stated={KIND: kind})
        # What the rows hold, as far as this object knows; the rows' lock guards both.
        self._stored: dict[PartitionId, Bookmark] = {}
        # What of a write without an answer turned out to be written, until `save` returns it.
        self._resolved: dict[PartitionId, Bookmark] = {}
        self._lock = self._rows.lock
        self._interval = interval
        self._event_count = event_count
        self._clock = clock
        # Of the saving thread: changes since the last save, when the next is due whatever comes,
        # and when `save` was called last.
        self._changes = 0
        self._next = clock()
        self._looked_at = clock()

    @classmethod
    def of(
        cls, url: str, pipeline: str, backend: str, checkpoint: Checkpoint, owner: str = ""
    ) -> "Positions":
        """The positions of a pipeline's backend in the store at `url`; does no I/O."""
        return cls(
            open_store(url),
            f"{pipeline}/{backend}",
            interval=checkpoint.interval,
            event_count=checkpoint.event_count,
            clock=time.monotonic,
            owner=owner,
        )

    @property
    def gaps(self) -> Gaps:
        """What this backend lost, in the same store."""
        return Gaps(self._rows.store, self._prefix)

    def verify_name(self) -> None:
        """Raises SettingsError if a row of this name, of any backend, is of another kind."""
        name = self._prefix.partition("/")[0]
        verify_kind(self._rows.store.list(f"{name}/"), self.kind)

    def claim(self) -> None:
        """Makes every row this instance's. Whoever wrote them before fails with LeaseLost. Raises
        SettingsError for a row of another kind."""
        for _ in range(_CLAIMS):
            found = self._rows.list()
            verify_kind(found, self.kind)
            rows = [self._rows.state(replace(each, owner=self._rows.owner)) for each in found]
            written = self._rows.store.put_all(rows)
            if not any(isinstance(each, LeaseLost) for each in written):
                return
            # Their owner saved in this moment.
        raise Unavailable(f"the positions of {self._prefix} change all the time")

    def load(self) -> dict[PartitionId, Bookmark]:
        """What is stored; raises Unavailable, Malformed for a row that penstock did not write, and
        LeaseLost for one of another instance."""
        rows = self._rows.list()
        with self._lock:
            self._rows.clear()
            self._stored, self._resolved = {}, {}
            return self._adopt(rows)

    def is_known(self) -> bool:
        """Whether anything is stored; not a place, perhaps: an idle source has a mark only.
        Raises as `load` does."""
        return bool(self.load())

    def begin(self, bookmarks: Bookmarks) -> None:
        """Stores where a first start begins, before anything is read; rows that are there stay.
        Raises as `load` does."""
        stored, owner = self.load(), self._rows.owner
        rows = [
            self._rows.state(
                Lease(name=self._name(name), owner=owner, continuation=bookmark_text(bookmark))
            )
            for name, bookmark in bookmarks.items()
            if name not in stored
        ]
        found = [each for each in self._rows.store.put_all(rows) if isinstance(each, Lease)]
        if len(found) < len(rows):
            names = {row.name for row in rows}
            found = [row for row in self._rows.list() if row.name in names]
        self._adopt(found)

    def is_due(self, changes: int) -> bool:
        """Whether it is time to save; `changes`: how many came since the last call. After a pause
        it looks first whether the rows are still ours: raises LeaseLost."""
        self._changes += changes
        now = self._clock()
        if self.error and now < self._next:
            return False
        if now - self._looked_at >= PAUSE:
            try:
                self.verify()
            except Unavailable as error:
                self._failed(now, error)
                return False
        self._looked_at = now
        return self._changes >= self._event_count or now >= self._next

    def save(self, newest: Bookmarks, *, force: bool = False) -> Bookmarks:
        """Writes those of the bookmarks that are new; returns what was written.

        Raises LeaseLost if another process wrote meanwhile, and Unavailable only with `force`.
        """
        now = self._clock()
        try:
            return self._save(newest, now)
        except Unavailable as error:
            self._failed(now, error)
            if force:
                raise
            return {}

    def _save(self, bookmarks: Bookmarks, now: float) -> Bookmarks:
        self._resolve()
        fresh = {}
        for name, newest in bookmarks.items():
            stored = self._stored.get(name, _NOTHING)
            # Without a mark: none that is newer than the stored one.
            bookmark = newest if newest.mark is not None else newest._replace(mark=stored.mark)
            # A first bookmark is stored even where it says nothing: what descends from it descends
            # from something known.
            if (name not in self._stored or bookmark != stored) and name not in self.lost:
                fresh[name] = bookmark
        self._write(fresh)
        if self.error:
            log.warning("positions are saved again")
            self.error = ""
        if fresh:
            self.on_write(self._clock() - now, "")
        self._changes = 0
        self._next = now + self._interval
        with self._lock:
            resolved, self._resolved = self._resolved, {}
        return {
            name: bookmark
            for name, bookmark in {**resolved, **fresh}.items()
            if name not in self.lost
        }

    def _failed(self, began: float, error: Unavailable) -> None:
        now = self._clock()
        self._next = now + min(self._interval, _AGAIN)
        if not self.error:
            log.warning("positions cannot be saved; trying again: %s", error)
        self.error = str(error)
        self.on_write(now - began, self.error)

    def unsaved(self, durable: Bookmarks, most: int = 5) -> str:
        """Which of these bookmarks are not stored, for a log: `most` partitions with their
        places."""
        places = {name: each.place for name, each in durable.items() if each.place is not None}
        late = [
            f"{name} at {place}"
            for name, place in places.items()
            if self._stored.get(name, _NOTHING).place != place
        ]
        more = [f"{len(late) - most} more"] if len(late) > most else []
        return ", ".join([*late[:most], *more]) or "marks only"

    def verify(self, partition: PartitionId | None = None) -> None:
        """Reads the rows again (a partition's alone, if it is stored): this process may have been
        frozen while another instance wrote them. Raises LeaseLost if one did (`shared`: such rows
        are `lost`). From any thread."""
        # Whoever takes over claims every row, so that one row says it.
        names = () if partition is None else (self._name(partition),)
        with self._lock:
            self._take_over(self._rows.verify(names))

    def forget(self, partitions: Collection[PartitionId]) -> None:
        """Removes the rows of partitions that are done, and whose children have rows, or that the
        source no longer lists. A row that another owner changed stays; raises as `verify` does."""
        with suppress(Unavailable):  # a row that stays is one that is done
            self._resolve()
        for partition in partitions:
            with self._lock:
                with suppress(Unavailable):
                    self._rows.remove(self._name(partition))
                self._stored.pop(partition, None)
        self._note_lost()

    def _write(self, bookmarks: Bookmarks) -> None:
        texts = {self._name(name): bookmark_text(bookmark) for name, bookmark in bookmarks.items()}
        with self._lock:
            stated = {SAVED: now_text()} if self._shared else {}
            written = self._rows.write(
                texts,
                lambda row: replace(
                    row,
                    owner=self._rows.owner,
                    continuation=texts[row.name],
                    properties={**row.properties, **stated} if stated else row.properties,
                ),
            )
            for name, bookmark in bookmarks.items():
                if self._name(name) in written:
                    self._stored[name] = bookmark
            self._note_lost()

    def _resolve(self) -> None:
        """After a write whose answer did not come: takes over those of its rows that were
        written."""
        with self._lock:
            self._take_over(self._rows.resolve())

    def _take_over(self, rows: Collection[Lease]) -> None:
        for name, bookmark in ((self._partition(row.name), read_bookmark(row)) for row in rows):
            if bookmark != self._stored.get(name):
                self._stored[name] = self._resolved[name] = bookmark
        self._note_lost()

    def _adopt(self, rows: Collection[Lease]) -> dict[PartitionId, Bookmark]:
        """Rows that were just read are ours to save. Raises LeaseLost for one of another owner."""
        verify_kind(rows, self.kind)
        for row in rows:
            if self._rows.owner and row.owner not in ("", self._rows.owner):
                raise LeaseLost(f"{row.name} is {row.owner}'s now")
        found = {self._partition(row.name): read_bookmark(row) for row in rows}
        with self._lock:
            self._rows.adopt(rows)
            self._stored |= found
            self._note_lost()
        return found

    def _note_lost(self) -> None:
        with self._lock:
            lost = self._rows.lost
            self.lost = {self._partition(name) for name in lost}
            if lost and not self._shared:
                raise LeaseLost(f"{min(lost)} was written by another instance")

    def _name(self, partition: PartitionId) -> str:
        return f"{self._prefix}/{partition}"

    def _partition(self, name: str) -> PartitionId:
        return PartitionId(name.removeprefix(f"{self._prefix}/"))


def bookmark_text(bookmark: Bookmark) -> str:
    """A row's continuation."""
    return json.dumps(bookmark.to_json())


def read_bookmark(lease: Lease) -> Bookmark:
    """A row's; raises Malformed for one that penstock did not write."""
    try:
        bookmark = Bookmark.from_json(json.loads(lease.continuation))
    except (ValueError, Malformed) as error:
        raise Malformed(
            f"the stored position {lease.name!r} can't be read",
            hint="was the positions store written by something else?",
        ) from error
    # A store keeps marks: none is one that says nothing.
    return bookmark if bookmark.mark is not None else bookmark._replace(mark={})
