"""Saves bookmarks to the lease store, at intervals; a source is acknowledged only what is saved.

Without a store (penstock as a library) Spark's own checkpoint is the record: what `latestOffset`
is called with is in it already.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import replace

from penstock.config import Checkpoint
from penstock.errors import LeaseLost, Malformed, Unavailable
from penstock.leases import Lease, LeaseStore
from penstock.leases.gaps import Gaps
from penstock.leases.open import open_store
from penstock.position import Bookmark, Bookmarks, PartitionId

__all__ = ["Positions"]

# Seconds without a `save` after which we look whether the rows are still ours: Spark calls it
# twice a second, so this process was frozen, or its sink was away.
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
    instance of the pipeline; rows of another one are not touched. With `shared`, partitions are
    divided between instances: a row that another one took is `lost` here, and no error.

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
    ) -> None:
        self.lost: set[PartitionId] = set()
        self.error = ""
        self.on_write: Callable[[float, str], None] = lambda _seconds, _error: None
        self._store = store
        self._prefix = prefix
        self._interval = interval
        self._event_count = event_count
        self._clock = clock
        self._owner = owner
        self._shared = shared
        self._leases: dict[PartitionId, Lease] = {}
        self._stored: dict[PartitionId, Bookmark] = {}
        # Rows of a write whose outcome is unknown, and their bookmarks.
        self._unsure: dict[PartitionId, tuple[Lease, Bookmark]] = {}
        # What of it turned out to be written, until `save` returns it.
        self._settled: dict[PartitionId, Bookmark] = {}
        self._lock = threading.Lock()
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
        return Gaps(self._store, self._prefix)

    def claim(self) -> None:
        """Makes every row this instance's. Whoever wrote them before fails with LeaseLost."""
        for _ in range(_CLAIMS):
            rows = [replace(lease, owner=self._owner) for lease in self._rows()]
            written = self._store.put_all(rows)
            if not any(isinstance(each, LeaseLost) for each in written):
                return
            # Their owner saved in this moment.
        raise Unavailable(f"the positions of {self._prefix} change all the time")

    def load(self) -> dict[PartitionId, Bookmark]:
        """What is stored; raises Unavailable, Malformed for a row that penstock did not write, and
        LeaseLost for one of another instance (`shared`: passes it over)."""
        self._leases, self._stored, self._unsure, self._settled = {}, {}, {}, {}
        for lease in self._rows():
            if self._owner and lease.owner not in ("", self._owner):
                if self._shared:
                    continue
                raise LeaseLost(f"{lease.name} is {lease.owner}'s now")
            partition = self._partition(lease)
            self._leases[partition] = lease
            self._stored[partition] = _read(lease)
        return dict(self._stored)

    def is_known(self) -> bool:
        """Whether anything is stored; not a place, perhaps: an idle source has a mark only.
        Raises as `load` does."""
        return bool(self.load())

    def begin(self, bookmarks: Bookmarks) -> None:
        """Stores where a first start begins, before anything is read; rows that are there stay.
        Raises as `save` does."""
        self.load()
        self._write({name: b for name, b in bookmarks.items() if name not in self._stored})

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
            # A first bookmark is stored even where it says nothing: what descends from the partition
            # descends from something known.
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
            settled, self._settled = self._settled, {}
        return {
            name: bookmark
            for name, bookmark in {**settled, **fresh}.items()
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

    def verify(self) -> None:
        """Raises LeaseLost if another instance wrote our rows: this process may have been frozen
        while that one took over. From any thread."""
        self._resolve()
        with self._lock:
            ours = {lease.name: lease.revision for lease in self._leases.values()}
            if not ours or self._shared:
                return
            now = {lease.name: lease.revision for lease in self._rows()}
        for name, revision in ours.items():
            if now.get(name) != revision:
                raise LeaseLost(f"{name} was written by another instance")

    def forget(self, partitions: Collection[PartitionId]) -> None:
        """Removes the rows of partitions that are done, and that the source no longer lists."""
        with suppress(Unavailable):  # a row that stays is one that is done
            self._resolve()
        for partition in partitions:
            with self._lock:
                lease = self._leases.get(partition)
                if lease is not None:
                    with suppress(Unavailable):
                        self._store.delete(lease)
                self._leases.pop(partition, None)
                self._stored.pop(partition, None)

    def _write(self, bookmarks: Bookmarks) -> None:
        names = list(bookmarks)
        with self._lock:
            rows = [self._row(name, bookmarks[name]) for name in names]
            self._unsure = dict(zip(names, zip(rows, bookmarks.values(), strict=True), strict=True))
            written = self._store.put_all(rows) if rows else []
            self._unsure = {}
            for name, lease in zip(names, written, strict=True):
                if isinstance(lease, LeaseLost):
                    if not self._shared:
                        raise lease
                    self.lost.add(name)
                    continue
                self._leases[name] = lease
                self._stored[name] = bookmarks[name]

    def _resolve(self) -> None:
        """After a write whose answer did not come: takes over those of its rows that were written,
        which nobody but this instance can have written so."""
        with self._lock:
            if not self._unsure:
                return
            found = {lease.name: lease for lease in self._rows()}
            for name, (row, bookmark) in self._unsure.items():
                now = found.get(row.name)
                if now is not None and replace(now, revision=row.revision) == row:
                    self._leases[name], self._stored[name] = now, bookmark
                    self._settled[name] = bookmark
            self._unsure = {}

    def _row(self, partition: PartitionId, bookmark: Bookmark) -> Lease:
        lease = self._leases.get(partition) or Lease(name=f"{self._prefix}/{partition}")
        text = json.dumps(bookmark.to_json())
        return replace(lease, continuation=text, owner=self._owner)

    def _rows(self) -> list[Lease]:
        return list(self._store.list(f"{self._prefix}/"))

    def _partition(self, lease: Lease) -> PartitionId:
        return PartitionId(lease.name.removeprefix(f"{self._prefix}/"))


def _read(lease: Lease) -> Bookmark:
    try:
        bookmark = Bookmark.from_json(json.loads(lease.continuation))
    except (ValueError, Malformed) as error:
        raise Malformed(
            f"the stored position {lease.name!r} can't be read",
            hint="was the positions store written by something else?",
        ) from error
    # A store keeps marks: none is one that says nothing.
    return bookmark if bookmark.mark is not None else bookmark._replace(mark={})
