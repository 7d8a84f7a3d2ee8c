"""A container's items, read while it is written to: its change feed in latest-version mode from the
beginning, which has each item once, as it is by then.

A snapshot has no place: consumers begin where the stream of changes ended before it, and what is
changed while items are read comes again as a change (`TableSnapshot.is_exact`). A row has the place
of its item's last change.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Self

from penstock.feeds.cosmos.client import ContainerIdentity, container_of
from penstock.feeds.cosmos.following import CAUSES, CosmosFollowing, ServedRange
from penstock.feeds.cosmos.ranges import CUTS, FeedMark, KeyRange, child_mark, mark_of
from penstock.feeds.cosmos.settings import CosmosSettings
from penstock.feeds.shared import DocumentRowSource
from penstock.model.errors import Unavailable
from penstock.model.page import Decoder, Page
from penstock.model.position import Bookmark, Bookmarks, Place
from penstock.model.table_schema import TableSchema
from penstock.wire.cosmos.decoder import CosmosDecoder, lsn_of
from penstock.wire.document_lines import document_lines

_FIRST = Place("0" * 20 + "/", 0)  # before every change of any range
_LOOK = 0.2  # seconds between two looks whether it is stopped
# Seconds until the newest LSN is known of all replicas: one of them may lag.
_SETTLED = 2.0

# A key range, as JSON.
Range = Sequence[str]


def schema_of(settings: CosmosSettings, identity: ContainerIdentity) -> TableSchema:
    """Of a container: the properties of its key, and whatever else."""
    keys = dict.fromkeys([*(path.strip("/").replace("/", ".") for path in identity.paths), "id"])
    columns = tuple(
        {"name": name, "position": number, "data_type": "json", "is_nullable": name != "id",
         "column_default": None, "key": True}
        for number, name in enumerate(keys, 1)
    )  # fmt: skip
    return TableSchema(
        schema=settings.database, table=settings.container, name=(settings.container,),
        version=blake2b(repr([*keys]).encode(), digest_size=8).hexdigest(),
        columns=columns, is_of_documents=True, sends_deletes=settings.every,
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class CosmosRowSource(DocumentRowSource):
    """A `feeds.RowSource`."""

    settings: CosmosSettings

    def line_decoder(self) -> Decoder:
        of = self.settings
        return document_lines(
            lambda form: CosmosDecoder(of.name, of.tenant, form, "stop", of.system_properties),
            "text",
        )

    @contextmanager
    def opened(
        self, is_stopped: Callable[[], bool]
    ) -> Iterator[Callable[[Range, int, int], Iterator[Page]]]:
        yield partial(self._pages, is_stopped)

    def _pages(
        self, is_stopped: Callable[[], bool], part: Range, rows: int, size: int
    ) -> Iterator[Page]:
        """See `feeds.RowSource`. The service bounds the bytes of a page."""
        settings = self.settings.model_copy(
            update={"mode": "latest_version", "start": "",
                    "page_items": min(rows, self.settings.page_items)}
        )  # fmt: skip
        identity = container_of(settings).identity()
        whole = KeyRange(*part)
        left = [(whole, FeedMark(rid=identity.rid, range=whole))]
        while left:
            key_range, mark = left.pop()
            served = ServedRange(
                settings=settings, client=container_of(settings), key_range=key_range,
                passed=frozenset(CAUSES),
            )  # fmt: skip
            with closing(CosmosFollowing(served, identity, mark, None)) as following:
                ended = yield from _to_the_end(following, is_stopped)
            if ended is not None:
                for child in key_range.cut((ended.mark or {})[CUTS]):
                    inherited = mark_of(Bookmark(mark=child_mark(ended, child)), child)
                    assert inherited is not None
                    left.append((child, inherited))


def _to_the_end(
    following: CosmosFollowing, is_stopped: Callable[[], bool]
) -> Generator[Page, None, Bookmark | None]:
    """The pages of a range up to its newest change of some seconds after the first look, or to the
    boundary of a split: then the bookmark that its pieces go on from is returned."""
    last: Place | None = None
    newest, settled = 0, time.monotonic() + _SETTLED
    while not following.drained:
        if is_stopped():
            raise Unavailable("the snapshot was stopped before all ranges were read", "cosmos")
        for page in following.read(_LOOK):
            last = page.last
            following.bookmark(last)  # forgets the pages before it
            yield page
        if time.monotonic() < settled:
            continue
        known = following.status()["details"]
        newest = newest or known["newest_lsn"] or 0
        if known["tip_reached"] or (newest and last is not None and lsn_of(last) >= newest):
            return None
    return following.bookmark(last)


class CosmosSnapshot:
    """A `feeds.TableSnapshot`. Nothing is kept at the service for it."""

    lsn = "0"
    position = str(_FIRST)
    is_exact = False
    mark = "ranges"
    counted = None

    def __init__(self, settings: CosmosSettings, known: Bookmarks | None) -> None:
        self._settings, self._known = settings, known
        self.source = CosmosRowSource(settings=settings)

    def __enter__(self) -> Self:
        if self._known is not None and not self._known:
            raise Unavailable(
                "no position is saved yet: changes after the snapshot would be missing",
                "cosmos",
                hint="start the pipeline first",
            )
        self.schema = schema_of(self._settings, container_of(self._settings).identity(again=True))
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def written_since(self, ranges: Sequence[Range], mark: str) -> Sequence[Range] | None:
        """See `feeds.TableSnapshot`: what was written since, the changes have whole."""
        return () if mark == self.mark else None

    def plan(self, rows: int, size: int) -> Sequence[Range]:
        """The physical partitions, of at most 50 GB each; a range has no fixed number of items."""
        return [tuple(each) for each in container_of(self._settings).ranges()]

    def verify(self, known: Bookmarks) -> None:
        """See `feeds.TableSnapshot`: a gap begins a run anew, and there is no position."""
