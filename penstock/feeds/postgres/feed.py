"""PostgreSQL as a feed: one partition, the replication slot."""

from collections.abc import Sequence
from typing import Any

from penstock.change import Images, OnError
from penstock.errors import PositionLost, SettingsError, Unavailable
from penstock.feeds import Following, Lineage
from penstock.feeds.postgres.connect import address, connect_ordinary, database_name
from penstock.feeds.postgres.failures import translating
from penstock.feeds.postgres.following import PostgresFollowing
from penstock.feeds.postgres.preflight import check
from penstock.feeds.postgres.publication import ensure_publication
from penstock.feeds.postgres.settings import PostgresSettings, split_table
from penstock.feeds.postgres.slot import (
    Slot,
    create_slot,
    find_slot,
    refuse_ahead,
    refuse_unusable,
)
from penstock.feeds.postgres.tables import followed_tables
from penstock.finding import Finding
from penstock.page import Decoder
from penstock.position import PartitionId, Place
from penstock.wire.pgoutput.decoder import DecoderSettings, PgoutputDecoder
from penstock.wire.pgoutput.lsn import parse_lsn

__all__ = ["PostgresFeed"]


class PostgresFeed:
    """The implementation of `feeds.Feed` for PostgreSQL 13 to 18. It is its settings."""

    def __init__(self, settings: PostgresSettings) -> None:
        self._settings = settings
        # Decoding transactions while they run has defects in PostgreSQL 16 and 18: a table altered
        # in a subtransaction that is rolled back fails, for ever ("could not map filenumber").
        # Without streaming the same transaction decodes well.
        self._streaming = settings.streaming

    def __repr__(self) -> str:
        return f"PostgresFeed({self._settings.slot} at {address(self._settings)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return PostgresFeed, (self._settings,)

    @property
    def backend(self) -> str:
        """See `feeds.Feed`."""
        return self._settings.name

    def partitions(self) -> Sequence[Lineage]:
        """See `feeds.Feed`."""
        return [Lineage(partition=PartitionId(self._settings.slot))]

    def prepare(self) -> None:
        """Makes the publication (if asked) and the slot, in this order: a slot can't decode with
        a publication that is younger than itself. Drops nothing."""
        settings = self._settings
        with connect_ordinary(settings) as connection:
            ensure_publication(connection, settings)
            slot = find_slot(connection, settings.slot)
            if slot is None:
                create_slot(connection, settings.slot)
            else:
                refuse_unusable(slot)

    def follow(self, partition: PartitionId, after: Place | None) -> Following:
        """See `feeds.Feed`. Never from "now": behind `after`, or where the slot is."""
        if partition != self._settings.slot:
            raise SettingsError(f"there is no partition {partition}: the slot is the only one")
        with connect_ordinary(self._settings) as connection:
            slot = find_slot(connection, self._settings.slot)
        if slot is None:
            raise PositionLost(
                f"the slot {self._settings.slot} is gone, and with it the changes since",
                hint="take a new snapshot, or start anew, from now",
            )
        refuse_unusable(slot)
        if after is not None:
            refuse_ahead(slot, parse_lsn(after.cursor))
        self._refuse_taken(slot)
        settings = self._settings.model_copy(update={"streaming": self._streaming})
        return PostgresFollowing(
            settings, partition, slot, after, on_server_defect=self._do_not_stream
        )

    def _do_not_stream(self) -> None:
        self._streaming = False

    def _refuse_taken(self, slot: Slot) -> None:
        if slot.active_pid is not None:
            raise Unavailable(
                f"the slot {slot.name} is in use by the process {slot.active_pid} of the server",
                hint="stop its reader, or, if that is gone:"
                f" SELECT pg_terminate_backend({slot.active_pid});",
            )

    def decoder(self, images: Images, on_error: OnError = "stop") -> Decoder:
        """See `feeds.Feed`."""
        settings = self._settings
        return PgoutputDecoder(
            DecoderSettings(
                backend=settings.name,
                database=database_name(settings),
                tenant=settings.tenant,
                tables=frozenset(map(split_table, settings.tables)) or None,
                images=images,
                on_error=on_error,
            )
        )

    def tables(self) -> Sequence[tuple[str, str]]:
        """See `feeds.TellsOfTables`: what the publication covers, narrowed by our settings."""
        with connect_ordinary(self._settings) as connection, translating("reading the tables"):
            return followed_tables(connection, self._settings)

    def check(self) -> Sequence[Finding]:
        """See `feeds.Feed`."""
        return check(self._settings)
