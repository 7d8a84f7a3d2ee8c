"""What the service does a few times a second while the pipeline is its own.

Starts each backend's query once the backend has begun, restarts it when it ended, reports both to
the board, and makes known what the board's reports say. One backend that fails does not end the
others.
"""

import time
from collections.abc import Collection, Mapping
from pathlib import Path

import structlog

from penstock.config import Pipeline
from penstock.config.parts import PipelinePart
from penstock.microbatch.run_folder import query_name, stop_queries, stop_query
from penstock.model.errors import PenstockError, PositionLost, Unavailable
from penstock.ops.board import Board, Snapshot
from penstock.ops.reports import BatchReport, QueryReport, SourceReport, SpansReport
from penstock.service.beginning import Beginnings
from penstock.service.notices import BoardLog, GapAnnouncements
from penstock.spark.queries.supervised import Supervised

# Seconds.
GRACE = 30.0
DRAIN_POLL = 0.05
_BATCHES = 1.0  # between two reports of Spark's micro-batches: each asks the JVM three times

log = structlog.get_logger("penstock")


class Supervision(PipelinePart):
    """Supervises the queries of one pipeline, for as long as it is this instance's."""

    def __init__(
        self,
        pipeline: Pipeline,
        queries: Mapping[str, Supervised],
        beginnings: Beginnings,
        board: Board,
        run: Path,
    ) -> None:
        self.board, self._pipeline, self._queries = board, pipeline, queries
        self._beginnings, self._run = beginnings, run
        self._gaps, self._log = GapAnnouncements(pipeline), BoardLog()
        self._batches_at = -_BATCHES  # when micro-batches were reported
        self._begun: dict[str, int | None] = {}  # how many had been then, by query
        self._ending: set[str] = set()  # queries that are not to be started again

    def tick(self, now: float) -> None:
        """`now` is monotonic seconds. Raises LeaseLost, EngineLost, and what ends the service: an
        error of what all backends share, or of all backends at the start."""
        self._beginnings.verify()
        snapshot = self.board.snapshot()
        if is_due := now - self._batches_at >= _BATCHES:
            self._batches_at = now
        for query in self._queries.values():
            if query.name in self._beginnings.begun and query.name not in self._ending:
                query.tick(now)
            self._post(query)
            if is_due and self._is_fresh(query.name, snapshot):
                self._post_batch(query)
        self._refuse_hopeless()
        self._log.write(snapshot)
        self._gaps.tick(snapshot, now)

    def is_calm(self, now: float) -> bool:
        """Whether all queries have run for a while, at `now`, and none ended or is to end."""
        return not self._ending and all(each.is_steady(now) for each in self._queries.values())

    def follow(self, pipeline: Pipeline, changed: Collection[str]) -> None:
        """Stops the queries of backends that changed."""
        self._pipeline = self._gaps.pipeline = pipeline
        self._ending -= set(changed)
        for name in changed:
            if name in self._queries:
                self._queries[name].stop()
                # Or else the next one would be taken for stopped until it reports.
                self.board.post(name, SourceReport(stopped=False))
        for name in set(changed) - {each.name for each in pipeline.backends}:
            self.board.forget(name)

    def hand_over(self) -> None:
        """Stops the queries at once: the pipeline is another instance's."""
        for query in self._queries.values():
            query.hand_over()

    def end(self, names: Collection[str]) -> None:
        """Has the queries of these backends take no more changes."""
        self._ending |= set(names)
        for name in names:
            if name in self._queries:
                stop_query(self._run, query_name(name, self._queries[name].restarts))

    def draining(self, names: Collection[str]) -> set[str]:
        """Those that are not idle yet after their stop file was made: the reader has to report that
        what it delivered is saved and acknowledged."""
        found = {name: self._queries[name] for name in names if name in self._queries}
        snapshot = self.board.snapshot()
        reported = {name: snapshot.latest(SourceReport, name).stopped for name in found}
        return {
            name for name, query in found.items()
            if not query.has_drained(reported=reported[name])
        }  # fmt: skip

    def drain(self) -> None:
        """Ends all queries, and waits for what they delivered: see `draining`."""
        stop_queries(self._run)
        deadline = time.monotonic() + GRACE
        while (waiting := self.draining(self._queries)) and time.monotonic() < deadline:
            for query in self._queries.values():
                self._post_batch(query)  # raises at once when the JVM is gone
            time.sleep(DRAIN_POLL)
        for name in sorted(waiting):
            log.warning("stopped with a batch in flight; the next start delivers it", backend=name)
        for query in self._queries.values():
            query.stop()
        # What was reported since the last tick; the next start announces the gaps.
        self._log.write(self.board.snapshot())

    def _post(self, query: Supervised) -> None:
        error = self._beginnings.errors.get(query.name)
        passes = error is None or isinstance(error, Unavailable)
        report = QueryReport(
            begun=query.name in self._beginnings.begun,
            blocked=query.blocked if passes else str(error),
            restarts=query.restarts,
            last_error=query.last_error if error is None else str(error),
        )
        self.board.post(query.name, report)

    def _is_fresh(self, name: str, snapshot: Snapshot) -> bool:
        """Whether a micro-batch may have ended: an open one ends when the next one begins."""
        begun, before = snapshot.latest(SourceReport, name).batches, self._begun.get(name)
        self._begun[name] = begun
        return not self._pipeline.is_open or begun != before

    def _post_batch(self, query: Supervised) -> None:
        progress = query.progress()
        self.board.post(query.name, BatchReport(**progress))
        if progress and not self._pipeline.is_open:
            self.board.post(query.name, SpansReport(micro_batch=progress))

    def _refuse_hopeless(self) -> None:
        """Raises the first backend's error if each has failed for good and none has ever run:
        a pipeline that is misconfigured ends at its start, unless its map may be edited."""
        if self._pipeline.has_live_map:
            return  # an edit mends it
        queries = self._queries.values()
        failed = [error for error in map(self._final, queries) if error is not None]
        if len(failed) == len(queries) and not any(query.proven for query in queries):
            raise failed[0]

    def _final(self, query: Supervised) -> PenstockError | None:
        """Why the backend cannot run at all: a lost history is for the operator to decide."""
        error = query.failed
        if error is None or isinstance(error, PositionLost):
            error = self._beginnings.errors.get(query.name)
        return None if isinstance(error, Unavailable) else error
