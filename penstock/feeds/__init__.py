"""Feeds: one per database system. The contract is here; each implementation has its own folder.

A feed knows its partitions and can follow one of them from a bookmark. Following is I/O only: its
pages are decoded elsewhere, by the feed's pure decoder.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

from penstock.model.change import Images, OnError
from penstock.model.errors import PositionLost, SettingsError
from penstock.model.finding import Finding
from penstock.model.page import Decoder, Page
from penstock.model.position import START, Bookmark, Bookmarks, PartitionId, Place
from penstock.model.position import Mark as Mark
from penstock.model.settings import Secret, Settings
from penstock.model.table_schema import TableSchema
from penstock.process import backoff
from penstock.tables.inventory import InventoriedTable

# Where to begin: the moment of the call, as far back as the source goes, a time (with a zone), a
# token (bookmarks), or None: what the settings say, else where the source remembers us.
At = Literal["now", "beginning"] | datetime | Bookmarks | None

# When changes are lost: stand still, take the partition's data anew, or go on after the gap.
GapPolicy = Literal["fail", "resnapshot", "continue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """One partition and its parents, which end before it starts: one for a split, several for a
    merge. `first`: its first bookmark, where the parents that are known have ended, and for a new
    partition without parents whose beginning is not lost; None: begin where the source's records of
    it do. `whole`: none of it is lost, also if its parents are never listed: it is read after
    `first` as soon as several listings have left them out, and no gap is before it."""

    partition: PartitionId
    parents: tuple[PartitionId, ...] = ()
    first: Bookmark | None = None
    whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """The partitions that a source lists, in any order. `complete`: false where it may have more:
    then a partition that is left out is no evidence of anything. `history`: which source and which
    of its histories this is (a system id, a stream's ARN); "" where following finds that."""

    lineages: Sequence[Lineage] = ()
    complete: bool = True
    history: str = ""

    def __iter__(self) -> Iterator[Lineage]:
        return iter(self.lineages)

    def __len__(self) -> int:
        return len(self.lineages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Changes that the source cannot give us any more, or that it took back: after `after` (a
    place, or "" for nothing stored yet) and up to `to`, a position of the source, "" while it is
    not known. `cause` is for machines, `detail` for people; `policy` is what the settings say."""

    cause: str
    after: str
    to: str = ""
    detail: str = ""
    policy: GapPolicy = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEnd:
    """Where a source's log ended at one moment. Of a partition in `places`: everything up to there
    was written by then, and `Feed.passed` says when it was read. Of any other, also of one that is
    listed later: what was committed up to `time`, in seconds since 1970; it was read when a `read`
    that began later returned nothing (see `PacesReads`)."""

    places: Mapping[PartitionId, Place] = field(default_factory=dict)
    time: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The changes between two positions: `feed` gives them when its partitions are followed from
    `begin` on, up to `end`, but for those up to `after`. It changes nothing at the source. Pickles.
    """

    feed: "Feed"
    begin: Bookmarks
    end: LogEnd
    after: Place | None = None


class HistoryLost(PositionLost):
    """The changes after a position are gone, or the source is another one: `gap` says which."""

    def __init__(self, gap: Gap, *, hint: str = "") -> None:
        super().__init__(gap.detail, hint=hint, code=f"gap.{gap.cause.replace('_', '-')}")
        self.gap = gap

    def __reduce__(self) -> tuple[object, ...]:
        return partial(HistoryLost, hint=self.hint), (self.gap,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who reads a partition now, at the source: `reader` names it there (a process id)."""

    partition: PartitionId
    reader: str
    text: str


class Following(Protocol):
    """One partition, being read. Owned by one thread at a time, except for `bookmark`,
    `acknowledge` and `status`, which any thread may call. Nothing depends on `close`."""

    def read(self, timeout: float) -> Sequence[Page]:
        """The next pages, in order; waits at most `timeout` seconds and then returns none. Raises
        Unavailable (follow again from the last place), HistoryLost as `Feed.follow` does,
        PositionLost (follow again, or `Feed.judged`, finds what is lost), Malformed or
        SettingsError."""

    @property
    def drained(self) -> bool:
        """Whether the partition has ended and `read` has returned all of it (a closed shard, a
        split feed range, a snapshot chunk). Its children may start when this is durable. A
        partition without an end (a slot, a change stream) is never drained."""
        return False

    def keep_alive(self) -> Sequence[Page]:
        """Keeps the connection while the buffer is full; called every few seconds. A source that
        can only be kept alive by reading returns what came; the others return nothing."""
        return ()

    def bookmark(self, place: Place | None) -> Bookmark | None:
        """What to store when everything up to `place` is durable (None: nothing is yet). Its mark
        may be newer than the last one for the same place: an idle source advances. None: it is not
        known, and what is stored already stays, place and mark. Places are asked for in their
        order; after `close`, of what was read until then, in any order."""

    def acknowledge(self, bookmark: Bookmark) -> None:
        """Everything up to the bookmark is durable, and the bookmark is stored: the source may
        forget that much, and no more. Only notes it; the next `read` or `keep_alive` sends it. A
        bookmark without a mark: nothing stores marks, so that whatever is durable may be
        acknowledged."""

    @property
    def begins(self) -> str:
        """Where in the source's own terms this following began; the end of a gap before it. Empty
        until it is known: some know it with the first change, or when there is none."""

    def status(self) -> Mapping[str, Any]:
        """Plain JSON for the status page: `connected`; where the source knows them `current` (its
        newest place) and `confirmed` (up to where it was told that all is durable), `lag` between
        what is durable and the newest, in `lag_unit` ("bytes", "changes"), and in `lag_bytes` and
        `lag_seconds` (the source's clock minus the time of what is durable; 0 only where it is
        proven that nothing comes after that); `window_seconds` (how far its history reaches back
        from its newest entry) and `window_left_seconds` (how long what is durable stays in it);
        `window_bytes` and `window_left_bytes` (how much log it keeps for us at most, and how much
        may still come); `reader` (our name at the source); `clock` (the source's, in seconds, at
        its last answer) and `token` (text that changes with every event and idle token), for
        `max_gap`; `at_risk`
        (why history may soon be lost); `throttled` (the last call was refused: calls are too many);
        `details`, in the source's own terms."""

    def close(self) -> None:
        """Closes the connection; sends the last acknowledgement first, if it can."""


class AnnouncedSchemas(Protocol):
    """What is stored of the schemas that a source announces."""

    def record(self, schema: TableSchema) -> None:
        """A schema, before the changes of it. What this raises, the `read` of a following does."""

    def history(self, schema: str, table: str) -> Sequence[Mapping[str, Any]]:
        """The documents that were stored of a table, the oldest first. Raises Unavailable."""


class NativeRecord(NamedTuple):
    """A record of the iterator (`penstock.stream`), and where it is. `created_at`: microseconds
    since 1970 UTC. `record`: `new`, `old`, `key` and `meta`, as docs/reference/python.md describes
    them. `mark`: JSON text of the bookmark's mark exactly here; None: `Following.bookmark` has it.
    """

    place: Place
    created_at: int
    record: dict[str, Any]
    mark: str | None = None


# A page's records in order, lazily if it likes. Raises Malformed.
RecordReader = Callable[[Page], Iterable[NativeRecord]]


class Feed(Protocol):
    """A change feed that is read partition by partition. Inherit from it: what is not required has
    a default here.

    Constructing one does no I/O, and a feed pickles (it is its settings). `follow` may be called
    again from any bookmark it has given, and yields the changes after it as long as the source
    still has them. Pages may be cut differently. Changes are the same, but that one may be
    superseded by a later change of the same key where the source says so. An event id is unique
    over all partitions of a backend.
    """

    @property
    def backend(self) -> str:
        """The pipeline's name for this source: part of every event id."""

    @property
    def on_gap(self) -> GapPolicy:
        """What the settings say to do about lost changes."""

    def partitions(self, known: Bookmarks = MappingProxyType({})) -> Listing:
        """The partitions there are now; `known` are the bookmarks of those that the caller knows,
        also of ended ones until their children are known. From them the feed makes children's first
        bookmarks, and may compute partitions that the source does not list as they are (the halves
        of a key range). The listing may be stale: a partition that is left out twice, some seconds
        apart, is followed all the same. Does I/O; raises as `Following.read` does."""

    def begin(self, at: At = None) -> Bookmarks:
        """Makes what following needs and may be made (a slot, a publication when asked), and
        returns a bookmark for each partition that can be read at once, and perhaps ended ones, for
        what is not to be read. "Now" is the moment of this call: the caller stores the bookmarks
        before anything is read. Idempotent where the source remembers us. Does I/O; raises
        Unavailable, and SettingsError for an `at` that the source cannot give."""

    def follow(
        self, partition: PartitionId, bookmark: Bookmark = START, *, despite: Sequence[Gap] = ()
    ) -> Following:
        """Reads `partition` after `bookmark`; without a place, from where its mark says, or where
        the source remembers us (a slot's confirmed position, a trim horizon), never from "now".

        If the source lacks what follows the bookmark, or is another one, this or the first `read`
        raises HistoryLost with the gap; called again `despite` that gap and those found before it,
        it makes anew what is needed, and follows after them all. Nothing of what it found is kept
        between two calls: a pickled copy finds the same."""

    def decoder(self, images: Images, on_error: OnError = "stop") -> Decoder:
        """A pure decoder of this feed's pages. Pickles. Unless `on_error` is `stop`, a change that
        can't be read is a change with the operation ERROR."""

    def check(self) -> Sequence[Finding]:
        """Preflight: everything that could keep this feed from running or make it lose data."""

    # What most feeds leave as it is.

    def status(self) -> Mapping[str, Any]:
        """What is wrong with the source as a whole, by what the last calls found; does no I/O.
        Plain JSON: `state` ("disabled", "throttled", "unknown_types", "tables_left_out", or "" for
        nothing), `message` for people, and `at_risk` (why history may soon be lost)."""
        return {}

    # Which numbers of the `details` of a status are series in /metrics: those that change with what
    # is read. A backend shows details if it has one partition.
    detail_series: ClassVar[Sequence[str]] = ()
    # Of a feed with snapshots: whether places of its partitions have a common order, so that one
    # tells what is in a snapshot; and whether snapshots may be of a part of a table
    # (`RowSelection`).
    has_common_order: ClassVar[bool] = True
    selects_rows: ClassVar[bool] = False
    # Whether several of its partitions have changes of one table: rows of a snapshot are of all
    # these together, and changes after them replace a row or delete it.
    shares_tables: ClassVar[bool] = False
    # Bytes, where the source has a limit for one document.
    largest_document: ClassVar[int | None] = None
    # Whether a partition that was split has nothing any more: its children have what it had, and
    # their places go on with its own.
    splits_move_changes: ClassVar[bool] = False
    # Whether the source tells, without following, that the changes after a bookmark are there.
    checks_bookmarks: ClassVar[bool] = False

    @property
    def polled(self) -> bool:
        """Whether any number of processes may read its partitions at once (shards, feed ranges),
        and that is wanted: in open micro-batches Spark's tasks follow them."""
        return False

    def delays(self) -> Iterator[float]:
        """Seconds before each further try of a lost connection, for ever."""
        return backoff.delays()

    def tables(self) -> Sequence[tuple[str, str]] | None:
        """(schema, table) of what it follows, as they are now, by name; None where it does not
        know. Does I/O; raises Unavailable, SettingsError."""
        return None

    def left_out(self) -> Mapping[tuple[str, str], SettingsError]:
        """Tables of its settings that are there and not followed: the source does not send them,
        or would suffer if it did; and why. Does I/O; raises as `tables` does."""
        return {}

    def schemas(self) -> Sequence[TableSchema]:
        """Those of all tables or collections that are followed, as they are now, where it knows
        any. Does I/O; raises as `tables` does."""
        return ()

    def schemas_to_be(self) -> Sequence[TableSchema]:
        """Preflight: the `schemas` that there are after the next start."""
        return self.schemas()

    def current_schemas(self) -> Sequence[TableSchema]:
        """The `schemas`, after what is the pipeline's own at the source (a publication) was made to
        have the tables that there are now. Called twice a minute."""
        return self.schemas()

    def verify_source(self, known: Bookmark) -> None:
        """Raises Unavailable where this is another source than that of a bookmark, as far as it is
        said: a gap, for which the operator decides, before anything of it is used. Does I/O."""
        return

    def announce_schemas(self, announced: AnnouncedSchemas) -> None:
        """From now on followings record each schema that the source announces before the changes of
        it, in the thread that reads, before they return these. A pickled copy records nothing."""
        return

    def number_columns(self) -> None:
        """From now on pages say what the source's catalogue has of the columns of tables, so that
        one with another name is told from a new one. Those of a pickled copy do not."""
        return

    def mark_changes(self) -> None:
        """From now on the mark of each change says of which history its place is, also where it is
        not needed to go on. Those of a pickled copy do not."""
        return

    def check_bookmark(self, partition: PartitionId, bookmark: Bookmark) -> Sequence[Finding]:
        """Preflight of a saved bookmark, of a feed that `checks_bookmarks`. Does I/O."""
        return ()

    def children(self, known: Bookmarks, of: Sequence[PartitionId]) -> Listing | None:
        """The last listing, which is not `complete`, with the children that these have now; None
        where a whole listing takes no more calls. Does I/O; raises as `partitions` does."""
        return None

    def moved(self, saved: Bookmark, stored: Bookmark | None) -> Bookmark | None:
        """The bookmark to go on from instead of `saved`; None for `saved` itself. Everything up to
        `stored` is in the sink; None: the sink does not say. Called at each start. No I/O.

        For a feed that may give changes other places when they are read again, so that a sink would
        store them twice: places count what its settings choose; or a partition was split, and its
        children have what came last in it."""
        return None

    def returned(self, saved: Bookmark, place: Place | None) -> Bookmark | None:
        """The bookmark to go on from where the sink went back: it has what is up to `place`, and
        lacks what comes after it, up to `saved`. What the source cannot give again is a gap. No
        I/O."""
        return saved._replace(place=place)

    def passed(self, bookmark: Bookmark) -> Place | None:
        """Up to where all is durable, also where the source had nothing for us: every change comes
        after it, or is of the same cursor. No I/O."""
        return bookmark.place

    def end(self, known: Bookmarks) -> LogEnd:
        """Where the log ends now; `known` are the bookmarks to read after. Does I/O; raises as
        `begin` does. A second later by default: times may be cut to seconds, and clocks differ."""
        return LogEnd(time=time.time() + 1.0)

    def span(self, after: At | Place, until: datetime | Place | None) -> Span:
        """The changes after one position and up to another, None for all that there are now, also
        where a gap would be passed otherwise. A `Place` may be one without its ordinal, which is -1
        then. Does I/O, and makes nothing at the source; raises Unavailable, and SettingsError for a
        position that is none of this source, or that it does not reach back to. By default for
        times: places of several partitions do not compare."""
        if isinstance(after, Place) or isinstance(until, Place):
            raise SettingsError(
                f"a position of {self.backend} is of one of its partitions, and says nothing of the"
                " others",
                "feeds.span-position",
                hint="write times with a zone, or the words earliest and now",
            )
        begun = self.begin(after)
        end = self.end(begun) if until is None else LogEnd(time=until.timestamp())
        return Span(feed=self, begin=begun, end=end)

    def judged(self, error: PositionLost, bookmark: Bookmark) -> HistoryLost | None:
        """What is lost after a bookmark, which following accepts and the source then refuses with
        this error; None: nothing, as far as is known, and it is tried again. Does I/O; raises
        Unavailable, SettingsError."""
        return None

    @property
    def history(self) -> str:
        """What tokens carry: `Listing.history` of the last listing; "" before the first. No I/O."""
        return ""

    def verify(self, history: str) -> None:
        """Raises InvalidPosition or InvalidStream for a token of another source's history. No
        I/O."""
        return

    def record_reader(self, on_error: OnError = "stop") -> RecordReader | None:
        """What makes the iterator's records of pages, with Python values that the images of a
        change do not keep (Decimal, bytes, sets); None: the decoder does. Pure."""
        return None


# What a feed, a following or a row source may do beyond the contract.


@runtime_checkable
class HearsStored(Protocol):
    """A following whose `status` tells the lag to what is durable before its bookmark is stored."""

    def stored(self, place: Place) -> None:
        """Everything up to `place` is durable. From any thread."""


@runtime_checkable
class PacesReads(Protocol):
    """A following that may read nothing although its source has more: calls are refused, a page was
    too large, or all of it was passed over."""

    @property
    def next_in(self) -> float | None:
        """Seconds until the next `read` is worth it; None: the source had nothing new."""


@runtime_checkable
class EstimatesLag(Protocol):
    """A feed that can ask how far a partition goes: where a following's status has no `lag`."""

    def remaining(self, partition: PartitionId, bookmark: Bookmark) -> int | None:
        """How many changes come after the bookmark, as far as the source can tell. Does I/O."""


class RowSource(Protocol):
    """Reads the ranges of a snapshot. Pickles: any process that reaches the source may use it, as
    long as the snapshot is open."""

    def opened(
        self, is_stopped: Callable[[], bool]
    ) -> AbstractContextManager[Callable[[Any, int, int], Iterator[Page]]]:
        """A connection, as a function: the pages of a range, of at most so many rows and about so
        many bytes. Does I/O; both raise Unavailable, SettingsError; Unavailable soon after
        `is_stopped` returns True."""


@runtime_checkable
class ReadsLines(Protocol):
    """A row source that can give rows as they are, in the text format of PostgreSQL's COPY."""

    @property
    def is_by_key(self) -> bool:
        """Whether rows do not leave its ranges as long as their key stays."""

    @property
    def count(self) -> int | None:
        """About how many rows there are, where that is known."""

    def lines(
        self, columns: Sequence[str], prefix: bytes, is_stopped: Callable[[], bool]
    ) -> AbstractContextManager[Callable[[Any], Iterator[tuple[bytes, int]]]]:
        """As `opened`: the lines of a range with these columns, each after the prefix, in runs with
        their number."""


@runtime_checkable
class HoldsSnapshot(Protocol):
    """A snapshot that the source keeps something for, as long as it is open."""

    def is_read(self) -> bool:
        """Whether another process reads its ranges now. Does I/O; raises Unavailable."""

    def is_in_the_way(self) -> bool:
        """Whether something waits for its end that others would wait for in turn. As `is_read`."""


class TableSnapshot(Protocol):
    """A table's rows at one point of the log. Opened by `with`, which does I/O, and keeps what it
    needs at the source until its end."""

    @property
    def schema(self) -> TableSchema:
        """The table, as it is at the point."""

    @property
    def lsn(self) -> str:
        """The point in the source's own terms."""

    @property
    def position(self) -> str:
        """A place, as text: a change before it is contained; if it `is_exact`, no other is."""

    @property
    def is_exact(self) -> bool:
        """Whether the rows are those at the point. Else they are of it or later, and changes after
        it are applied once more: so rows have a key, and a change has the whole row, or deletes it.
        """

    @property
    def mark(self) -> str:
        """What `written_since` of a later snapshot needs; "" where ranges of two snapshots of the
        table do not add up, because rows move between them."""

    def written_since(self, ranges: Sequence[Any], mark: str) -> Sequence[Any] | None:
        """None where the source has got another history since the snapshot with this mark. Else
        ranges with those rows of `ranges` (of `plan`, in its order) that were written since it.
        What was read then, these, and the other ranges have every row of this snapshot, besides
        some that are gone, which the log says. No I/O."""

    @property
    def source(self) -> RowSource:
        """Reads its ranges."""

    def plan(self, rows: int, size: int) -> Sequence[Any]:
        """Ranges (plain JSON) that are together the table: of at most `rows` rows or about `size`
        bytes each, where the source can tell. Does I/O."""

    @property
    def counted(self) -> int | None:
        """How many rows `plan` counted at the point; None where it did not count."""

    def verify(self, known: Bookmarks) -> None:
        """Raises Unavailable where positions of changes that come after these bookmarks can't be
        compared with `position`: the source has got another history since it was taken. No I/O."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSelection:
    """A part of a table. `where`: a condition in the source's own language, "" for all rows.
    `columns`: those that rows have, in the table's order; empty for all."""

    where: str = ""
    columns: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        """Whether it is the table."""
        return self == WHOLE_TABLE


WHOLE_TABLE = RowSelection()


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotWait:
    """How long a snapshot may wait for locks and older transactions: `patience` seconds at most,
    until `is_stopped`. `on_wait` gets what it waits for, now and then, and "" at the end."""

    patience: float
    is_stopped: Callable[[], bool] = lambda: False
    on_wait: Callable[[str], None] = lambda _: None


@runtime_checkable
class TakesSnapshots(Protocol):
    """A feed that can give a table's rows as they are at a point of its log, or from one on. What
    the sink's stream had when `snapshot` was called is contained: consumers apply what follows."""

    def snapshot(
        self,
        schema: str,
        table: str,
        known: Bookmarks | None,
        wait: SnapshotWait,
        selection: RowSelection = WHOLE_TABLE,
    ) -> AbstractContextManager[TableSnapshot]:
        """Of a followed table, or a part of it where the feed `selects_rows`; `known` are the saved
        bookmarks (of which history places are), None where no changes are read after it. Entering
        it raises Unavailable, and SettingsError for a table that can't be read and a condition or a
        column that the source refuses; it and `plan` raise Unavailable soon after the wait
        `is_stopped`."""


@runtime_checkable
class SamplesRows(Protocol):
    """A feed that can give some rows of a table, and changes nothing at the source for it."""

    def sample(self, schema: str, table: str, rows: int) -> Iterator[Page]:
        """Pages with at least so many rows of a table that is followed, if it has them: as of a
        snapshot, or of the first changes that there are. Nothing goes on from their places. Does
        I/O; raises Unavailable, SettingsError."""


class Collection(Protocol):
    """A collection or table of a source as it is now, to compare it with a stream. Its methods do
    I/O; they raise Unavailable, SettingsError."""

    namespace: str
    name: str

    def identity(self, change: Mapping[str, Any]) -> str:
        """The text of the key of a change, as `rows` has it, by its `key` or `document_id`."""

    def key_of(self, image: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The key in an image of a change, for a layout whose messages have no other, or None."""

    def count(self) -> int:
        """How many documents there are."""

    def rows(self, most: int | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Identity and document: all, or at most so many by chance. Values are those of messages,
        or the driver's that `compare.same` knows."""


@runtime_checkable
class DatesRows(Protocol):
    """A collection whose rows name the transaction that wrote them last."""

    def count_before(self, transaction: str) -> tuple[int, int]:
        """How many rows there are, and how many of them were last written by a transaction that
        began before this one. Does I/O, as `count`."""


@runtime_checkable
class ReadsCollections(Protocol):
    """A feed whose collections can be compared with a stream."""

    def collection(self, name: str) -> Collection:
        """By the name that people write: `schema.table`, `database.collection`. No I/O."""


@runtime_checkable
class KnowsReader(Protocol):
    """A feed whose partitions have one reader at a time, known at the source."""

    def holders(self) -> Sequence[Holder]:
        """Who reads each partition that is being read. Does I/O; raises Unavailable."""

    def evict(self, holder: Holder) -> None:
        """Ends that reader's connection: it lost its lease and does not let go. Does I/O."""


@runtime_checkable
class HasSources(Protocol):
    """A feed whose partitions are sources with a feed each."""

    @property
    def sources(self) -> Set[PartitionId]:
        """Those of the settings."""

    def of(self, partition: str) -> Feed:
        """The feed of one source. Raises SettingsError."""

    def check_left(self, sids: Iterable[str]) -> Sequence[Finding]:
        """Preflight: what sources that have left the settings left at the servers of others."""


@runtime_checkable
class ListsTables(Feed, Protocol):
    """A feed of one database with tables: which there are, followed or not, and their rows. Methods
    do I/O and raise Unavailable, SettingsError."""

    @property
    def partition(self) -> PartitionId:
        """Its only one."""

    @property
    def url(self) -> Secret:
        """Where the database is."""

    def inventory(self, patience: float) -> Mapping[tuple[str, str], InventoriedTable]:
        """All tables, by (schema, name). `patience`: seconds in which it has to connect."""

    def schemas_there(self) -> Sequence[TableSchema]:
        """The `schemas`, and then those of tables of the settings that are there and not sent."""
        ...

    def reading(self) -> AbstractContextManager[Any]:
        """A connection for reading tables; values are text as in the log."""

    def settle(self, connection: Any) -> None:
        """Returns once everything that is in the database now was written to the sink, or can't be
        waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedPlugin:
    """What a feed's entry point names: its settings and how to build it. `has_clock`: the status of
    its followings has `clock` and `token`, so that `max_gap` can be set. `connector`: what Debezium
    calls the source, if not by the plug-in's name. `share`: the setting, if any, that is a
    backend's part of what all of this type in one file may do. `has_lines`: its decoder gives
    images of the form `text`, and its setting `tables` what is followed, so that it may flow into a
    sink of tables. `has_documents`: these lines are of documents, for sinks that take them, and its
    settings are `shared.DocumentSettings`."""

    settings: type[Settings]
    build: Callable[[Any], Feed]
    has_clock: bool = False
    connector: str = ""
    share: str = ""
    has_lines: bool = False
    has_documents: bool = False

    def feed(self, settings: Settings) -> Feed:
        """Builds the feed; does no I/O. Raises SettingsError as `complete` does."""
        return complete(self.build(settings))


def complete(feed: Feed) -> Feed:
    """The feed itself. Raises SettingsError for one that lacks methods of the contract: it does not
    inherit from `Feed`, so that it has no defaults."""
    lacking = [name for name in vars(Feed) if name[0] != "_" and not hasattr(feed, name)]
    if lacking:
        kind = type(feed)
        raise SettingsError(
            f"the feed {kind.__module__}.{kind.__qualname__} lacks {', '.join(lacking)}",
            "feeds",
            hint="inherit from penstock.feeds.Feed, which has defaults; see"
            " docs/how-to/write-a-feed.md and docs/how-to/upgrade.md",
        )
    return feed
