"""One partition of an iterator: its reader, its pages, and how far they were handed out."""

from collections import deque
from collections.abc import Iterator, Sequence

import orjson

from penstock.feeds import NativeRecord, RecordReader
from penstock.model.errors import PenstockError
from penstock.model.page import Page
from penstock.model.position import Bookmark, Place
from penstock.reading.reader import PartitionReader, Step

# Records that are decoded at a time: many that live at once cost the garbage collector.
_SOME = 32


class Shard:
    """A partition that is read after a bookmark; `read` makes records of pages."""

    def __init__(self, reader: PartitionReader, bookmark: Bookmark, read: RecordReader) -> None:
        self.reader = reader
        self._read = read
        self._known = bookmark  # of what was handed out
        self._handed: NativeRecord | None = None  # the last record that was
        self._pages: deque[Page] = deque()  # that were not decoded wholly
        self._reading: Iterator[NativeRecord] | None = None  # the first of them
        self._decoded: Place | None = None  # of the last record that was decoded
        # Seconds until another poll is worth it, after one that failed.
        self.pause = 0.0
        # Another thread reads; what it read was not taken in.
        self.is_reading = False

    def step(self, wait: float = 0.0) -> Step:
        """Reads once, for at most `wait` seconds; another thread may do it, one at a time."""
        if self._place is not None:
            self.reader.durable(self._place)
        return self.reader.step(wait)

    def take(self, step: Step) -> None:
        """Takes in what was read. Raises why it could not."""
        self._pages.extend(step.pages)
        self.pause = step.wait
        if step.error is not None:
            raise step.error

    def heartbeat(self, *, connects: bool = False) -> None:
        """Keeps the connection or iterator, if any; with `connects` also before the first read."""
        if connects or self.reader.is_connected:
            self.take(self.reader.step(0.0, keep_alive=True))

    @property
    def size(self) -> int:
        """Bytes of the pages that were not decoded wholly."""
        return sum(page.size for page in self._pages)

    @property
    def has_pages(self) -> bool:
        return bool(self._pages)

    def decode(self) -> Sequence[NativeRecord]:
        """More records, or none, of the first page; Malformed at one that cannot be decoded."""
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
        except BaseException as error:
            self._reading = None  # to begin the page again, after what is returned here
            if not found or not isinstance(error, PenstockError):  # Ctrl-C: nothing is returned
                raise
        if found:
            self._decoded = found[-1].place
        return found

    @property
    def ended(self) -> bool:
        """Whether the partition has ended, and all of it was decoded."""
        return self.reader.drained and not self._pages and not self.is_reading

    def handed_out(self, record: NativeRecord) -> None:
        self._handed = record

    def bookmark(self, *, holds: bool) -> Bookmark:
        """After what was handed out. `holds`: records of this shard are in the buffer."""
        self._known = self._find(holds or self.has_pages) or self._known
        return self._known._replace(ended=True) if self.ended and not holds else self._known

    def _find(self, is_behind: bool) -> Bookmark | None:
        """A record's own mark is exact; the reader's may be newer where all was handed out."""
        handed = self._handed
        if handed is not None and handed.mark is not None and is_behind:
            return Bookmark(handed.place, orjson.loads(handed.mark))
        return self.reader.bookmark(self._place)

    @property
    def _place(self) -> Place | None:
        return self._known.place if self._handed is None else self._handed.place
