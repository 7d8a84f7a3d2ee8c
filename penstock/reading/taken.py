"""Partitions whose leases this host has just taken, until they are opened.

A feed that moves bookmarks may not give what its last owner stored after the saved bookmark under
the same places again (`feeds.MovesBookmarks`): the sink is asked first how far it has a partition.
"""

import logging
import threading
from collections.abc import Mapping

from penstock.backoff import delays
from penstock.errors import PenstockError
from penstock.feeds import Feed, MovesBookmarks
from penstock.position import Bookmark, Bookmarks, PartitionId
from penstock.sinks import Record, ReportsPositions, Sink

# Seconds until the next question when there is none.
_LATER = 3600.0

log = logging.getLogger("penstock")


def moved(
    feed: MovesBookmarks, saved: Bookmarks, records: Mapping[PartitionId, Record]
) -> dict[PartitionId, Bookmark]:
    """The bookmarks that the feed moves, after what the sink has."""
    nothing = Record()
    found = {
        name: feed.moved(bookmark, records.get(name, nothing).bookmark)
        for name, bookmark in saved.items()
    }
    return {name: bookmark for name, bookmark in found.items() if bookmark is not None}


class TakenPartitions:
    """Threads may share it. `error`: why the sink does not answer, "" while it does."""

    def __init__(self, feed: Feed, sink: Sink | None) -> None:
        self.error = ""
        self._feed = feed if isinstance(feed, MovesBookmarks) else None
        self._sink = sink if isinstance(sink, ReportsPositions) else None
        self._backend = feed.backend
        self._lock = threading.Lock()  # of the two that follow
        self._unasked: dict[PartitionId, Bookmark] = {}
        self._ready: dict[PartitionId, Bookmark] = {}
        self._waits = delays()

    def add(self, saved: Bookmarks) -> None:
        """These were taken, with the bookmarks in their rows."""
        asks = self._feed is not None and self._sink is not None
        with self._lock:
            (self._unasked if asks else self._ready).update(saved)

    def discard(self, partition: PartitionId) -> None:
        """It is not ours any more."""
        with self._lock:
            self._unasked.pop(partition, None)
            self._ready.pop(partition, None)

    def ask(self) -> float:
        """Asks the sink, if there is anything to ask; seconds until the next call. One thread calls
        it."""
        with self._lock:
            asked = dict(self._unasked)
        if not asked or self._feed is None or self._sink is None:
            return _LATER
        try:
            records = self._sink.records(self._backend, list(asked))
            found = asked | moved(self._feed, asked, records)
        except PenstockError as error:
            if not self.error:
                log.warning("the sink does not say how far it has what was taken: %s", error)
            self.error = str(error)
            return next(self._waits)
        self.error, self._waits = "", delays()
        with self._lock:
            for name, bookmark in asked.items():
                if self._unasked.get(name) is bookmark:  # else it was discarded meanwhile
                    self._ready[name] = found[name]
                    del self._unasked[name]
        return _LATER

    def ready(self) -> dict[PartitionId, Bookmark]:
        """Those that may be opened, with where to go on; they are removed."""
        with self._lock:
            found, self._ready = self._ready, {}
            return found
