"""What a snapshot is of, and how far it is."""

from collections.abc import Callable
from dataclasses import dataclass, field

from penstock.feeds import WHOLE_TABLE, Feed, RowSelection, SelectsRows, TakesSnapshots
from penstock.model.change import OnError
from penstock.model.position import Bookmarks
from penstock.model.table_schema import TableName


class Cancelled(Exception):
    """An operator ended the snapshot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What is to be taken. `name` is the table's in messages, and begins with `prefix`, where a
    pipeline has several backends; `known` gives the saved bookmarks, `gap` a text that changes with
    each loss of changes. Once the pipeline is not ours
    any more, the next owner goes on with the snapshot: this run ends without a meta. `resumes`:
    another instance began it. `selection`: which part of the table. `reloads`: mirrors that have
    the table load it from this snapshot. Without the name of a
    `pipeline` no plan is stored."""

    snapshot_id: str
    feed: Feed
    schema: str
    table: str
    name: TableName
    prefix: TableName = ()
    pipeline: str = ""
    known: Callable[[], Bookmarks]
    gap: Callable[[], str] = lambda: ""
    is_ours: Callable[[], bool] = lambda: True
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
    seconds). `snapshots`: how many of the source it took."""

    position: str = ""
    lsn: str = ""
    gap: str = ""  # the job's, before the source's snapshot
    ranges: int = 0
    done: int = 0
    chunks: int = 0
    rows: int = 0
    bytes: int = 0
    snapshots: int = 0
    waiting: str = ""  # what is waited for at the source, before it can be read
    begun_at: float = field(default=0.0, compare=False)
    done_before: int = 0  # ranges, of those that are done, at `begun_at`
