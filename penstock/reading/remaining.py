"""How many changes a source has after what is durable, of feeds that estimate it by asking."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from penstock.closing import Closes
from penstock.errors import PenstockError
from penstock.feeds import EstimatesLag, Feed
from penstock.position import Bookmarks, PartitionId

# Seconds between two rounds over all partitions.
EVERY = 5.0


class Remaining(Closes):
    """Asks in a thread of its own, from `open` to `close`, because asking does I/O; of any other
    feed it has nothing. `durable` gives the bookmarks."""

    def __init__(
        self, feed: Feed, durable: Callable[[], Bookmarks], *, every: float = EVERY
    ) -> None:
        self._feed = feed if isinstance(feed, EstimatesLag) else None
        self._durable = durable
        self._every = every
        self._counts: dict[PartitionId, int] = {}
        self._closed = threading.Event()
        self._is_open = False

    def open(self) -> None:
        """Begins to ask; idempotent."""
        if self._feed is not None and not self._is_open:
            self._is_open = True
            threading.Thread(target=self._run, args=(self._feed,), daemon=True).start()

    def close(self) -> None:
        """Asks no more."""
        self._closed.set()

    def of(self, partition: PartitionId) -> Mapping[str, Any]:
        """The fields of the partition's row: none as long as nothing is known."""
        found = self._counts.get(partition)
        return {} if found is None else {"lag": found, "lag_unit": "changes"}

    def _run(self, feed: EstimatesLag) -> None:
        while not self._closed.wait(self._every):
            counts: dict[PartitionId, int] = {}
            for name, bookmark in self._durable().items():
                if bookmark.ended or self._closed.is_set():
                    continue
                try:
                    found = feed.remaining(name, bookmark)
                except PenstockError:  # who reads the partition reports what is wrong
                    continue
                if found is not None:
                    counts[name] = found
            self._counts = counts
