"""The way back, downwards only: what is durable is saved, and what is saved is acknowledged."""

from collections.abc import Collection, Sequence
from typing import Protocol

from penstock.model.errors import Unavailable
from penstock.model.position import START, Bookmark, Bookmarks, PartitionId, Place
from penstock.reading.positions import Positions


class Acknowledger(Protocol):
    """What reads partitions: a reservoir, or a partition of a processor."""

    @property
    def open_partitions(self) -> Sequence[PartitionId]:
        """The partitions that are being read."""

    def bookmark(self, partition: PartitionId, place: Place | None) -> Bookmark | None:
        """What to store when everything up to `place` is durable; None: what is stored stays."""

    def acknowledge(self, saved: Bookmarks) -> None:
        """These bookmarks are stored: the source may discard everything up to them."""


class Store(Protocol):
    """Where bookmarks are saved: a pipeline's positions, or one partition's lease."""

    def is_due(self, changes: int) -> bool:
        """Whether it is time to save, after `changes` more changes. Raises LeaseLost."""

    def save(self, newest: Bookmarks, *, force: bool = False) -> Bookmarks:
        """Writes what is new; returns it. Raises LeaseLost, and Unavailable only with `force`."""


class Saver:
    """Saves what is durable, and then acknowledges what was saved, for one caller at a time.

    Without `positions` (penstock as a library) the caller has saved the bookmarks already, in
    Spark's checkpoint. Without a `reader` tasks read: the durable bookmarks have the marks of now,
    and nobody here acknowledges.
    """

    def __init__(self, positions: Store | None, reader: Acknowledger | None = None) -> None:
        self._positions, self._reader = positions, reader

    def save(self, durable: Bookmarks, changes: int, *, force: bool = False) -> None:
        """Everything up to `durable` is in the sink, `changes` more than before. Saves it when it
        is due (now, if `force`). Raises LeaseLost, and Unavailable only with `force`."""
        saved = durable
        if self._positions is not None:
            if not self._positions.is_due(changes) and not force:
                return
            saved = self._positions.save(self._newest(durable), force=force)
        if self._reader is not None:
            self._reader.acknowledge(saved)

    def _newest(self, durable: Bookmarks) -> Bookmarks:
        """With the marks of now: an idle partition advances, too. A place whose mark is not known
        is not saved: with another place's mark, changes would be passed over or repeated."""
        reader, found = self._reader, dict(durable)
        if reader is None:
            return found
        for name in reader.open_partitions:
            bookmark = durable.get(name, START)
            if not bookmark.ended:
                if (newest := reader.bookmark(name, bookmark.place)) is not None:
                    found[name] = newest
                elif bookmark.place is not None:
                    found.pop(name, None)
        return found


class Keeper(Saver):
    """Does this with a pipeline's positions, and removes what is done."""

    def __init__(self, positions: Positions | None, reader: Acknowledger | None = None) -> None:
        super().__init__(positions, reader)
        self._rows = positions

    def forget(self, partitions: Collection[PartitionId], durable: Bookmarks) -> bool:
        """Removes the bookmarks of partitions that are done and not listed; saves their children's
        first: what descends from nothing stored is a gap. False while the store is away."""
        try:
            self.save(durable, 0, force=True)
        except Unavailable:
            return False
        if self._rows is not None:
            self._rows.forget(partitions)
        return True
