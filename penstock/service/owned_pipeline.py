"""The pipeline that is this instance's, for as long as it is: what snapshots ask of it."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.config import Pipeline
from penstock.config.parts import PipelinePart
from penstock.leases.gaps import GapRow, Gaps, losses, unpublished
from penstock.model.errors import LeaseLost, Unavailable
from penstock.model.position import Bookmarks, Position
from penstock.ops.board import Board
from penstock.ops.reporter import add_sink_report
from penstock.ops.reports import SnapshotsReport
from penstock.reading.positions import Positions
from penstock.service.ownership import positions_of
from penstock.service.standby import Standby
from penstock.sinks import KeepsLetters
from penstock.snapshots.statements import RowTransform


class OwnedPipeline(PipelinePart):
    """A `PipelineState`, and a `Progress` of its tables, until `end` or the loss of a lease. Used
    by any thread."""

    def __init__(self, pipeline: Pipeline, instance: str, standby: Standby, board: Board) -> None:
        self.name = pipeline.name
        self.statements: RowTransform | None = None
        self._pipeline, self._instance = pipeline, instance
        self._standby, self._board = standby, board
        self._over = threading.Event()
        self._lost: LeaseLost | None = None
        # By backend: a store has a connection, which is kept.
        self._stores: dict[str, Positions] = {}

    @property
    def is_ours(self) -> bool:
        """Whether snapshots may go on."""
        return not self._over.is_set() and self._standby.is_ours

    @property
    def is_held(self) -> bool:
        """Whether no other instance has it, also after the `end`."""
        return self._standby.is_ours

    def verify(self) -> None:
        """Raises LeaseLost where it is not ours any more, or has to begin anew."""
        if self._standby.lost:
            raise LeaseLost(self._standby.lost, "service")
        if self._lost is not None:
            raise self._lost

    def end(self) -> None:
        """It is not ours from now on."""
        self._over.set()

    def begin_anew(self, error: LeaseLost) -> None:
        """See `OwnedState`."""
        self._lost = error

    def wait(self, seconds: float) -> None:
        """Returns after so many seconds, or at the `end`."""
        self._over.wait(seconds)

    def report_snapshots(self, backend: str, status: Mapping[str, Any]) -> None:
        self._board.post(backend, SnapshotsReport(**status))

    def stored(self, position: Position) -> None:
        """See `Progress`; of loads there is nothing to say."""

    def report(self, status: Mapping[str, Any]) -> None:
        """See `Progress`: posts what is new of tables and dead letters."""
        add_sink_report(self._board, self._pipeline.sink.type, status)

    def bookmarks(self, backend: str) -> Bookmarks:
        return self._positions(backend).load()

    def losses(self, backend: str) -> str:
        rows = self.gaps(backend).rows()
        for partition in self.unpublished(backend, rows):
            raise Unavailable(
                f"changes of {partition} from before a gap are not published yet",
                "service",
                hint="ask again when the pipeline has published them",
            )
        return losses(rows)

    def gaps(self, backend: str) -> Gaps:
        return self._positions(backend).gaps

    def unpublished(self, backend: str, rows: Mapping[str, GapRow]) -> Sequence[str]:
        """Partitions of which changes from before a gap would come after a snapshot, and undo
        rows of it: without a common order no position tells."""
        (found,) = (each for each in self._pipeline.backends if each.name == backend)
        return () if found.feed().has_common_order else unpublished(rows, self.bookmarks(backend))

    def suspended(self) -> Mapping[tuple[str, str], str]:
        """Why tables are suspended, by backend and `schema.table`. Raises Unavailable."""
        sink = self._pipeline.sink.sink()
        found = sink.tables() if isinstance(sink, KeepsLetters) else ()
        return {
            (each["backend"], each["table"]): each["reason"] or each["state"]
            for each in found
            if each["state"] == "suspended"
        }

    def _positions(self, backend: str) -> Positions:
        found = self._stores.get(backend)
        return found or self._stores.setdefault(
            backend, positions_of(self._pipeline, backend, self._instance)
        )
