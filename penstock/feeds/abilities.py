"""What a feed may do beyond the contract: protocols that other parts of penstock look for."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from penstock.model.page import Page
from penstock.model.position import Bookmark, Bookmarks, PartitionId, Place
from penstock.model.table_schema import TableSchema


@runtime_checkable
class PacesReads(Protocol):
    """A following that may read nothing although its source has more: calls are refused for a
    while, a page was too large, or all of it was passed over."""

    @property
    def next_in(self) -> float | None:
        """Seconds until the next `read` is worth it; None: the source had nothing new."""


@runtime_checkable
class EstimatesLag(Protocol):
    """A feed that can ask how far a partition goes. Where the status of a following has `lag`, this
    is not needed."""

    def remaining(self, partition: PartitionId, bookmark: Bookmark) -> int | None:
        """How many changes come after the bookmark, as far as the source can tell. Does I/O."""


class AnnouncedSchemas(Protocol):
    """What is stored of the schemas that a source announces."""

    def record(self, schema: TableSchema) -> None:
        """A schema, before the changes of it. What this raises, the `read` of a following does."""

    def history(self, schema: str, table: str) -> Sequence[Mapping[str, Any]]:
        """The documents that were stored of a table, the oldest first. Raises Unavailable."""


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
        """As `opened`: the lines of a range with these columns, each after the prefix, some at a
        time with their number."""


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
        """A place, as text: a change is contained if its place is before it; only then, where it
        `is_exact`."""

    @property
    def is_exact(self) -> bool:
        """Whether the rows are those at the point. Else they are of it or later: changes after it
        may be in them already, and are applied once more. So rows have a key, and a change has the
        whole row, or deletes it: then the last change of each leaves it as it is at the source."""

    @property
    def mark(self) -> str:
        """What `written_since` of a later snapshot needs; "" where ranges of two snapshots of the
        table do not add up, because rows move between them."""

    def written_since(self, ranges: Sequence[Any], mark: str) -> Sequence[Any] | None:
        """None where the source has got another history since the snapshot with this mark. Else
        ranges with those rows of `ranges` (of `plan`, in its order) that were written since the
        that snapshot. What was read then, these, and the other ranges have every row of this
        snapshot, besides some that are gone, which the log says. No I/O."""

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
    until `is_stopped`. `on_wait` is called now and then with what it waits for, with "" at the
    end."""

    patience: float
    is_stopped: Callable[[], bool] = lambda: False
    on_wait: Callable[[str], None] = lambda _: None


@runtime_checkable
class TakesSnapshots(Protocol):
    """A feed that can give a table's rows as they are at a point of its log, or from one on.

    Consumers apply changes from where the sink's stream ended before `snapshot` was called: a
    change that was published by then is contained."""

    def snapshot(
        self,
        schema: str,
        table: str,
        known: Bookmarks,
        wait: SnapshotWait,
        selection: RowSelection = WHOLE_TABLE,
    ) -> AbstractContextManager[TableSnapshot]:
        """Of a followed table; `known` are the saved bookmarks (of which history places are).
        Another `selection` than the whole table only where the feed `selects_rows`. Entering it
        raises Unavailable, and SettingsError for a table that can't be read, and for a condition or
        a column that the source refuses; it and `plan` raise Unavailable soon after the wait
        `is_stopped`."""


class Collection(Protocol):
    """A collection or table of a source as it is now, to compare it with a stream. Its methods do
    I/O; they raise Unavailable, SettingsError."""

    namespace: str
    name: str

    def identity(self, change: Mapping[str, Any]) -> str:
        """The text of the key of a change, as `rows` has it, by its `key` or `document_id`. May ask
        once for the names of the key."""

    def key_of(self, image: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """The key in an image of a change, for a layout whose messages have no other; None if it
        is not there."""

    def count(self) -> int:
        """How many documents there are."""

    def rows(self, most: int | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Identity and document: all of them, or at most so many by chance. Values are those of
        messages, or the driver's that `compare.same` knows."""


@runtime_checkable
class ReadsCollections(Protocol):
    """A feed whose collections can be compared with a stream."""

    def collection(self, name: str) -> Collection:
        """By the name that people write: `schema.table`, `database.collection`. No I/O."""


class NativeRecord(NamedTuple):
    """A record of the iterator (`penstock.stream`), and where it is.

    `created_at`: microseconds since 1970 UTC. `record`: `new`, `old`, `key` and `meta`, as
    docs/reference/python.md describes them. `mark`: JSON text of the bookmark's mark exactly at
    this record; None where `Following.bookmark` gives it.
    """

    place: Place
    created_at: int
    record: dict[str, Any]
    mark: str | None = None


# A page's records in order, lazily if it likes. Raises Malformed.
RecordReader = Callable[[Page], Iterable[NativeRecord]]
