"""What a snapshot is of, what it may ask of its pipeline, and how far it is."""

from dataclasses import dataclass, field
from typing import Protocol

from penstock.feeds import WHOLE_TABLE, Feed, RowSelection, SelectsRows, TakesSnapshots
from penstock.model.change import OnError
from penstock.model.position import Bookmarks
from penstock.model.table_schema import TableName
from penstock.snapshots.statements import RowTransform


class Cancelled(Exception):
    """An operator ended the snapshot."""


class PipelineState(Protocol):
    """What snapshots may ask of their pipeline, from any thread. `statements`: those of its
    `transform`, which rows come through, if there are any."""

    name: str
    statements: RowTransform | None

    @property
    def is_ours(self) -> bool:
        """Whether this instance still has the pipeline; once it does not, it never has it again,
        and the next owner goes on with snapshots."""
        ...

    def bookmarks(self, backend: str) -> Bookmarks:
        """The saved positions of a backend; none before its changes are followed. Raises
        Unavailable."""
        ...

    def losses(self, backend: str) -> str:
        """A text that changes with each loss of changes. Raises Unavailable while changes from
        before a gap are not published, and could not be told from those after a snapshot."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be taken. `name` is the table's in messages, and begins with `prefix`, where a
    pipeline has several backends. `resumes`: another instance began it. `selection`: which part of
    the table. `reloads`: mirrors that have the table load it from this snapshot. Without the name
    of a `pipeline` no plan is stored."""

    snapshot_id: str
    pipeline: PipelineState
    backend: str
    feed: Feed
    schema: str
    table: str
    name: TableName
    prefix: TableName = ()
    resumes: bool = False
    selection: RowSelection = WHOLE_TABLE
    reloads: bool = False
    on_error: OnError = "stop"

    @property
    def source(self) -> TakesSnapshots:
        """Takes snapshots of the part that is wanted."""
        feed: object = self.feed
        if not self.selection.is_whole:
            assert isinstance(feed, SelectsRows)
            return feed.selecting(self.selection)
        assert isinstance(feed, TakesSnapshots)
        return feed


@dataclass(slots=True)
class RunProgress:
    """How far a run is. `ranges` is 0 until the table was cut; so is `begun_at` (monotonic
    seconds). `snapshots`: how many of the source it took. `read`: rows that were read under the
    last of these, of parts that are done."""

    position: str = ""
    lsn: str = ""
    gap: str = ""  # the backend's losses before the source's snapshot
    ranges: int = 0
    done: int = 0
    chunks: int = 0
    rows: int = 0
    bytes: int = 0
    snapshots: int = 0
    read: int = 0
    waiting: str = ""  # what is waited for at the source, before it can be read
    begun_at: float = field(default=0.0, compare=False)
    done_before: int = 0  # ranges, of those that are done, at `begun_at`
