"""One partition of an iterator: its following, the pages that it gave, and how far they were handed
out. It is opened late, and again after a lost connection: after what was fetched, not repeated.
"""

from collections import deque
from collections.abc import Iterator, Sequence

import orjson

from penstock.errors import PenstockError
from penstock.feeds import Feed, Following, Gap, NativeRecord, RecordReader
from penstock.page import Page
from penstock.position import Bookmark, PartitionId, Place

__all__ = ["Shard"]

# Records that are decoded at a time: many that live at once cost the garbage collector.
_SOME = 32


class Shard:
    """A partition, read from a bookmark on. Errors are those of `Following.read`; after one, the
    next `poll` follows again."""

    def __init__(
        self, feed: Feed, partition: PartitionId, bookmark: Bookmark, read: RecordReader
    ) -> None:
        self.partition = partition
        self._feed = feed
        self._read = read
        self._following: Following | None = None
        self._known = bookmark  # of what was handed out
        self._resume = bookmark  # of what was fetched
        self._handed: NativeRecord | None = None
        self._pages: deque[Page] = deque()
        self._reading: Iterator[NativeRecord] | None = None  # the first of them
        self._decoded: Place | None = None
        self._ended = False
        self._acknowledged: Bookmark | None = None

    def poll(self, wait: float = 0.0, *, despite: Gap | None = None) -> None:
        """Reads once, for at most `wait` seconds."""
        if self._ended:
            return
        following = self._following
        if following is None or despite is not None:
            self.close()
            following = self._feed.follow(self.partition, self._resume, despite=despite)
            self._following = following
            if self._acknowledged is not None:
                following.acknowledge(self._acknowledged)
        try:
            self._keep(following, following.read(wait))
        except BaseException:  # Ctrl-C as well: pages that it took are read again
            self.close()
            raise

    def heartbeat(self) -> None:
        """Keeps the connection or the source's iterator, if there is one that needs it."""
        following = self._following
        if following is None or self._ended:
            return
        try:
            self._keep(following, following.keep_alive())
        except BaseException:
            self.close()
            raise

    def _keep(self, following: Following, pages: Sequence[Page]) -> None:
        if pages:
            self._pages.extend(pages)
            last = pages[-1].last
            self._resume = following.bookmark(last) or Bookmark(last, self._resume.mark)
        self._ended = following.drained

    @property
    def has_pages(self) -> bool:
        """Whether there are pages that were not decoded."""
        return bool(self._pages)

    def decode(self) -> Sequence[NativeRecord]:
        """Some more records, or none, of the first page; raises Malformed at the first record that
        cannot be decoded, and the page stays."""
        found: list[NativeRecord] = []
        if self._reading is None:
            self._reading = iter(self._read(self._pages[0]))
        try:
            for record in self._reading:
                if self._decoded is None or record.place > self._decoded:
                    found.append(record)
                if len(found) == _SOME:
                    break
            else:
                self._pages.popleft()
                self._reading = None
        except PenstockError:
            self._reading = None  # to begin the page again, after what is returned here
            if not found:
                raise
        if found:
            self._decoded = found[-1].place
        return found

    @property
    def ended(self) -> bool:
        """Whether the partition has ended, and all of it was decoded."""
        return self._ended and not self._pages

    def handed_out(self, record: NativeRecord) -> None:
        """Notes that everything up to this record was handed out."""
        self._handed = record

    def bookmark(self, *, holds: bool) -> Bookmark:
        """After what was handed out. `holds`: records of this shard are in the buffer."""
        behind = holds or self.has_pages
        self._known = self._find(behind) or self._known
        return self._known._replace(ended=True) if self._ended and not behind else self._known

    def _find(self, behind: bool) -> Bookmark | None:
        """A record's own mark is exact; the following's may be newer where all was handed out."""
        handed = self._handed
        if handed is not None and handed.mark is not None and (behind or self._following is None):
            return Bookmark(handed.place, orjson.loads(handed.mark))
        if self._following is not None:
            return self._following.bookmark(self._place)
        return None if handed is None else Bookmark(handed.place, self._resume.mark)

    @property
    def _place(self) -> Place | None:
        return self._known.place if self._handed is None else self._handed.place

    def acknowledge(self, bookmark: Bookmark) -> None:
        """The source may forget everything up to the bookmark; sent with the next call."""
        self._acknowledged = bookmark
        if self._following is not None:
            self._following.acknowledge(bookmark)

    def close(self) -> None:
        """Closes the connection; the next `poll` opens another one."""
        following, self._following = self._following, None
        if following is not None:
            if self._handed is not None and self._handed.mark is None:
                self._known = following.bookmark(self._handed.place) or self._known
                self._handed = None
            following.close()
