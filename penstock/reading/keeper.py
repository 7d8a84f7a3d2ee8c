"""The way back, in one pass: durable places in, saved bookmarks out, acknowledged with them."""

from penstock.position import START, Bookmark, Bookmarks, PartitionId
from penstock.reading.assignments import Assignments
from penstock.reading.positions import Positions
from penstock.reservoir.reservoir import Reservoir

__all__ = ["Keeper"]


class Keeper:
    """Releases, saves and acknowledges what is durable, in this order. Without `positions`
    (penstock as a library) the bookmarks it is given are in Spark's checkpoint: saved already."""

    def __init__(self, reservoir: Reservoir | Assignments, positions: Positions | None) -> None:
        self._reservoir = reservoir
        self._positions = positions

    def settle(self, durable: Bookmarks, *, force: bool = False) -> None:
        """Everything up to `durable` is in the sink. Saves it when it is time (now, if `force`),
        and acknowledges what is saved. Raises LeaseLost if another process saved meanwhile."""
        with self._reservoir.wake:
            places = {name: each.place for name, each in durable.items() if each.place is not None}
            released = self._reservoir.stored(places)
        self.save(durable, released, force=force)

    def save(self, durable: Bookmarks, released: int, *, force: bool = False) -> None:
        """The same for pages that were released already, with `released` changes."""
        if self._positions is None:
            self._reservoir.acknowledge(durable)
            return
        saved = self._positions.save(lambda: self._newest(durable), released, force=force)
        self._reservoir.acknowledge(saved)

    def _newest(self, durable: Bookmarks) -> dict[PartitionId, Bookmark]:
        """With the marks of now: an idle partition advances, too. A place whose mark is not known
        is not saved: with another place's mark, changes would be passed over or repeated."""
        found = dict(durable)
        for name in self._reservoir.open_partitions:
            bookmark = durable.get(name, START)
            if not bookmark.ended:
                newest = self._reservoir.bookmark(name, bookmark.place)
                if newest is not None:
                    found[name] = newest
                elif bookmark.place is not None:
                    found.pop(name, None)
        return found
