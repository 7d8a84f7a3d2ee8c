"""What a snapshot is of, what it may ask of its pipeline, and how far it is: its states, as a
table, and what its threads share.

Ranges are read under one snapshot of the source after the other, until all are read; then the meta
is sent. From then on it may be stored though no answer came, and no chunk may be deleted.
"""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from penstock.config import SnapshotSettings
from penstock.feeds import WHOLE_TABLE, Feed, RowSelection, TakesSnapshots
from penstock.model.change import OnError
from penstock.model.machine import step
from penstock.model.position import Bookmarks
from penstock.model.table_schema import TableName
from penstock.snapshots.statements import RowTransform

_LOOK = 0.1  # seconds between two looks whether a wait is to end


class Cancelled(Exception):
    """An operator ended the snapshot."""


class PipelineState(Protocol):
    """What snapshots may ask of their pipeline, from any thread. `statements`: those of its
    `transform`, which rows come through, if there are any."""

    name: str
    statements: RowTransform | None

    @property
    def is_ours(self) -> bool:
        """Whether this instance has the pipeline; once not, never again: the next one goes on."""

    def bookmarks(self, backend: str) -> Bookmarks:
        """A backend's saved positions; none before its changes are followed. Raises Unavailable."""

    def losses(self, backend: str) -> str:
        """A text that changes with each loss of changes. Raises Unavailable while changes from
        before a gap are not published, and could not be told from those after a snapshot."""


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
        feed: object = self.feed
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


class RunState(Enum):
    READING = "reading"  # ranges are read
    FAILED = "failed"  # a thread failed: the others end
    READ = "read"  # every range was read: no other snapshot of the source follows
    SENT = "sent"  # the meta is sent
    DOUBTFUL = "doubtful"  # and there was an error instead of an answer: it may be stored
    CANCELLED = "cancelled"  # by an operator
    WITHDRAWN = "withdrawn"  # cancelled after the meta was sent: it may be stored


class RunEvent(Enum):
    FAIL = "fail"
    GO_ON = "go on"  # under another snapshot of the source
    FINISH = "finish"  # every range was read
    SEND = "send"  # the meta is sent next
    CANCEL = "cancel"


_S, _E = RunState, RunEvent
TABLE: Mapping[tuple[RunState, RunEvent], RunState] = {
    (_S.READING, _E.FAIL): _S.FAILED,
    (_S.READING, _E.GO_ON): _S.READING,
    (_S.READING, _E.FINISH): _S.READ,
    (_S.READING, _E.CANCEL): _S.CANCELLED,
    (_S.FAILED, _E.FAIL): _S.FAILED,
    (_S.FAILED, _E.GO_ON): _S.READING,
    (_S.FAILED, _E.CANCEL): _S.CANCELLED,
    (_S.READ, _E.FAIL): _S.FAILED,
    (_S.READ, _E.SEND): _S.SENT,
    (_S.READ, _E.CANCEL): _S.CANCELLED,
    (_S.SENT, _E.FAIL): _S.DOUBTFUL,
    (_S.SENT, _E.CANCEL): _S.WITHDRAWN,
    (_S.DOUBTFUL, _E.CANCEL): _S.WITHDRAWN,
    **{(_S.CANCELLED, event): _S.CANCELLED for event in _E},
    (_S.WITHDRAWN, _E.FAIL): _S.WITHDRAWN,
    (_S.WITHDRAWN, _E.CANCEL): _S.WITHDRAWN,
}

_GOES_ON = RunState.READING, RunState.FAILED
_OVER = RunState.FAILED, RunState.DOUBTFUL, RunState.CANCELLED, RunState.WITHDRAWN


class SnapshotPace:
    """How fast snapshots may be read, all together, so that the source and its changes come first:
    `wait` before rows are sent. Used by any number of threads. Without a rate nothing waits."""

    def __init__(
        self,
        settings: SnapshotSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rates = settings.row_rate, settings.rate
        self._clock, self._sleep = clock, sleep
        self._free_at = 0.0  # when what was let through so far is paid for
        self._lock = threading.Lock()

    def wait(self, rows: int, size: int, is_over: Callable[[], bool]) -> None:
        """Returns when so many rows and bytes may be sent, or when it `is_over`."""
        amounts = zip((rows, size), self._rates, strict=True)
        cost = max((amount / rate for amount, rate in amounts if rate is not None), default=0.0)
        with self._lock:
            at = max(self._clock(), self._free_at)
            self._free_at = at + cost
        while (left := at - self._clock()) > 0 and not is_over():
            self._sleep(min(left, _LOOK))


class RunControl:
    """What all threads of a run share. `failure`: the first one, as others may follow from it."""

    def __init__(self, pipeline: PipelineState, pace: SnapshotPace) -> None:
        self.progress = RunProgress()
        self.failure: BaseException | None = None
        self.state = RunState.READING
        self._pipeline, self._pace = pipeline, pace
        self._lock = threading.Lock()

    @property
    def is_cancelled(self) -> bool:
        return self.state in (RunState.CANCELLED, RunState.WITHDRAWN)

    @property
    def may_go_on(self) -> bool:
        """Whether another snapshot of the source may be read."""
        return self.state in _GOES_ON and self._pipeline.is_ours

    def is_over(self) -> bool:
        """Whether every thread has to end."""
        return self.state in _OVER or not self._pipeline.is_ours

    def on(self, event: RunEvent) -> RunState:
        with self._lock:
            self.state = step(TABLE, self.state, event)
            return self.state

    def fail(self, error: BaseException) -> RunState:
        with self._lock:
            self.failure = self.failure or error
        return self.on(RunEvent.FAIL)

    def go_on(self) -> None:
        self.failure = None
        self.on(RunEvent.GO_ON)

    def pace(self, rows: int, size: int) -> None:
        self._pace.wait(rows, size, self.is_over)

    def wrote(self, rows: int, size: int) -> None:
        """Counts a chunk; with negative numbers, one that is deleted."""
        with self._lock:
            self.progress.chunks += -1 if size < 0 else 1
            self.progress.rows += rows
            self.progress.bytes += size

    def read(self, rows: int, *, is_range: bool) -> None:
        """Counts a part that was read to its end: a range, or rows that are read again."""
        with self._lock:
            self.progress.read += rows
            self.progress.done += is_range
