"""When the class archive is made: a JVM of its own takes half a minute of CPU, and 0.8 GB."""

from penstock.config.parts import PipelinePart
from penstock.ops.board import Board
from penstock.ops.reports import SinkReport, SourceReport
from penstock.spark.queries.supervised import talking_to_java
from penstock.spark.session.session import archive_at_idle

# Changes stored a second below which the pipeline has little to do, and for how many seconds.
LITTLE = 100.0
QUIET = 20.0


class ArchiveAtIdle(PipelinePart):
    """Has it made once, when every source has been connected and little was stored for a while."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._since: float | None = None  # when it began to have little to do
        self._is_done = False

    def tick(self, now: float) -> None:
        """`now` is monotonic seconds. Raises EngineLost."""
        if self._is_done:
            return
        if not self._is_quiet(now):
            self._since = None
        elif self._since is None:
            self._since = now
        elif now - self._since >= QUIET:
            self._is_done = True
            with talking_to_java():
                archive_at_idle()

    def _is_quiet(self, now: float) -> bool:
        snapshot = self._board.snapshot()
        sources, sinks = snapshot.of(SourceReport).values(), snapshot.of(SinkReport).values()
        is_up = bool(sources) and all(each.report.connected for each in sources)
        return is_up and sum(each.rate(now) for each in sinks) < LITTLE
