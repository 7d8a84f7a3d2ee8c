"""Several databases with the same tables as one feed: each is a partition, and has its own feed.

What one of them refuses is tried again and stops no other: only a backend without any source that
can be read stands still.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from types import MappingProxyType
from typing import Any, TypeVar

import pyarrow as pa

from penstock import feeds
from penstock.feeds.postgres.feed import PostgresFeed
from penstock.feeds.postgres.following import PostgresFollowing
from penstock.feeds.postgres.preflight import free_slots
from penstock.feeds.postgres.settings import PostgresSettings, SpanSettings
from penstock.feeds.postgres.snapshot import PostgresSnapshot
from penstock.feeds.shared import SettingsFeed
from penstock.model.change import Images, OnError
from penstock.model.errors import InUse, PenstockError, PositionLost, SettingsError, Unavailable
from penstock.model.finding import Finding, finding
from penstock.model.page import Decoder, Page
from penstock.model.position import START, Bookmark, Bookmarks, PartitionId, Place
from penstock.model.table_schema import TableSchema
from penstock.process.postgres_url import server_name

Answer = TypeVar("Answer")

_THREADS = 16  # connections that are made at once: each may take its whole time limit


class PostgresSources(SettingsFeed[PostgresSettings]):
    """The implementation of `feeds.Feed`, `HasSources` and `KnowsReader` for several sources."""

    selects_rows = True
    detail_series = PostgresFeed.detail_series
    has_common_order = False  # positions are of several logs

    def __init__(self, settings: PostgresSettings) -> None:
        super().__init__(settings)
        self._feeds = {each.partition: PostgresFeed(each) for each in settings.each}

    @property
    def sources(self) -> Set[PartitionId]:
        return self._feeds.keys()

    def of(self, partition: str) -> PostgresFeed:
        found = self._feeds.get(PartitionId(partition))
        if found is None:
            raise SettingsError(
                f"the backend {self.backend} has no source {partition}, only"
                f" {', '.join(self._feeds)}",
                "postgres",
                hint="add it to `sources` again, or forget its position: penstock positions FILE"
                f" delete {self.backend}/{partition}",
            )
        return found

    def partitions(self, known: Bookmarks = MappingProxyType({})) -> feeds.Listing:
        """See `feeds.Feed`: a source that is new begins at its slot, which is made now."""
        return feeds.Listing(
            lineages=[feeds.Lineage(partition=each, first=START) for each in self._feeds]
        )

    def begin(self, at: feeds.At = None) -> Bookmarks:
        """See `feeds.Feed`: of the sources that can be reached; the others begin when they can."""
        if isinstance(at, Mapping):
            return at
        begun = self._ask(lambda feed: feed.begin(at))
        return {sid: found[sid] for sid, found in begun.items()}

    def follow(
        self,
        partition: PartitionId,
        bookmark: Bookmark = START,
        *,
        despite: Sequence[feeds.Gap] = (),
    ) -> feeds.Following:
        try:
            feed = self.of(partition)
            if bookmark == START:  # it could not be reached at the first start, or is new
                bookmark = feed.begin()[partition]
            return SourceFollowing(partition, feed.follow(partition, bookmark, despite=despite))
        except (SettingsError, Unavailable) as error:
            raise _named(partition, error) from error

    def decoder(self, images: Images, on_error: OnError = "stop") -> Decoder:
        return SourcesDecoder(
            {sid: feed.decoder(images, on_error) for sid, feed in self._feeds.items()}
        )

    def status(self) -> Mapping[str, Any]:
        found = {sid: status for sid, feed in self._feeds.items() if (status := feed.status())}
        if not found:
            return {}
        message = "; ".join(f"source {sid}: {each['message']}" for sid, each in found.items())
        return {**next(iter(found.values())), "message": message}

    def holders(self) -> Sequence[feeds.Holder]:
        return [one for each in self._ask(PostgresFeed.holders).values() for one in each]

    def evict(self, holder: feeds.Holder) -> None:
        self.of(holder.partition).evict(holder)

    def tables(self) -> Sequence[tuple[str, str]]:
        return sorted({one for each in self._ask(PostgresFeed.tables).values() for one in each})

    def schemas(self) -> Sequence[TableSchema]:
        """See `feeds.Feed`: of each table as the first source has it."""
        return self._first_of(PostgresFeed.schemas)

    def current_schemas(self) -> Sequence[TableSchema]:
        return self._first_of(PostgresFeed.current_schemas)

    def _first_of(
        self, ask: Callable[[PostgresFeed], Sequence[TableSchema]]
    ) -> Sequence[TableSchema]:
        found: dict[tuple[str, str], TableSchema] = {}
        for each in self._ask(ask).values():
            for schema in each:
                found.setdefault((schema.schema, schema.table), schema)
        return list(found.values())

    def schemas_to_be(self) -> Sequence[TableSchema]:
        """See `feeds.Feed`: each table once in each form that sources have it in."""
        found: dict[tuple[Any, ...], TableSchema] = {}
        for each in self._ask(PostgresFeed.schemas_to_be).values():
            for schema in each:
                columns = [(one["name"], one["data_type"], one["key"]) for one in schema.columns]
                found.setdefault((schema.schema, schema.table, schema.unsent, *columns), schema)
        return list(found.values())

    def moved(self, saved: Bookmark, stored: Bookmark | None) -> Bookmark | None:
        return next(iter(self._feeds.values())).moved(saved, stored)

    def returned(self, saved: Bookmark, place: Place | None) -> Bookmark:
        return next(iter(self._feeds.values())).returned(saved, place)

    def passed(self, bookmark: Bookmark) -> Place:
        return next(iter(self._feeds.values())).passed(bookmark)

    def end(self, known: Bookmarks) -> feeds.LogEnd:
        found = [each.end(known).places for each in self._feeds.values()]
        return feeds.LogEnd(
            places={sid: place for places in found for sid, place in places.items()}
        )

    def span(self, after: feeds.At | Place, until: datetime | Place | None) -> feeds.Span:
        """See `feeds.Feed`: of all sources, or of none."""
        if isinstance(after, Place) or isinstance(until, Place):
            return super().span(after, until)
        spans = [each.span(after, until) for each in self._feeds.values()]
        return feeds.Span(
            feed=PostgresSources(SpanSettings.of(self.settings)),
            begin={sid: each for span in spans for sid, each in span.begin.items()},
            end=feeds.LogEnd(places={s: at for one in spans for s, at in one.end.places.items()}),
        )

    def announce_schemas(self, announced: feeds.AnnouncedSchemas) -> None:
        for each in self._feeds.values():
            each.announce_schemas(announced)

    def number_columns(self) -> None:
        for each in self._feeds.values():
            each.number_columns()

    def mark_changes(self) -> None:
        for each in self._feeds.values():
            each.mark_changes()

    def snapshot(
        self,
        schema: str,
        table: str,
        known: Bookmarks | None,
        wait: feeds.SnapshotWait,
        selection: feeds.RowSelection = feeds.WHOLE_TABLE,
    ) -> PostgresSnapshot:
        """See `feeds.TakesSnapshots`. Of several sources, `of` one takes them."""
        raise SettingsError(
            f"the backend {self.backend} has several sources, whose tables are loaded one by one",
            "postgres",
            hint="a sink of tables loads them by itself",
        )

    def collection(self, name: str) -> feeds.Collection:
        """See `feeds.ReadsCollections`: of the first source."""
        return next(iter(self._feeds.values())).collection(name)

    def check(self) -> Sequence[Finding]:
        return [
            replace(each, subject=f"source {sid}: {each.subject}")
            for sid, findings in self._ask(PostgresFeed.check).items()
            for each in findings
        ]

    def check_left(self, sids: Iterable[str]) -> Sequence[Finding]:
        """See `feeds.HasSources`: their slots that nobody reads."""
        names = {server_name(self.backend, sid): sid for sid in sids}
        for each in self._feeds.values():
            names.pop(each.settings.slot, None)
        if not names:
            return ()
        found = self._ask(lambda feed: free_slots(feed.settings, names))
        return [
            finding(
                "warning", f"slot {slot}",
                f"the source {names[slot]} has left the map, and its server keeps WAL for it",
                f"if no other pipeline reads it: SELECT pg_drop_replication_slot('{slot}');",
                code="postgres.slot-left",
            )
            for slot in sorted({slot for slots in found.values() for slot in slots})
        ]  # fmt: skip

    def _ask(self, ask: Callable[[PostgresFeed], Answer]) -> dict[PartitionId, Answer]:
        """The answers of the sources that give one. Raises the error of the first if none does."""
        answers: dict[PartitionId, Answer] = {}
        errors: list[PenstockError] = []
        with ThreadPoolExecutor(min(_THREADS, len(self._feeds)), "source") as pool:
            asked = {sid: pool.submit(ask, feed) for sid, feed in self._feeds.items()}
        for sid, answer in asked.items():
            try:
                answers[sid] = answer.result()
            except (PositionLost, SettingsError, Unavailable) as error:
                errors.append(_named(sid, error))
        if not answers:
            raise errors[0]
        return answers


class SourceFollowing:
    """A `feeds.Following` of one source of several: what it refuses is tried again."""

    def __init__(self, sid: PartitionId, following: PostgresFollowing) -> None:
        self._sid, self._following = sid, following

    def __getattr__(self, name: str) -> Any:
        return getattr(self._following, name)

    def stored(self, place: Place) -> None:
        self._following.stored(place)

    def read(self, timeout: float) -> Sequence[Page]:
        try:
            return self._following.read(timeout)
        except (SettingsError, Unavailable) as error:
            raise _named(self._sid, error) from error


class SourcesDecoder:
    """A `page.Decoder` of the pages of several sources."""

    def __init__(self, decoders: Mapping[PartitionId, Decoder]) -> None:
        self._decoders = decoders
        self.unknown_types: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._decoders,)

    def decode(self, page: Page) -> Sequence[pa.RecordBatch]:
        """See `page.Decoder`. Raises SettingsError for a source that is not there any more."""
        decoder = self._decoders.get(page.partition)
        if decoder is None:
            raise SettingsError(f"there is no source {page.partition} any more", "postgres")
        found = decoder.decode(page)
        self.unknown_types |= decoder.unknown_types
        return found


def _named(sid: str, error: PenstockError) -> Unavailable:
    """An error of one source, also one that an operator must mend: it is tried again."""
    if isinstance(error, InUse):
        return InUse(f"source {sid}: {error.message}", error.code, hint=error.hint)
    return Unavailable(f"source {sid}: {error.message}", error.code, hint=error.hint)


def build(settings: PostgresSettings) -> feeds.Feed:
    return PostgresSources(settings) if settings.sources else PostgresFeed(settings)
