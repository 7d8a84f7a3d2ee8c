"""The contract of a sink of tables: how rows of before the first change come into it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, Protocol, runtime_checkable

from penstock.model.change import OnError
from penstock.model.errors import PenstockError
from penstock.model.finding import Finding
from penstock.model.position import Bookmarks, PartitionId, Place
from penstock.model.table_schema import TableSchema
from penstock.sinks import Progress, ignore


class RowsPoint(Protocol):
    """The rows of a source's table as they are at a point of its log."""

    @property
    def schema(self) -> TableSchema:
        """The table."""

    @property
    def cursor(self) -> str:
        """The cursor of the first changes that are not in the rows."""

    @property
    def identity(self) -> str:
        """What a load keeps of it, for `continues`."""

    @property
    def is_by_key(self) -> bool:
        """Whether ranges of it and of a later point are the table, but for changes between."""

    def continues(self, identity: str) -> bool:
        """Whether a load that began at the point with this identity may go on at this one."""


# The number of a part of a table, and its ranges, as the source made them.
Part = tuple[int, Sequence[Any]]


class RowWriter(Protocol):
    """Stores rows of one table at one point; used by one thread. Raises as `TableLoad`."""

    @property
    def columns(self) -> Sequence[str]:
        """Which columns lines have."""

    @property
    def prefix(self) -> bytes:
        """What each line begins with."""

    def write(self, part: Part, pieces: Iterable[bytes]) -> None:
        """Stores a part's lines and that it is done, together. An error of `pieces` ends it."""


class TableLoad(Protocol):
    """A table of a partition that is not live: changes are kept until its rows are there, and then
    applied from the point of these on. What is stored of it outlives the process. All methods do
    I/O and raise Unavailable; what keeps this table from being loaded is SettingsError or Rejected,
    for `wait`.

    `partition` is that of its changes, or `ROWS`, of those of all; no two tables have one `name`,
    which logs call it. `has_rows`: all rows are there, and `settle` is left.
    `waits_for_operator`: another try is no use until it is resumed, or loaded anew. `is_early`: it
    refers to tables whose rows are loaded first, or another partition comes first. `described`: as
    the status page shows it. `loaded`: how many rows were there at the last `begin`. `recurs`: the
    server failed at it again and again, so that is of its rows and changes.
    """

    backend: str
    partition: PartitionId
    name: str
    has_rows: bool
    waits_for_operator: bool
    described: Mapping[str, Any]
    loaded: int
    is_early: bool
    recurs: bool

    def covers(self, schema: str, table: str) -> bool:
        """Whether rows of this table of the source are to be loaded. No I/O."""

    def begin(self, point: RowsPoint) -> Sequence[Part] | None:
        """The parts of a source's table that are left; None if it is to be planned."""

    def plan(self, point: RowsPoint, ranges: Sequence[Any]) -> Sequence[Part]:
        """Prepares the target, and forms parts of the ranges of a source's table."""

    def writer(
        self, point: RowsPoint, on_error: OnError = "stop", progress: Progress = ignore
    ) -> AbstractContextManager[RowWriter]:
        """Stores rows of a source's table. One that is refused is a dead letter, or (`suspend` and
        `stop`) Rejected."""

    def discard(self) -> None:
        """What was loaded is no good: the load begins anew."""

    def finish(self, tables: Collection[tuple[str, str]]) -> bool:
        """All parts of these, which are all that it covers, are done; False if the load was begun
        anew meanwhile."""

    def settle(
        self, on_error: OnError, progress: Progress = ignore, passed: Place | None = None
    ) -> None:
        """Applies the changes that were kept; then the table is live. `passed`: up to where all
        changes of the partition are in the sink, see `Feed.passed`; None where that is unknown."""

    def wait(self, error: PenstockError) -> None:
        """Stores why it cannot go on until somebody acts; it is tried again now and then."""


@runtime_checkable
class LoadsTables(Protocol):
    """A sink of tables, with rows of before the first change. Raises Unavailable, SettingsError."""

    def check_tables(
        self,
        backend: str,
        schemas: Sequence[TableSchema],
        partitions: Sequence[PartitionId] = (),
    ) -> Sequence[Finding]:
        """Preflight: what it stores beside the tables of a backend, as they are at a source;
        `partitions`: those whose tables are loaded once."""

    def left(self, backend: str) -> Collection[str]:
        """Preflight: the partitions of a backend all of whose tables have left the map."""

    def adopt(self, backend: str, saved: Bookmarks) -> None:
        """These are the bookmarks that the sink goes on after: so far it is from now on, at
        least."""

    def enter(
        self, backend: str, partition: PartitionId, *, initial: bool
    ) -> Sequence[Mapping[str, Any]]:
        """Makes the tables of a partition known; returns each as the status page shows it. New ones
        are loaded if `initial`, else live."""

    def leave(
        self, backend: str, partitions: Collection[PartitionId] | None,
        ours: Collection[PartitionId],
    ) -> Sequence[Mapping[str, Any]]:  # fmt: skip
        """Of the pipeline's partitions (`ours`) of a backend: tables that have left the map, and
        all of other partitions than these (None: of none), are not followed any more: where they
        come back, they are loaded anew. Returns those of which this is new, as the status page
        shows them."""

    def held(self) -> AbstractContextManager["LoadsTables"]:
        """The same sink with a connection that stays open, for one thread."""

    def unfinished(self) -> Sequence[TableLoad]:
        """The tables that are not live."""

    def notice(
        self, backend: str, partition: PartitionId, schemas: Sequence[TableSchema],
        left_out: Mapping[tuple[str, str], PenstockError] = MappingProxyType({}),
    ) -> Mapping[str, str]:  # fmt: skip
        """These are all tables that a partition sends now, and those that it does not. Tables of
        the map whose rows may have changed without the log since the last call are loaded anew, or
        wait, as those do that have one which is left out; returns why. Called before rows are read,
        and twice a minute."""

    def load_after(self, backend: str, partition: PartitionId, losses: str) -> bool:
        """Changes of a partition were lost: each of its tables that was not loaded after these
        `losses` is loaded anew; whether all are loaded."""

    def reload(
        self, table: str, partition: str | None, backend: str | None = None
    ) -> Sequence[str]:
        """Has a table (`table` or `schema.table` of the source) loaded anew, of one partition or
        all, of one backend or all; returns their names."""

    def size(self, target: str) -> Mapping[str, Any]:
        """Of a table of the sink that is files: its `version`, how many `files` and `bytes` that
        has, and when its `last_commit` was; else empty. It is asked only when an operator looks."""
