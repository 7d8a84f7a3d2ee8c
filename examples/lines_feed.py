"""A feed in one module: each file `*.jsonl` of a folder is a partition, each line a change.

It is what docs/how-to/write-a-feed.md describes. Programs append to the files, and never rewrite
them.
"""

import base64
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import orjson
import ormsgpack
import pyarrow as pa

from penstock.feeds import At, Feed, FeedPlugin, Gap, GapPolicy, HistoryLost, Lineage, Listing
from penstock.model.change import Images, OnError, event_id, schema
from penstock.model.errors import Malformed, SettingsError, Unavailable
from penstock.model.finding import Finding
from penstock.model.page import Page
from penstock.model.position import START, Bookmark, Bookmarks, PartitionId, Place
from penstock.model.settings import Settings

__all__ = ["PLUGIN", "LinesFeed", "LinesFeedSettings"]

_PAGE = 256 * 1024  # bytes of a page, about


class LinesFeedSettings(Settings):
    """A backend of `type: lines` in a pipeline file."""

    name: str = "lines"
    type: Literal["lines"] = "lines"
    folder: Path


class LinesFeed(Feed):
    """A `penstock.feeds.Feed`. It is its settings, so it pickles; constructing it does no I/O."""

    def __init__(self, settings: LinesFeedSettings) -> None:
        self.settings = settings

    @property
    def backend(self) -> str:
        """Part of every event id."""
        return self.settings.name

    @property
    def on_gap(self) -> GapPolicy:
        """After a cut new lines would get the places of old ones, so this feed never goes on."""
        return "fail"

    def file(self, partition: PartitionId) -> Path:
        """The file of a partition."""
        return self.settings.folder / f"{partition}.jsonl"

    def partitions(self, known: Bookmarks = MappingProxyType({})) -> Listing:
        """The files that there are now; they have no parents, and no end. A new file begins at its
        beginning, so that nothing of it is lost: `first` says so."""
        if not self.settings.folder.is_dir():
            raise SettingsError(f"the folder {self.settings.folder} does not exist")
        files = sorted(self.settings.folder.glob("*.jsonl"))
        first = Bookmark(mark={"offset": 0})
        return Listing(
            lineages=[Lineage(partition=PartitionId(file.stem), first=first) for file in files]
        )

    def begin(self, at: At = None) -> Bookmarks:
        """From the beginning of each file, or with `now` from its end at this moment."""
        if isinstance(at, Mapping):
            return at
        if isinstance(at, datetime):
            raise SettingsError(
                "a file does not say when its lines were written",
                hint='begin at "now" or at the "beginning"',
            )
        return {
            each.partition: Bookmark(
                mark={"offset": self.file(each.partition).stat().st_size if at == "now" else 0}
            )
            for each in self.partitions()
        }

    def follow(
        self,
        partition: PartitionId,
        bookmark: Bookmark = START,
        *,
        despite: Sequence[Gap] = (),
    ) -> "LinesFollowing":
        """Reads after the bookmark's place, or from where its mark says."""
        try:
            size = self.file(partition).stat().st_size
        except FileNotFoundError:
            raise Unavailable(f"{self.file(partition)} is not there") from None
        offset = int((bookmark.mark or {}).get("offset", 0))
        if bookmark.place is not None:
            offset = offset_of(bookmark.place)
        if size < offset:
            after = "" if bookmark.place is None else str(bookmark.place)
            detail = f"{self.file(partition)} was cut: it has {size} bytes, and {offset} were read"
            gap = Gap(cause="file_cut", after=after, detail=detail, policy=self.on_gap)
            raise HistoryLost(gap, hint="put the file back, or begin again under another name")
        following = LinesFollowing(self, partition, offset)
        if bookmark.place is not None:
            following.skip()  # the line of that place
        return following

    def decoder(self, images: Images, on_error: OnError = "stop") -> "LinesDecoder":
        """A pure decoder of the pages."""
        return LinesDecoder(self.settings.name, images, on_error)

    def check(self) -> Sequence[Finding]:
        """Preflight: whether the folder is there."""
        there = self.settings.folder.is_dir()
        text = f"the folder {self.settings.folder} {'is there' if there else 'does not exist'}"
        return [Finding(level="ok" if there else "error", subject=self.backend, message=text)]


class LinesFollowing:
    """A `penstock.feeds.Following`: one file, read from `offset` on."""

    drained = False  # a file has no end

    def __init__(self, feed: LinesFeed, partition: PartitionId, offset: int) -> None:
        self._file = feed.file(partition).open("rb")
        self._file.seek(offset)
        self._partition = partition
        self._acknowledged: Place | None = None
        self.begins = str(offset)

    def skip(self) -> None:
        """Passes one line."""
        self._file.readline()

    def read(self, timeout: float) -> Sequence[Page]:
        """The next whole lines as one page; none after `timeout` seconds without any."""
        first = self._file.tell()
        lines = self._file.readlines(_PAGE)
        if lines and not lines[-1].endswith(b"\n"):  # a line that is being written
            self._file.seek(-len(lines.pop()), 1)
        if not lines:
            time.sleep(timeout)
            return []
        page = Page(
            partition=self._partition,
            first=place_of(self._partition, first),
            last=place_of(self._partition, self._file.tell() - len(lines[-1])),
            count=len(lines),
            captured_at=time.time_ns() // 1000,
            context=b"",
            payload=b"".join(lines),
        )
        return [page]

    def bookmark(self, place: Place | None) -> Bookmark | None:
        """The place alone says where to go on. Before there is one, what is stored stays."""
        return None if place is None else Bookmark(place, {})

    def acknowledge(self, bookmark: Bookmark) -> None:
        """Nothing to tell anyone: the files stay."""
        self._acknowledged = bookmark.place

    def keep_alive(self) -> Sequence[Page]:
        """A file needs none."""
        return ()

    def status(self) -> Mapping[str, Any]:
        """For the status page."""
        return {"connected": not self._file.closed, "confirmed": str(self._acknowledged or "")}

    def close(self) -> None:
        """Closes the file."""
        self._file.close()


class LinesDecoder:
    """A `penstock.model.page.Decoder`: pure, and the same page always gives the same batch."""

    def __init__(self, backend: str, images: Images, on_error: OnError) -> None:
        self._backend, self._images, self._on_error = backend, images, on_error
        self.unknown_types: set[str] = set()

    def decode(self, page: Page) -> Sequence[pa.RecordBatch]:
        """Each line is an inserted document."""
        rows, offset = [], offset_of(page.first)
        for line in page.payload.splitlines(keepends=True):
            rows.append(self._row(page, place_of(page.partition, offset), line))
            offset += len(line)
        return [pa.RecordBatch.from_pylist(rows, schema=schema(self._images))]

    def _row(self, page: Page, place: Place, line: bytes) -> dict[str, Any]:
        row = {
            "backend": self._backend,
            "partition": page.partition,
            "cursor": place.cursor,
            "ordinal": place.ordinal,
            "event_id": event_id(self._backend, place),
            "collection": page.partition,
            "unchanged": [],
            "transaction": place.cursor,
            "captured_at": datetime.fromtimestamp(page.captured_at / 1e6, UTC),
        }
        try:
            document = orjson.loads(line)
        except orjson.JSONDecodeError:
            if self._on_error == "stop":
                raise Malformed(f"the line at {place} is not JSON") from None
            return row | {"operation": "ERROR", "after": self._image(self._unreadable(line))}
        key = self._image({"offset": offset_of(place)})
        return row | {"operation": "INSERT", "key": key, "after": self._image(document)}

    def _unreadable(self, line: bytes) -> dict[str, str | bytes]:
        """What a dead letter is made of. `error` has no row data; bytes are base64 in JSON."""
        raw = base64.b64encode(line).decode() if self._images == "json" else line
        return {"reason": "not-json", "error": "a line is not JSON", "raw": raw, "context": ""}

    def _image(self, value: Any) -> str | bytes:
        return orjson.dumps(value).decode() if self._images == "json" else ormsgpack.packb(value)


def place_of(partition: str, offset: int) -> Place:
    """Padded, so that places compare as text; with the partition, so that event ids are unique."""
    return Place(f"{partition}-{offset:020d}", 0)


def offset_of(place: Place) -> int:
    """The inverse; raises Malformed."""
    _, _, digits = place.cursor.rpartition("-")
    if not digits.isdecimal():
        raise Malformed(f"{place} is not a place in a file")
    return int(digits)


PLUGIN = FeedPlugin(settings=LinesFeedSettings, build=LinesFeed)
