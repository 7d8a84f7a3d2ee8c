"""One snapshot, from its request to the meta. Whatever ends it early leaves no chunks."""

from contextlib import closing

import structlog

from penstock.config import SnapshotSettings
from penstock.model.errors import LeaseLost
from penstock.sinks.server import SinkServer
from penstock.snapshots.job import Cancelled, Job, RunControl, RunEvent, RunState, SnapshotPace
from penstock.snapshots.reading import TableReader
from penstock.snapshots.store import MessageStore

log = structlog.get_logger("penstock")


class SnapshotRun:
    """Takes one snapshot. `progress` may be read by any thread, `cancel` called by any."""

    def __init__(
        self,
        job: Job,
        sink: SinkServer,
        settings: SnapshotSettings,
        pace: SnapshotPace | None = None,
    ) -> None:
        self.job = job
        self.control = RunControl(job.pipeline, pace or SnapshotPace(settings))
        self.progress = self.control.progress
        self._store = MessageStore(job, sink, settings, self.control)
        self._reader = TableReader(job, self._store, settings, self.control)

    def cancel(self) -> None:
        """Ends it as soon as possible."""
        self.control.on(RunEvent.CANCEL)

    def run(self) -> None:
        """Blocks until the meta is stored. Raises Cancelled or a PenstockError; then no chunk is
        left, unless the server is away. Once the meta was sent it may be stored, though there is no
        answer: then the chunks stay. They stay, too, for the next owner, once the pipeline is not
        ours."""
        with closing(self._store):
            try:
                point = self._reader.read()
                self.control.on(RunEvent.FINISH)
                self._warn_of_nothing()
                self._store.finish(point)
            except BaseException as error:
                state, is_ours = self.control.fail(error), self.job.pipeline.is_ours
                if state is RunState.CANCELLED or (state is RunState.FAILED and is_ours):
                    self._store.abandon()
                if self.control.is_cancelled:
                    raise Cancelled from error
                if not is_ours and not isinstance(error, LeaseLost):
                    raise LeaseLost("the pipeline is another instance's now") from error
                raise

    def _warn_of_nothing(self) -> None:
        """A condition on `operation` may have forgotten rows of snapshots."""
        rows, has_statements = self.progress.read, self.job.pipeline.statements is not None
        if has_statements and rows and not self.progress.rows:
            log.warning(
                "no row of a snapshot comes through transform", table=".".join(self.job.name),
                rows=rows, hint="they have the operation READ",
            )  # fmt: skip
