"""MongoDB as a feed: one partition, the change stream of a database or of a whole cluster."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from penstock import feeds
from penstock.feeds.mongodb import cluster, losses
from penstock.feeds.mongodb.collection import MongoCollection
from penstock.feeds.mongodb.connect import address
from penstock.feeds.mongodb.failures import is_timeout, translating
from penstock.feeds.mongodb.filters import Filter, Replay, moved
from penstock.feeds.mongodb.following import MongoFollowing
from penstock.feeds.mongodb.lag import CatchingUp, time_of_mark
from penstock.feeds.mongodb.pages import StreamBeginning
from penstock.feeds.mongodb.preflight import findings
from penstock.feeds.mongodb.settings import MongoSettings
from penstock.feeds.mongodb.snapshot import MongoSnapshot, sample, schemas_of
from penstock.feeds.mongodb.stream import UNANSWERED, ChangeStream, Limits
from penstock.feeds.shared import SettingsFeed, checked
from penstock.model.change import Images, OnError
from penstock.model.errors import Malformed, PenstockError, PositionLost, SettingsError
from penstock.model.finding import Finding, Level, finding
from penstock.model.page import Decoder, Page
from penstock.model.position import START, Bookmark, Bookmarks, PartitionId, Place
from penstock.model.table_schema import TableSchema
from penstock.process.backoff import delays
from penstock.process.closing import closing_on_failure
from penstock.wire.changestream.decoder import ChangeStreamDecoder
from penstock.wire.changestream.events import cursor_of, cursor_time
from penstock.wire.changestream.tokens import history_of, mark_of
from penstock.wire.document_lines import document_lines
from penstock.wire.eras import era_of, next_era

# An ordinal that no change of a cluster time reaches.
_LAST = 2**31 - 1
# There is one change stream for each backend.
PARTITION = PartitionId("change-stream")


class MongoFeed(SettingsFeed[MongoSettings]):
    """The implementation of `feeds.Feed` for MongoDB 6.0 and later. It is its settings."""

    checks_bookmarks = True
    detail_series = ("batch", "invalidations")

    largest_document = 16 * 2**20

    def __init__(self, settings: MongoSettings) -> None:
        super().__init__(settings)
        self._losses = losses.Losses(settings)
        self._limits = Limits(settings.silence, settings.page_rows)
        self._catching_up = CatchingUp()

    def __repr__(self) -> str:
        return f"MongoFeed({self.settings.database} at {address(self.settings)})"

    def delays(self) -> Iterator[float]:
        """See `feeds.Feed`: an election takes some ten seconds."""
        return delays(first=1.0, limit=30.0)

    def partitions(self, known: Bookmarks = MappingProxyType({})) -> feeds.Listing:
        return feeds.Listing(lineages=[feeds.Lineage(partition=PARTITION)])

    def begin(self, at: feeds.At = None) -> Bookmarks:
        """See `feeds.Feed`. Now is the token of a stream that is opened for it; the beginning is
        the oldest entry of the oplog, which the role must be allowed to read."""
        if isinstance(at, Mapping):
            return at
        wanted = self.settings.begins_at if at is None else at
        mark = {**self._mark(wanted), **Replay(now=Filter.of(self.settings)).mark()}
        with cluster.asking(self.settings) as client:
            mark |= history_of("", cluster.identity(client))
        return {PARTITION: Bookmark(mark={**mark, "place": None})}

    def _mark(self, at: datetime | str) -> feeds.Mark:
        if at == "now":
            with closing(self._open(None)) as stream:
                return mark_of(stream.reply.token, "")
        if at == "beginning":
            return _mark_at(self._oldest())
        if isinstance(at, datetime):
            return {"time": [self._seconds(at), 0]}
        return {"token": {"_data": at}}

    def _oldest(self) -> int:
        found, why = cluster.reach(self.settings)
        if not found:
            raise SettingsError(
                why,
                "mongodb",
                hint="begin now, or at a time that the oplog reaches back to; `penstock check`"
                " names the role that may read it",
            )
        return found

    def _seconds(self, at: datetime) -> int:
        seconds = int(at.astimezone(UTC).timestamp())
        with cluster.asking(self.settings) as client:
            newest = cluster.operation_time(client)
        if seconds > newest >> 32:
            raise SettingsError(
                f"{at.isoformat()} is after the server's time",
                "mongodb.start-in-the-future",
                hint="begin now, at the beginning, or at a time that has passed",
            )
        return seconds

    def follow(
        self,
        partition: PartitionId,
        bookmark: Bookmark = START,
        *,
        despite: Sequence[feeds.Gap] = (),
    ) -> MongoFollowing:
        """See `feeds.Feed`. Goes on by the resume token of the mark, and never by counting; despite
        gaps, and with the token of a part of an event that is whole by now, as `Losses.after`
        finds. The first `read` finds a lost position: until then the server accepts any token."""
        if partition != PARTITION:
            raise SettingsError(
                f"there is no partition {partition}: {PARTITION} is the only one", "mongodb"
            )
        if not bookmark.mark:
            raise SettingsError(
                "a change stream goes on by its resume token, and this bookmark has none",
                "mongodb",
                hint="begin anew, or set the position with its mark",
            )
        if despite or bookmark == self._losses.unsplit:
            return self._despite(bookmark, despite)
        try:
            stream = self._open(bookmark.mark)
        except PositionLost as error:  # a token that is none
            raise self._losses.refused(error, bookmark, "", ()) from error
        with closing_on_failure(stream):
            found = self._losses.verified(stream.client, bookmark)
            newest, server = stream.cluster_time, address(self.settings)
            self._catching_up.expect(losses.time_in_era(bookmark), newest, server)
        era = losses.era_of_bookmark(bookmark.place, bookmark.mark)
        if self.moved(bookmark, None) is not None:
            # Nobody says what is stored after the bookmark: no place may be taken for one of these.
            era = next_era(era)
        beginning = StreamBeginning(
            bookmark=bookmark,
            era=era,
            cluster=cluster.completed(losses.cluster_of(bookmark.mark), found),
            identity=found,
            begins=cursor_of(stream.time),
        )
        return MongoFollowing(self.settings, PARTITION, stream, beginning, self._losses)

    def judged(self, error: PositionLost, bookmark: Bookmark) -> feeds.HistoryLost:
        known = losses.cluster_of(bookmark.mark)  # following has compared it
        found = self._losses.refused(error, bookmark, known, ())
        if not isinstance(found, feeds.HistoryLost):
            raise found
        return found

    def moved(self, saved: Bookmark, stored: Bookmark | None) -> Bookmark | None:
        return moved(self.settings, saved, stored)

    def passed(self, bookmark: Bookmark) -> Place | None:
        at = time_of_mark(bookmark.mark)
        if not at:
            return bookmark.place
        read = Place(losses.era_of_bookmark(bookmark.place, bookmark.mark) + cursor_of(at), _LAST)
        return read if bookmark.place is None else max(bookmark.place, read)

    def end(self, known: Bookmarks) -> feeds.LogEnd:
        """See `feeds.Feed`: the newest operation of the server. Any number of changes may have its
        time. Where tokens have no time, as MongoDB's have, the end is by the times of changes."""
        bookmark = known.get(PARTITION, START)
        era = losses.era_of_bookmark(bookmark.place, bookmark.mark)
        with cluster.asking(self.settings) as client:
            newest = cluster.operation_time(client)
        if not time_of_mark(bookmark.mark):
            return feeds.LogEnd(time=(newest >> 32) + 1.0)
        return feeds.LogEnd(places={PARTITION: Place(era + cursor_of(newest), _LAST)})

    def span(self, after: feeds.At | Place, until: datetime | Place | None) -> feeds.Span:
        """See `feeds.Feed`. A stream from the time of `after` on counts its changes as any other
        with the same filter."""
        eras = {era_of(each.cursor) for each in (after, until) if isinstance(each, Place)}
        if len(eras) > 1:
            raise SettingsError(
                f"{after} and {until} are of two histories of the server",
                "mongodb.span-position",
                hint="take both from changes after the same gap",
            )
        now = self.begin("now")[PARTITION]
        mark = {**(now.mark or {}), **history_of(max(eras, default=""), "")}
        end = self.end({PARTITION: now._replace(mark=mark)})
        place = None
        if isinstance(after, Place):
            place = _of_server(after, end)
            del mark["token"]
            mark |= _mark_at(cursor_time(place.cursor.removeprefix(era_of(place.cursor))))
            begin: Bookmarks = {PARTITION: Bookmark(mark=mark)}
        else:
            begin = self.begin(after)
        if isinstance(until, Place):
            last = _of_server(until, end)
            if not end.places:
                raise SettingsError(
                    "the server's tokens have no time, so that no position is known to be reached",
                    "mongodb.span-position",
                    hint="end at now, or at a time",
                )
            end = feeds.LogEnd(places={PARTITION: last})
        elif until is not None:
            end = feeds.LogEnd(time=until.timestamp())
        feed = MongoFeed(self.settings.model_copy(update={"on_gap": "fail"}))
        return feeds.Span(feed=feed, begin=begin, end=end, after=place)

    def _despite(self, bookmark: Bookmark, gaps: Sequence[feeds.Gap]) -> MongoFollowing:
        """Follows after gaps, in an era whose cursors sort after those before."""
        start = self._losses.after(gaps, bookmark)[0]
        stream = self._open(_mark_at(start) if start else None)
        with closing_on_failure(stream), translating(f"asking {address(self.settings)}"):
            found = cluster.identity(stream.client)
        begins = start or stream.time
        era = losses.era_after(gaps, bookmark, begins)
        if self.moved(bookmark, None) is not None:  # no place may be taken for one of these
            era = next_era(era)
        if start:  # changes up to the bookmark's place may come again
            mark = {**_mark_at(start), "place": None, **history_of(era, found)}
        else:
            place = None if bookmark.place is None else str(bookmark.place)
            mark = mark_of(stream.reply.token, era, found) | {"place": place}
        mark |= Replay(now=Filter.of(self.settings)).mark()
        beginning = StreamBeginning(
            bookmark=Bookmark(bookmark.place, mark),
            era=era,
            cluster=found,
            identity=found,
            begins=cursor_of(begins),
            gaps=tuple(gaps),
        )
        return MongoFollowing(self.settings, PARTITION, stream, beginning, self._losses)

    def _open(self, mark: feeds.Mark | None) -> ChangeStream:
        return ChangeStream(self.settings, mark, self._limits)

    def status(self) -> Mapping[str, Any]:
        """See `feeds.Feed`: a server that stays behind."""
        return self._catching_up.status()

    def decoder(self, images: Images, on_error: OnError = "stop") -> Decoder:
        settings = self.settings

        def made(form: Images) -> Decoder:
            return ChangeStreamDecoder(
                backend=settings.name, tenant=settings.tenant, flatten=settings.flatten,
                images=form, on_error=on_error,
            )  # fmt: skip

        return document_lines(made, images, "_id")

    def tables(self) -> Sequence[tuple[str, str]]:
        """See `feeds.Feed`: (database, collection)."""
        return cluster.collections(self.settings)

    def schemas(self) -> Sequence[TableSchema]:
        return schemas_of(self.settings)

    def snapshot(
        self,
        schema: str,
        table: str,
        known: Bookmarks | None,
        wait: feeds.SnapshotWait,
        selection: feeds.RowSelection = feeds.WHOLE_TABLE,
    ) -> MongoSnapshot:
        """See `feeds.TakesSnapshots`: of a collection. It waits for no lock."""
        where = schema, table
        return MongoSnapshot(self.settings, PARTITION, where, known, patience=wait.patience)

    def sample(self, schema: str, table: str, rows: int) -> Iterator[Page]:
        """See `feeds.SamplesRows`."""
        return sample(self.settings, PARTITION, (schema, table), rows)

    def collection(self, name: str) -> feeds.Collection:
        """See `feeds.ReadsCollections`: with `database: "*"` it is `database.collection`."""
        return MongoCollection(self.settings, name)

    def check(self) -> Sequence[Finding]:
        return checked(findings(self.settings))

    def check_bookmark(self, partition: PartitionId, bookmark: Bookmark) -> Sequence[Finding]:
        """See `feeds.Feed`: reads, which is when the server looks for it."""
        level: Level = "ok"
        message, remedy = "the oplog has the changes after it", ""
        try:
            with closing(self.follow(partition, bookmark)) as following:
                if not following.stream.accepts(following.read):
                    level, message = "warning", f"whether {message} is not known: {UNANSWERED}"
        except PenstockError as error:
            level, message, remedy = "error", error.message, error.hint
            if is_timeout(error):
                level = "warning"
                message = "the oplog was read without an end: whether it has the changes after it"
                message += f" is not known after {self.settings.silence:g} s"
                remedy = "a longer `silence` for this check gives it more time"
        return [finding(level, "saved position", message, remedy, code="mongodb.saved-position")]


def _of_server(place: Place, end: feeds.LogEnd) -> Place:
    """A place as cursors are written. Raises SettingsError for one that is none of the server whose
    log ends there."""
    era, newest, time = era_of(place.cursor), end.places.get(PARTITION), 0
    with suppress(Malformed):
        time = cursor_time(place.cursor.removeprefix(era))
    found = place._replace(cursor=era + cursor_of(time))
    if not time or (found > newest if newest else time >> 32 > end.time):
        why = "is after the server's newest operation" if time else "is no cluster time"
        raise SettingsError(
            f"{place.cursor} {why}",
            "mongodb.span-position",
            hint="write a value of _sequence of this server, a time, or the words earliest and now",
        )
    return found


def _mark_at(time: int) -> dict[str, Any]:
    return {"time": [time >> 32, time & 0xFFFFFFFF]}
