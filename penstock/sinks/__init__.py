"""Sinks: where changes go. The contract is here; each implementation has its own folder."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import pyarrow as pa

from penstock.leases import LeaseStore
from penstock.model.errors import LeaseLost
from penstock.model.finding import Finding
from penstock.model.page import Page
from penstock.model.position import Bookmark, PartitionId, Place, Position
from penstock.model.settings import Settings
from penstock.sinks.server import SinkServer

if TYPE_CHECKING:
    from penstock.consumer.tail.reader import TailReader
    from penstock.tables.database import TableDatabase

# `Progress.report`, for parts of a sink that report and store nothing.
Notify = Callable[[Mapping[str, Any]], None]
# A page of one change -> its batches; raises Malformed.
Decode = Callable[[Page], Sequence[pa.RecordBatch]]


class Progress(Protocol):
    """What a sink calls during a write: how far it is, and, apart from that, how it fares."""

    def stored(self, position: Position) -> None:
        """Of each of these partitions everything up to the place is durable. Called with what is
        new since the last call, and only after it is durable: the source is acknowledged this."""

    def report(self, status: Mapping[str, Any]) -> None:
        """Plain JSON for the status page (a retry, an outage, a recovery): running totals of
        `published`, `duplicates` and `size`, and fields of `ops.reports.SinkReport`, of which
        counters say how many more there are; another field is a TypeError, and what only this sink
        has goes under `details`. With `connected` false `error` says why. Under `tables` what is
        new of tables, each with fields of `ops.reports.TableStatus`."""


@runtime_checkable
class KnowsBeginnings(Protocol):
    """A `Progress` that knows what was stored before."""

    def began(self, partition: PartitionId) -> Place | None:
        """Up to where all of a partition was reported as stored before this write, by whichever
        process; None: it is not known."""


class _Ignored(Progress):
    """For callers that only want the receipt."""

    def stored(self, position: Position) -> None: ...

    def report(self, status: Mapping[str, Any]) -> None: ...


ignore: Progress = _Ignored()


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What one `write` made durable. Pickles; crosses from a task to the driver.

    `position` is the last place stored of each partition that was written. `published` counts
    changes sent, `duplicates` those that were already there, `numbers` is reported as in
    `Progress.report`.
    """

    position: Position = field(default_factory=dict)
    published: int = 0
    duplicates: int = 0
    size: int = 0
    numbers: Mapping[str, Any] = field(default_factory=dict)


class Sink(Protocol):
    """Takes changes and makes them durable.

    Idempotent on what the data itself says (event id, place), never on Spark's batch number: the
    same batch twice is once. Constructing one does no I/O, and a sink pickles (it is its
    settings); connections live in the process that writes and outlast a single `write`.

    A change is durable when the sink's system has promised to keep it through a crash of that
    system and of ours: it was committed, or acknowledged in the way that the settings ask for. A
    place is durable when every change of its partition up to there is, or was set aside durably
    (as a dead letter, counted as skipped, held), or is one that the sink leaves out by its
    settings. The source may discard its log up to a durable place.

    An empty batch is a tick. It stores nothing, says nothing about any place and is not the end;
    it comes so that a sink in an iterator that has no changes may take in acknowledgements, report
    what became durable and answer its server. A sink that stores each batch before it takes the
    next one ignores it.
    """

    def write(self, changes: Iterable[pa.RecordBatch], progress: Progress) -> Receipt:
        """Stores every change, in order, and returns only when all are durable.

        The iterator of an open micro-batch goes on for an hour: `progress.stored` says meanwhile
        what is durable, and the receipt's position covers all of it.

        Waits and retries, with back-off and for as long as it takes, while the other side is
        unavailable. Raises Rejected, SettingsError or LeaseLost.
        """

    def prepare(self) -> None:
        """Makes or verifies what writing needs (a stream). Idempotent. Does I/O."""

    def check(self) -> Sequence[Finding]:
        """Preflight: everything that could keep this sink from working or make it lose data."""


@runtime_checkable
class KeepsLetters(Protocol):
    """A sink that keeps what it cannot store, and suspends tables. Everything is plain JSON;
    everything raises Unavailable and SettingsError.

    Its settings have `on_error`. An ERROR change, and one that cannot be encoded or is too large,
    is a dead letter, durable before the position passes it; see docs/explanation/poison.md.
    """

    def dead_letters(self) -> Iterator[Mapping[str, Any]]:
        """All dead letters, oldest first; without their bytes."""

    def dead_letter(self, id: str) -> Mapping[str, Any]:
        """One, by its number or event id, with its bytes."""

    def replay(self, id: str, decode: Decode, *, force: bool = False) -> Mapping[str, Any]:
        """Stores a dead letter's change after all, and takes the letter away. Raises Malformed or
        Rejected when that is still not possible, or (without `force`) where it would undo a later
        change. `decode` reads a page of its feed."""

    def tables(self) -> Sequence[Mapping[str, Any]]:
        """Every table that is or was suspended."""

    def suspend_table(self, backend: str, table: str) -> Mapping[str, Any]:
        """The table (`schema.table`) is not followed from its next change on, until resumed."""
        ...

    def resume_table(self, backend: str | None, table: str) -> Mapping[str, Any]:
        """The table (`schema.table`) is followed again from its next change on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """What a sink knows of a partition by what it has stored.

    `bookmark`: everything up to its place is stored, and its mark is that of the change there;
    None if it is unknown. `begun`: something was stored, ever. `emptied`: and nothing is left
    of it (it expired, or was purged). `is_kept`: nothing beyond the bookmark was ever reported as
    stored, so that where something was, the sink went back.
    """

    bookmark: Bookmark | None = None
    begun: bool = False
    emptied: bool = False
    is_kept: bool = False

    @property
    def place(self) -> Place | None:
        return None if self.bookmark is None else self.bookmark.place

    def went_back(self, saved: Bookmark) -> bool:
        """Whether something was stored beyond what the sink has, as this bookmark says. One without
        a mark, which an operator gave, says nothing of the kind."""
        known, then = self.place, saved.place
        is_behind = then is not None and (known is None or known < then)
        return self.is_kept and bool(saved.mark) and is_behind


@runtime_checkable
class ReportsPositions(Protocol):
    """A sink that knows by itself how far a partition is."""

    def records(
        self, backend: str, partitions: Sequence[PartitionId]
    ) -> Mapping[PartitionId, Record]:
        """As they are now, of all these partitions. Raises Unavailable, SettingsError."""

    def last(self, backend: str) -> tuple[PartitionId, Record] | None:
        """The partition of the last change of a backend: where partitions come and go, those that
        the source lists may all be newer. None if there is none, or if that can't be told. Raises
        Unavailable, SettingsError."""


WENT_BACK = "sinks.went-back"  # the code of:


def went_back(what: str) -> LeaseLost:
    """The error of whoever knows that a sink has less than it had: the pipeline begins anew, with
    what there is."""
    return LeaseLost(
        f"the destination went back: {what}",
        "sinks.went-back",
        hint="it was restored from a backup, or a standby of it that lacked changes was promoted",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlugin:
    """What a sink's entry point names: its settings and how to build it. Settings may have an
    attribute `images`: how the sink takes a change's images, if not as JSON text."""

    settings: type[Settings]
    build: Callable[[Any], Sink]
    # Settings (and another server's URL) -> a reader of the changes that the sink stored, if any.
    reader: "Callable[[Any, str | None], TailReader] | None" = None
    # Settings -> the server with the stream of changes. It takes snapshots, schemas and news, too.
    server: Callable[[Any], SinkServer] | None = None
    # Settings -> where the sink's other side keeps leases, made on demand: an instance finds there
    # another one of its pipeline that has positions elsewhere, and does not write beside it. Its
    # methods raise SettingsError where this is not permitted: then nothing is found.
    leases: Callable[[Any], LeaseStore] | None = None
    # Settings and a backend's name -> the tables that a sink of tables wants of it.
    tables: Callable[[Any, str], Sequence[str]] | None = None
    # A URL -> the database of tables that a sink of tables writes to, and mirrors may.
    database: "Callable[[str], TableDatabase] | None" = None
