"""PostgreSQL as a feed: one partition, the replication slot."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any

from penstock import feeds
from penstock.feeds.postgres import history
from penstock.feeds.postgres import slot as slots
from penstock.feeds.postgres.collection import PostgresTable
from penstock.feeds.postgres.connect import (
    Ordinary,
    PatientConnection,
    SideConnection,
    address,
    connect_ordinary,
    connect_reading,
    connect_replication,
    database_name,
    rows_of,
)
from penstock.feeds.postgres.failures import translating
from penstock.feeds.postgres.following import Beginning, PostgresFollowing, history_lost
from penstock.feeds.postgres.preflight import findings
from penstock.feeds.postgres.publication import (
    ensure_publication,
    followed_tables,
    keep_publication,
    left_out,
    missing_remedy,
    not_sent,
    publication_exists,
    to_be_published,
)
from penstock.feeds.postgres.schemas import schemas_of, schemas_to_be, with_emptiness
from penstock.feeds.postgres.settings import PostgresSettings, SpanSettings, pattern_of
from penstock.feeds.postgres.snapshot import PostgresSample, PostgresSnapshot
from penstock.feeds.postgres.watch import SchemaAnnouncer, SlotMemory
from penstock.feeds.shared import SettingsFeed, checked
from penstock.model.change import Images, OnError
from penstock.model.errors import (
    InUse,
    Malformed,
    PenstockError,
    PositionLost,
    SettingsError,
    Unavailable,
)
from penstock.model.finding import Finding
from penstock.model.page import Decoder, Page
from penstock.model.position import START, Bookmark, Bookmarks, PartitionId, Place
from penstock.model.settings import Secret
from penstock.model.table_schema import TableSchema
from penstock.process.closing import closing_on_failure
from penstock.tables.inventory import InventoriedTable, inventory
from penstock.wire.eras import EraDecoder, era_of, is_of_another
from penstock.wire.pgoutput.decoder import DecoderSettings, PgoutputDecoder
from penstock.wire.pgoutput.lsn import format_lsn, lsn_of


class PostgresFeed(SettingsFeed[PostgresSettings]):
    """The implementation of `feeds.Feed`, `KnowsReader`, `ListsTables` for PostgreSQL 13 to 18."""

    selects_rows = True
    detail_series = (
        "confirmed_lsn", "current_lsn", "flushed_lsn", "in_flight", "in_progress",
        "in_progress_bytes", "keepalives", "received_lsn", "safe_wal_size", "spilled_bytes",
        "transactions",
    )  # fmt: skip

    def __init__(self, settings: PostgresSettings) -> None:
        super().__init__(settings)
        # Decoding transactions while they run has defects in PostgreSQL 16 and 18: a table altered
        # in a subtransaction that is rolled back fails, for ever ("could not map filenumber").
        # Without streaming the same transaction decodes well.
        self._memory = SlotMemory(streaming=settings.streaming)

    def __repr__(self) -> str:
        return f"PostgresFeed({self.settings.slot} at {address(self.settings)})"

    def partitions(self, known: Bookmarks = MappingProxyType({})) -> feeds.Listing:
        """See `feeds.Feed`. Following compares the server's identity with a bookmark's."""
        return feeds.Listing(lineages=[feeds.Lineage(partition=self.settings.partition)])

    def begin(self, at: feeds.At = None) -> Bookmarks:
        """See `feeds.Feed`: where the slot is, or now, where it is made. Makes the publication (if
        asked) and then the slot, which can't decode with a younger publication. Drops nothing."""
        if isinstance(at, Mapping):
            return at
        if at not in (None, "now"):
            raise SettingsError(
                f"a replication slot cannot begin at {at}: the server keeps no older log for it",
                "postgres.start-too-old",
                hint="begin now, or at a bookmark of this slot",
            )
        with connect_ordinary(self.settings) as connection:
            slot = slots.find_slot(connection, self.settings.slot)
            if slot is not None and self._lacks_own(connection):
                slots.refuse_foreign(slot)
                _refuse_taken(slot)
                slots.drop_slot(connection, slot.name)
                slot = None
            if slot is None:
                slot = self._made(connection)
            else:
                ensure_publication(connection, self.settings)
                slots.refuse_foreign(slot)
                if self.on_gap == "fail":
                    slots.refuse_unusable(slot)
        with closing(connect_replication(self.settings)) as replication:
            system = slots.identify_system(replication)
        known = history.KnownHistory(
            system=system.identifier,
            timeline=system.timeline,
            flushed=slot.confirmed,
            publication=self.settings.publication,
        )
        return {self.settings.partition: Bookmark(mark=known.to_json())}

    def _lacks_own(self, connection: Ordinary) -> bool:
        """Whether the publication is missing, and penstock's own, so that the slot can't decode."""
        settings = self.settings
        return settings.is_managed and not publication_exists(connection, settings.publication)

    def _made(self, connection: Ordinary) -> slots.Slot:
        name = self.settings.slot
        ensure_publication(connection, self.settings)
        slots.create_slot(connection, name, failover=self.settings.failover)
        slot = slots.find_slot(connection, name)
        if slot is None:
            raise Unavailable(f"the slot {name} was dropped while penstock made it", "postgres")
        return slot

    def follow(
        self,
        partition: PartitionId,
        bookmark: Bookmark = START,
        *,
        despite: Sequence[feeds.Gap] = (),
    ) -> PostgresFollowing:
        """See `feeds.Feed`. Never from "now": after the bookmark, or where the slot is; despite a
        gap, from where a slot that is made anew begins."""
        if partition != self.settings.partition:
            raise SettingsError(
                f"there is no partition {partition}: the slot is the only one", "postgres"
            )
        try:
            return self._follow(partition, bookmark, despite)
        except feeds.HistoryLost:
            raise
        except PositionLost:  # since we looked: another look says what is lost
            return self._follow(partition, bookmark, despite)

    def _follow(
        self, partition: PartitionId, bookmark: Bookmark, despite: Sequence[feeds.Gap]
    ) -> PostgresFollowing:
        replication = connect_replication(self.settings)
        with closing_on_failure(replication):
            begin = self._begin(replication, bookmark, despite)
            settings = self.settings.model_copy(update={"streaming": self._memory.streaming})
            return PostgresFollowing(settings, partition, begin, self._memory)

    def _begin(
        self, replication: Ordinary, bookmark: Bookmark, despite: Sequence[feeds.Gap]
    ) -> Beginning:
        after, mark = bookmark.place, bookmark.mark
        known, passed = history.known_of(mark, after), {each.cause for each in despite}
        with connect_ordinary(self.settings) as connection:
            slot = slots.find_slot(connection, self.settings.slot)
            if slot is not None:
                slots.refuse_foreign(slot)
                _refuse_taken(slot)
            verdict, system = self._judge(
                connection, replication, known, after, slot, has_diverged="diverged" in passed
            )
            is_bare = slot is not None and self._lacks_own(connection)
            if is_bare and not verdict.cause:
                verdict = history.without_publication(self.settings.publication)
            is_lost = bool(verdict.cause)
            if is_lost and verdict.cause not in passed:
                raise history_lost(self.settings, verdict, after)
            if is_lost:
                known = history.KnownHistory(
                    era=known.era if after is None else history.era_behind(known, verdict.cause)
                )
                if slot is not None and (slot.lost or is_bare):
                    slots.drop_slot(connection, slot.name)
                    slot = None
            if slot is not None and self.settings.is_managed:
                ensure_publication(connection, self.settings)  # tables joined, or left
            slot = slot or self._made(connection)  # a missing one is a gap
        if self.settings.failover and not slot.failover:
            slots.keep_on_failover(replication, slot)
        position = None if is_lost else history.position_of(known, after)
        return Beginning(
            connection=replication,
            reader=replication.info.backend_pid,
            slot=slot,
            known=replace(
                known,
                is_behind=False,
                system=system.identifier,
                timeline=system.timeline,
                publication=self.settings.publication,
            ),
            after=after,
            lsn=verdict.fork if is_lost else position or 0,
            allowed=None if mark is None else max(slot.confirmed, verdict.flushed),
            despite=is_lost,
            anchored=history.can_anchor(known, position, slot, self.settings.publication),
        )

    def _judge(
        self,
        connection: Ordinary,
        replication: Ordinary,
        known: history.KnownHistory,
        after: Place | None,
        slot: slots.Slot | None,
        *,
        has_diverged: bool,
    ) -> tuple[history.HistoryVerdict, slots.System]:
        system = slots.identify_system(replication)
        in_recovery, current = slots.log_end(connection)
        moved = known.timeline not in (0, system.timeline)
        verdict = history.judge(
            known,
            after,
            slot=slot,
            system=system,
            current=current,
            forks=slots.forks(replication, system.timeline) if moved else {},
            has_diverged=has_diverged,
        )
        if verdict.cause == "server_behind" and in_recovery:
            raise Unavailable(
                f"the standby has not replayed its log up to the saved position: {verdict.detail}",
                "postgres.standby-behind",
                hint="wait; if the standby was restored from a backup, connect to its primary",
            )
        return verdict, system

    def status(self) -> Mapping[str, Any]:
        """See `feeds.Feed`: what else there is to say is the slot's, of its following."""
        if left := self._memory.left_out:
            said = [f"{'.'.join(name)}: {error.message}" for name, error in left.items()]
            return {"state": "tables_left_out", "message": "; ".join(said)}
        unknown = list(self._memory.unknown.values())
        return {"state": "unknown_types", "message": "; ".join(unknown)} if unknown else {}

    def holders(self) -> Sequence[feeds.Holder]:
        with connect_ordinary(self.settings) as connection:
            slot = slots.find_slot(connection, self.settings.slot)
        if slot is None or slot.active_pid is None:
            return []
        return [
            feeds.Holder(
                partition=self.settings.partition, reader=str(slot.active_pid), text=_taken(slot)
            )
        ]

    def evict(self, holder: feeds.Holder) -> None:
        """See `feeds.KnowsReader`: nobody but the slot's reader is meant."""
        with connect_ordinary(self.settings) as connection, translating("ending a reader"):
            connection.execute(
                "SELECT pg_terminate_backend(active_pid) FROM pg_catalog.pg_replication_slots"
                " WHERE slot_name = %s AND active_pid = %s",
                (self.settings.slot, int(holder.reader)),
            )

    def decoder(self, images: Images, on_error: OnError = "stop") -> Decoder:
        settings = self.settings
        # Penstock's own publication has no other tables, and a pattern may match any.
        is_open = settings.is_managed or any(map(pattern_of, settings.tables))
        return EraDecoder(
            PgoutputDecoder(
                DecoderSettings(
                    backend=settings.name,
                    database=database_name(settings),
                    tenant=settings.tenant,
                    tables=None if is_open else settings.table_names or None,
                    images=images,
                    on_error=on_error,
                    sid=settings.sid,
                    values="typed" if images == "text" else settings.values,
                )
            )
        )

    def tables(self) -> Sequence[tuple[str, str]]:
        """See `feeds.Feed`: what the publication covers, narrowed by our settings."""
        with connect_ordinary(self.settings) as connection, translating("reading the tables"):
            return followed_tables(partial(rows_of, connection), self.settings)

    def left_out(self) -> Mapping[tuple[str, str], SettingsError]:
        with closing(SideConnection(self.settings)) as side:
            return left_out(side.rows, self.settings)

    def moved(self, saved: Bookmark, stored: Bookmark | None) -> Bookmark | None:
        """See `feeds.Feed`: a server that lacks what the sink has, as one that was promoted or
        restored may, gives its places to other changes."""
        if stored is None or stored.place is None or not (stored.mark and saved.mark):
            return None
        is_further = saved.place is None or stored.place > saved.place
        if not is_further or is_of_another(saved.mark, stored.mark):
            return None
        known, then = (history.known_of(each, stored.place) for each in (saved.mark, stored.mark))
        return Bookmark(stored.place, replace(known, timeline=then.timeline).to_json())

    def returned(self, saved: Bookmark, place: Place | None) -> Bookmark:
        known = history.known_of(saved.mark, place)
        # The slot has all that follows, if it was told nothing beyond the place.
        flushed = history.position_of(known, place) or 1
        return Bookmark(place, replace(known, flushed=flushed, is_behind=True).to_json())

    def passed(self, bookmark: Bookmark) -> Place:
        known = history.known_of(bookmark.mark, bookmark.place)
        end = Place(known.era + format_lsn(known.flushed), 0)
        return max(bookmark.place or end, end)

    def end(self, known: Bookmarks) -> feeds.LogEnd:
        """See `feeds.Feed`: what was flushed. A commit that begins there comes later."""
        bookmark = known.get(self.partition, START)
        era = history.known_of(bookmark.mark, bookmark.place).era
        with connect_ordinary(self.settings) as connection:
            last = Place(era + format_lsn(max(0, slots.flushed_end(connection) - 1)), 0)
        return feeds.LogEnd(places={self.partition: last})

    def span(self, after: feeds.At | Place, until: datetime | Place | None) -> feeds.Span:
        """See `feeds.Feed`: what the slot has, which stays where it is."""
        if isinstance(after, datetime) or isinstance(until, datetime):
            raise SettingsError(
                "a slot cannot find a time: commits are not in the order of their times",
                "postgres.span-time",
                hint="write values of _sequence, or the words earliest and now",
            )
        settings = SpanSettings.of(self.settings)
        with connect_ordinary(settings) as connection:
            slot = _slot_of_span(connection, settings)
            flushed = slots.flushed_end(connection)
        with closing(connect_replication(settings)) as replication:
            system = slots.identify_system(replication)
        first, last = (
            _reached(each, slot, flushed) if isinstance(each, Place) else None
            for each in (after, until)
        )
        eras = {era_of(each.cursor) for each in (first, last) if each is not None}
        if len(eras) > 1:
            raise SettingsError(
                f"{first} and {last} are of two histories of the server",
                "postgres.span-position",
                hint="take both from changes after the same gap",
            )
        # Without a publication: the transaction of `first` need not be among those that come.
        known = history.KnownHistory(
            system=system.identifier, timeline=system.timeline, flushed=slot.confirmed,
            era=eras.pop() if eras else "",
        )  # fmt: skip
        place = first
        if first is not None and first.ordinal < 0:  # no commit is at an odd position
            place = Place(known.era + format_lsn(lsn_of(first.cursor) - 1), 0)
        begin = {self.partition: Bookmark(place, known.to_json())}
        end = last or Place(known.era + format_lsn(flushed - 1), 0)
        log = feeds.LogEnd(places={self.partition: end})
        return feeds.Span(feed=PostgresFeed(settings), begin=begin, end=log, after=first)

    def announce_schemas(self, announced: feeds.AnnouncedSchemas) -> None:
        self._memory.announcer = SchemaAnnouncer(self.settings, announced)

    def number_columns(self) -> None:
        self._memory.numbers = True

    def mark_changes(self) -> None:
        self._memory.marks = True

    def schemas(self) -> Sequence[TableSchema]:
        with closing(SideConnection(self.settings)) as side:
            return schemas_of(side.rows, self.settings)

    def schemas_to_be(self) -> Sequence[TableSchema]:
        with closing(SideConnection(self.settings)) as side:
            oids = to_be_published(side.rows, self.settings)
            return schemas_to_be(side.rows, self.settings, oids)

    def current_schemas(self) -> Sequence[TableSchema]:
        with closing(SideConnection(self.settings)) as side:
            with suppress(PenstockError):  # a lock, or rights that a new table needs
                keep_publication(side.rows, self.settings)
            return with_emptiness(side.rows, schemas_of(side.rows, self.settings))

    def verify_source(self, known: Bookmark) -> None:
        system = history.known_of(known.mark, None).system
        with closing(connect_replication(self.settings)) as replication:
            if system and slots.identify_system(replication).identifier != system:
                raise Unavailable("the server is another one than before", "postgres")

    def schemas_there(self) -> Sequence[TableSchema]:
        with closing(SideConnection(self.settings)) as side:
            oids = not_sent(side.rows, self.settings)
            return schemas_to_be(side.rows, self.settings, oids)

    def snapshot(
        self,
        schema: str,
        table: str,
        known: Bookmarks | None,
        wait: feeds.SnapshotWait,
        selection: feeds.RowSelection = feeds.WHOLE_TABLE,
    ) -> PostgresSnapshot:
        """See `feeds.TakesSnapshots`: `where` is SQL."""
        return PostgresSnapshot(self.settings, (schema, table), known, wait, selection)

    def sample(self, schema: str, table: str, rows: int) -> Iterator[Page]:
        """See `feeds.SamplesRows`: also of a table that is not published yet."""
        with PostgresSample(self.settings, schema, table) as taken:
            yield from taken.pages(rows)

    def collection(self, name: str) -> feeds.Collection:
        """See `feeds.ReadsCollections`: `table` is `public.table`."""
        return PostgresTable(self.settings, name)

    @property
    def partition(self) -> PartitionId:
        return self.settings.partition

    @property
    def url(self) -> Secret:
        return self.settings.connection

    def inventory(self, patience: float) -> Mapping[tuple[str, str], InventoriedTable]:
        settings = self.settings.model_copy(update={"connect_timeout": patience})
        with connect_ordinary(settings) as connection, translating("reading the catalogue"):
            return inventory(connection)

    def reading(self) -> AbstractContextManager[PatientConnection]:
        return closing(connect_reading(self.settings, lambda: False))

    def settle(self, connection: Any) -> None:
        slots.settle(connection, self.settings.slot)

    def check(self) -> Sequence[Finding]:
        return checked(findings(self.settings))


def _refuse_taken(slot: slots.Slot) -> None:
    if slot.active_pid is not None:
        raise InUse(
            _taken(slot), "postgres.slot-taken", hint="stop its reader, or, if that is gone:"
            f" SELECT pg_terminate_backend({slot.active_pid});",
        )  # fmt: skip


def _taken(slot: slots.Slot) -> str:
    return f"the slot {slot.name} is in use by the process {slot.active_pid} of the server"


def _slot_of_span(connection: Ordinary, settings: PostgresSettings) -> slots.Slot:
    slot = slots.find_slot(connection, settings.slot)
    if slot is None:
        raise SettingsError(
            f"there is no slot {settings.slot}, which would have the changes",
            "postgres.span-slot",
            hint="name one that was there before them; one is made by a query or a pipeline, or:"
            f" SELECT pg_create_logical_replication_slot('{settings.slot}', 'pgoutput');",
        )
    slots.refuse_unusable(slot)
    if not publication_exists(connection, settings.publication):
        raise SettingsError(
            f"there is no publication {settings.publication!r}", "postgres.publication-missing",
            hint=missing_remedy(connection, settings),
        )  # fmt: skip
    return slot


def _reached(place: Place, slot: slots.Slot, flushed: int) -> Place:
    """A place as cursors are written. Raises SettingsError for one that is none of this server, and
    for one before the changes that the slot has."""
    try:
        lsn = lsn_of(place.cursor)
    except Malformed as error:
        raise SettingsError(
            f"{place.cursor} is no position of PostgreSQL", "postgres.span-position",
            hint="write a value of _sequence, or an LSN, or the words earliest and now",
        ) from error  # fmt: skip
    if lsn > flushed:
        raise SettingsError(
            f"{place.cursor} is after the end of the server's log, {format_lsn(flushed)}",
            "postgres.span-position",
            hint="correct `connection`, or take a position of this server",
        )
    if lsn < slot.confirmed:
        raise SettingsError(
            f"the slot {slot.name} has the changes from {format_lsn(slot.confirmed)} on, and"
            f" {place.cursor} is before that",
            "postgres.changes-gone",
            hint="begin at earliest, which is where the slot is, or take a slot that was not"
            " acknowledged so far",
        )
    return place._replace(cursor=era_of(place.cursor) + format_lsn(lsn))
