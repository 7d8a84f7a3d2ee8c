"""MongoDB as a feed: one partition, the change stream of a database or of a whole cluster."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from penstock.backoff import delays
from penstock.change import Images, OnError
from penstock.errors import PenstockError, PositionLost, SettingsError
from penstock.feeds import (
    At,
    Collection,
    Following,
    Gap,
    GapPolicy,
    HistoryLost,
    Lineage,
    Listing,
    Mark,
)
from penstock.feeds.mongodb.collection import MongoCollection
from penstock.feeds.mongodb.connect import address
from penstock.feeds.mongodb.failures import Tolerance, cause_of, is_too_large
from penstock.feeds.mongodb.filters import Filter, Replay, moved
from penstock.feeds.mongodb.following import MongoFollowing
from penstock.feeds.mongodb.history import (
    HINTS,
    era_after,
    era_of_bookmark,
    gap_of,
    is_behind,
)
from penstock.feeds.mongodb.oplog import collections, oldest, operation_time
from penstock.feeds.mongodb.preflight import check
from penstock.feeds.mongodb.settings import MongoSettings
from penstock.feeds.mongodb.stream import ChangeStream
from penstock.finding import Finding
from penstock.page import Decoder
from penstock.position import START, Bookmark, Bookmarks, PartitionId, Place
from penstock.wire.changestream.decoder import ChangeStreamDecoder, ChangeStreamDecoding
from penstock.wire.changestream.events import cursor_of
from penstock.wire.changestream.tokens import mark_of
from penstock.wire.eras import next_era

# There is one change stream for each backend.
PARTITION = PartitionId("change-stream")
# Bytes of a BSON document at most.
LARGEST = 16 * 2**20


class MongoFeed:
    """The implementation of `feeds.Feed` for MongoDB 6.0 and later. It is its settings."""

    def __init__(self, settings: MongoSettings) -> None:
        self._settings = settings
        self._tolerance = Tolerance()
        self._batch = settings.page_rows

    def __repr__(self) -> str:
        return f"MongoFeed({self._settings.database} at {address(self._settings)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return MongoFeed, (self._settings,)

    @property
    def backend(self) -> str:
        """See `feeds.Feed`."""
        return self._settings.name

    @property
    def on_gap(self) -> GapPolicy:
        """See `feeds.Feed`."""
        return self._settings.on_gap

    @property
    def largest_document(self) -> int:
        """See `feeds.BoundsDocuments`."""
        return LARGEST

    def delays(self) -> Iterator[float]:
        """See `feeds.PacesRetries`: an election takes some ten seconds."""
        return delays(first=1.0, limit=30.0)

    def partitions(self, known: Bookmarks = MappingProxyType({})) -> Listing:
        """See `feeds.Feed`."""
        return Listing(lineages=[Lineage(partition=PARTITION)])

    def begin(self, at: At = None) -> Bookmarks:
        """See `feeds.Feed`. Now is the token of a stream that is opened for it; the beginning is
        the oldest entry of the oplog, which the role must be allowed to read."""
        if isinstance(at, Mapping):
            return at
        wanted = self._settings.begins_at if at is None else at
        mark = {**self._mark(wanted), **Replay(now=Filter.of(self._settings)).mark()}
        return {PARTITION: Bookmark(mark={**mark, "place": None})}

    def _mark(self, at: datetime | str) -> Mark:
        if at == "now":
            with closing(self._open(None)) as stream:
                return mark_of(stream.reply.token, "")
        if at == "beginning":
            time = oldest(self._settings)
            return {"time": [time >> 32, time & 0xFFFFFFFF]}
        if isinstance(at, datetime):
            return {"time": [self._seconds(at), 0]}
        return {"token": {"_data": at}}

    def _seconds(self, at: datetime) -> int:
        """Of a time that the oplog reaches back to, as far as we may look."""
        seconds = int(at.astimezone(UTC).timestamp())
        if seconds > operation_time(self._settings) >> 32:
            raise SettingsError(
                f"{at.isoformat()} is in the future of the server",
                hint="begin now, at the beginning, or at a time that has passed",
            )
        return seconds

    def follow(
        self,
        partition: PartitionId,
        bookmark: Bookmark = START,
        *,
        despite: Sequence[Gap] = (),
    ) -> Following:
        """See `feeds.Feed`. Goes on by the resume token of the mark, and never by counting; despite
        a gap, from now on."""
        if partition != PARTITION:
            raise SettingsError(f"there is no partition {partition}: {PARTITION} is the only one")
        if not bookmark.mark:
            raise SettingsError(
                "a change stream goes on by its resume token, and this bookmark has none",
                hint="begin anew, or set the position with its mark",
            )
        if despite:
            return self._despite(bookmark)
        try:
            stream = self._open(bookmark.mark)
        except PositionLost as error:
            raise self._lost(cause_of(error), bookmark.place, error.message) from error
        if is_behind(bookmark.place, stream.time):
            stream.close()
            said = f"the server is at {cursor_of(stream.time)}, before our position"
            raise self._lost("server_behind", bookmark.place, said)
        era = era_of_bookmark(bookmark.place, bookmark.mark)
        if moved(self._settings, bookmark, None) is not None:
            # Nobody says what is stored after the bookmark: no place may be taken for one of these.
            era = next_era(era)
        return self._follow(stream, bookmark, era)

    def moved(self, saved: Bookmark, stored: Bookmark | None) -> Bookmark | None:
        """See `feeds.MovesBookmarks`."""
        return moved(self._settings, saved, stored)

    def _despite(self, bookmark: Bookmark) -> Following:
        """From now on, in an era whose cursors sort after those before the gap."""
        place = bookmark.place
        stream = self._open(None)
        era = era_after(era_of_bookmark(place, bookmark.mark), place, stream.time)
        shown = None if place is None else str(place)
        filtered = Replay(now=Filter.of(self._settings)).mark()
        mark = {**mark_of(stream.reply.token, era), **filtered, "place": shown}
        return self._follow(stream, Bookmark(place, mark), era)

    def _follow(self, stream: ChangeStream, bookmark: Bookmark, era: str) -> Following:
        return MongoFollowing(
            self._settings,
            PARTITION,
            stream,
            bookmark,
            era,
            begins=cursor_of(stream.time),
            on_failure=self._failed,
        )

    def _open(self, mark: Mark | None) -> ChangeStream:
        return ChangeStream(self._settings, mark, batch=self._batch, tolerance=self._tolerance)

    def _failed(self, error: PenstockError) -> None:
        """The driver refuses replies of more than 48 MB, which no real server sends: ask for less,
        down to one change."""
        if is_too_large(error):
            self._batch = max(1, self._batch // 16)

    def _lost(self, cause: str, place: Place | None, detail: str) -> HistoryLost:
        said = f"{self._settings.database} at {address(self._settings)}: {detail}"
        return HistoryLost(gap_of(cause, place, self.on_gap, said), hint=HINTS[cause])

    def status(self) -> Mapping[str, Any]:
        """See `feeds.Feed`: what there is to say is each following's."""
        return {}

    def decoder(self, images: Images, on_error: OnError = "stop") -> Decoder:
        """See `feeds.Feed`."""
        settings = self._settings
        return ChangeStreamDecoder(
            ChangeStreamDecoding(
                backend=settings.name,
                tenant=settings.tenant,
                flatten=settings.flatten,
                images=images,
                on_error=on_error,
            )
        )

    def tables(self) -> Sequence[tuple[str, str]]:
        """See `feeds.ListsTables`: (database, collection)."""
        return collections(self._settings)

    def collection(self, name: str) -> Collection:
        """See `feeds.ReadsCollections`: with `database: "*"` it is `database.collection`."""
        return MongoCollection(self._settings, name)

    def check(self) -> Sequence[Finding]:
        """See `feeds.Feed`."""
        return check(self._settings)

    def check_bookmark(self, partition: PartitionId, bookmark: Bookmark) -> Sequence[Finding]:
        """See `feeds.ChecksBookmarks`: opens the stream there, and reads nothing."""
        subject = "saved position"
        try:
            self.follow(partition, bookmark).close()
        except PenstockError as error:
            found = Finding(
                level="error", subject=subject, message=error.message, remedy=error.hint
            )
        else:
            found = Finding(
                level="ok", subject=subject, message="the oplog has the changes after it"
            )
        return [found]
