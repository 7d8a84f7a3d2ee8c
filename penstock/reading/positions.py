"""Saves bookmarks to the rows of a lease store, a row for each partition, at intervals; a source is
acknowledged only what is saved.

Without a store (penstock as a library) Spark's own checkpoint is the record: what `latestOffset`
is called with is in it already.
"""

import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from penstock.config import Checkpoint
from penstock.leases import Lease, LeaseStore, open_store
from penstock.leases.gaps import Gaps
from penstock.leases.holder import KIND
from penstock.leases.kinds import Kind, verify_kind
from penstock.leases.owned import OwnedRows
from penstock.model.errors import LeaseLost, Malformed, Unavailable
from penstock.model.position import Bookmark, Bookmarks, PartitionId
from penstock.process.backoff import Clock

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
        # Called after each write, with the seconds that it took, its error, and what it wrote.
        self.on_write: Callable[[float, str, Bookmarks], None] = lambda _seconds, _error, _made: (
            None
        )
        # What the rows hold, as far as this object knows; the rows' lock guards both.
        self._stored: dict[PartitionId, Bookmark] = {}

    @property
    def gaps(self) -> Gaps:
        return Gaps(self.rows.store, self.prefix)

    def name(self, partition: PartitionId) -> str:
        return f"{self.prefix}/{partition}"

    def partition(self, name: str) -> PartitionId:
        return PartitionId(name.removeprefix(f"{self.prefix}/"))

    def _fresh(self, bookmarks: Bookmarks) -> dict[PartitionId, Bookmark]:
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

    def _write(self, bookmarks: Bookmarks, **properties: Any) -> None:
        """Writes these to their rows; its caller has the rows' lock. Raises Unavailable."""
        texts = {self.name(name): bookmark_text(each) for name, each in bookmarks.items()}
        written = self.rows.write(
            texts,
            lambda row: replace(
                row,
                owner=self.rows.owner,
                continuation=texts[row.name],
                properties={**row.properties, **properties},
            ),
        )
        mine = {name: each for name, each in bookmarks.items() if self.name(name) in written}
        self._stored |= mine

    def plant(
        self,
        bookmarks: Bookmarks,
        properties: Mapping[PartitionId, Mapping[str, Any]] = MappingProxyType({}),
        *,
        owner: str = "",
    ) -> Sequence[Lease | LeaseLost]:
        """Makes the rows of partitions that have none, with the user's `properties`; the first
        bookmark wins. Raises Unavailable, SettingsError."""
        rows = [
            Lease(
                name=self.name(name),
                owner=owner,
                continuation=bookmark_text(bookmark),
                properties=properties.get(name, {}),
            )
            for name, bookmark in bookmarks.items()
        ]
        return self.rows.store.put_all(list(map(self.rows.state, rows)))

    def _note_write(
        self, began: float, now: float, error: str = "", written: Bookmarks = MappingProxyType({})
    ) -> None:
        if error and not self.error:
            log.warning("positions cannot be saved; trying again: %s", error)
        if self.error and not error:
            log.warning("positions are saved again")
        self.error = error
        self.on_write(now - began, error, written)

    def _list(self) -> list[Lease]:
        """All rows, whoever owns them. Raises SettingsError for one of another kind."""
        rows = self.rows.list()
        verify_kind(rows, self.kind)
        return rows

    def _read(self, rows: Iterable[Lease]) -> dict[PartitionId, Bookmark]:
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
            "reading",
            hint="did another program write to the positions store?",
        ) from error
    # A store keeps marks: none is one that says nothing.
    return bookmark if bookmark.mark is not None else bookmark._replace(mark={})


# Seconds without a `save` after which the rows are read again: it is called twice a second, so this
# process was frozen, or its sink was away.
PAUSE = 2.0
_CLAIMS = 100
# Seconds after a failed save before the next, at most: each may wait for the store's own timeout.
_AGAIN = 5.0


class Positions(BookmarkRows):
    """The saved bookmarks of one backend of one pipeline: a lease for each partition.

    Saves when `interval` seconds have passed or `event_count` changes have come since the last
    time, and when asked to; many rows in one write. `owner` is this instance of the pipeline; rows
    of another one are not touched, and one that another process wrote is LeaseLost. Rows of another
    kind of owner are a SettingsError.

    A store that is away delays acknowledgements and nothing else: `save` returns nothing, and
    `error` says why, until it is back.
    """

    def __init__(
        self,
        store: LeaseStore,
        prefix: str,
        *,
        interval: float,
        event_count: int,
        clock: Clock,
        owner: str = "",
    ) -> None:
        super().__init__(store, prefix, owner, "pipeline", exact=True)
        # What of a write without an answer turned out to be written, until `save` returns it.
        self._resolved: dict[PartitionId, Bookmark] = {}
        self._interval, self._event_count, self._clock = interval, event_count, clock
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

    def verify_name(self) -> None:
        """Raises SettingsError if a row of this name, of any backend, is of another kind."""
        name = self.prefix.partition("/")[0]
        verify_kind(self.rows.store.list(f"{name}/"), self.kind)

    def claim(self) -> None:
        """Makes every row ours: who wrote it fails with LeaseLost. Raises as `verify_name` does."""
        for _ in range(_CLAIMS):
            found = self._list()
            rows = [self.rows.state(replace(each, owner=self.rows.owner)) for each in found]
            written = self.rows.store.put_all(rows)
            if not any(isinstance(each, LeaseLost) for each in written):
                return
            # Their owner saved in this moment.
        raise Unavailable(f"the positions of {self.prefix} change all the time", "reading")

    def load(self) -> dict[PartitionId, Bookmark]:
        """What is stored. Raises Unavailable, Malformed, LeaseLost for another instance's row."""
        rows = self._list()
        with self.rows.lock:
            self.rows.clear()
            self._stored, self._resolved = {}, {}
            return self._adopt(rows)

    def begin(self, bookmarks: Bookmarks) -> dict[PartitionId, Bookmark]:
        """Stores where a first start begins, before anything is read; rows that are there stay.
        Returns what is stored now. Raises as `load` does."""
        stored = self.load()
        fresh = {name: each for name, each in bookmarks.items() if name not in stored}
        made = self.plant(fresh, owner=self.rows.owner)
        found = [each for each in made if isinstance(each, Lease)]
        if len(found) < len(made):
            found = [row for row in self._list() if self.partition(row.name) in fresh]
        return stored | self._adopt(found)

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
        """Writes those of the bookmarks that are new; returns what was written. Raises LeaseLost if
        another process wrote meanwhile, and Unavailable only with `force`."""
        now = self._clock()
        try:
            self._resolve()
            fresh = self._fresh(newest)
            with self.rows.lock:
                self._write(fresh)
                self._verify_ours()
        except Unavailable as error:
            self._failed(now, error)
            if force:
                raise
            return {}
        if fresh or self.error:
            self._note_write(now, self._clock(), written=fresh)
        self._changes = 0
        self._next = now + self._interval
        with self.rows.lock:
            resolved, self._resolved = self._resolved, {}
        return {**resolved, **fresh}

    def _failed(self, began: float, error: Unavailable) -> None:
        now = self._clock()
        self._next = now + min(self._interval, _AGAIN)
        self._note_write(began, now, str(error))

    def unsaved(self, durable: Bookmarks) -> str:
        """Which of these bookmarks are not stored, for a log: a few, with their places."""
        late = [
            f"{name} at {each.place}"
            for name, each in durable.items()
            if each.place not in (None, self._stored.get(name, NOTHING).place)
        ]
        more = [f"{len(late) - 5} more"] if len(late) > 5 else []
        return ", ".join([*late[:5], *more]) or "marks only"

    def verify(self, partition: PartitionId | None = None) -> None:
        """Reads the rows again (a partition's alone, if it is stored): this process may have been
        frozen while another instance wrote them. Raises LeaseLost if one did. From any thread."""
        # Whoever takes over claims every row, so that one row says it.
        names = () if partition is None else (self.name(partition),)
        with self.rows.lock:
            self._take_over(self.rows.verify(names))

    def forget(self, partitions: Collection[PartitionId]) -> None:
        """Removes the rows of partitions that are done, and whose children have rows, or that the
        source no longer lists. A row that another owner changed stays; raises as `verify` does."""
        with suppress(Unavailable):  # a row that stays is one that is done
            self._resolve()
        for partition in partitions:
            with self.rows.lock:
                with suppress(Unavailable):
                    self.rows.remove(self.name(partition))
                self._stored.pop(partition, None)
        self._verify_ours()

    def _resolve(self) -> None:
        """Takes over what a write without an answer did write."""
        with self.rows.lock:
            self._take_over(self.rows.resolve())

    def _take_over(self, rows: Collection[Lease]) -> None:
        for name, bookmark in self._read(rows).items():
            if bookmark != self._stored.get(name):
                self._stored[name] = self._resolved[name] = bookmark
        self._verify_ours()

    def _adopt(self, rows: Collection[Lease]) -> dict[PartitionId, Bookmark]:
        """Rows that were just read are ours to save. Raises LeaseLost for one of another owner."""
        for row in rows:
            if self.rows.owner and row.owner not in ("", self.rows.owner):
                raise LeaseLost(f"{row.name} is {row.owner}'s now", "reading")
        found = self._read(rows)
        with self.rows.lock:
            self.rows.adopt(rows)
            self._stored |= found
            self._verify_ours()
        return found

    def _verify_ours(self) -> None:
        with self.rows.lock:
            if lost := self.rows.lost:
                raise LeaseLost(f"{min(lost)} was written by another instance", "reading")
