"""What the service does a few times a second while the pipeline is its own.

Starts each backend's query once the backend has begun, restarts it when it ended, reports both to
the board, and logs what the board's reports say. One backend that fails does not end the others.

Gaps are announced in the log, and through the sink on `penstock.gap.{backend}`. The reader process
records a gap in the store and reports it; the service, which has the sink, announces it. After a
crash in between the next process does: at least once, under one id.
"""

import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from penstock.config import Pipeline
from penstock.leases import open_store
from penstock.leases.gaps import Gaps
from penstock.microbatch.run_folder import query_name, stop_query
from penstock.model.errors import PenstockError, PositionLost, Unavailable
from penstock.ops.announce import Announcer
from penstock.ops.board import Board
from penstock.ops.reports import BatchReport, GapReport, ProcessReport, QueryReport, SourceReport
from penstock.process.backoff import delays
from penstock.service.beginning import Beginnings
from penstock.spark.queries.supervised import Supervised

# Seconds.
GRACE = 30.0
DRAIN_POLL = 0.05

log = structlog.get_logger("penstock")


class Supervision:
    """Supervises the queries of one pipeline, for as long as it is this instance's."""

    def __init__(
        self,
        pipeline: Pipeline,
        queries: Mapping[str, Supervised],
        beginnings: Beginnings,
        board: Board,
    ) -> None:
        self._pipeline = pipeline
        self._queries = queries
        self._beginnings = beginnings
        self._board = board
        self._notices = Notices(pipeline)
        self._announcer = Announcer()
        self._unknown: set[str] = set()
        self._ending: set[str] = set()  # queries that are not to be started again

    def tick(self, now: float) -> None:
        """`now` is monotonic seconds. Raises LeaseLost, EngineLost, and what ends the service: an
        error of what all backends share, or of all backends at the start."""
        self._beginnings.verify()
        for query in self._queries.values():
            if query.name in self._beginnings.begun and query.name not in self._ending:
                query.tick(now)
            self._post(query)
        self._refuse_hopeless()
        self._notices.tick(self._board, now)
        self._log_reports()

    def follow(self, pipeline: Pipeline, changed: Collection[str]) -> None:
        """See `FollowsMap`: stops the queries of backends that changed."""
        self._pipeline = self._notices.pipeline = pipeline
        self._ending -= set(changed)
        for name in changed:
            if name in self._queries:
                self._queries[name].stop()
                # Or else the next one would be taken for stopped until it reports.
                self._board.post(name, SourceReport(stopped=False))
        for name in set(changed) - {each.name for each in pipeline.backends}:
            self._board.forget(name)

    def hand_over(self) -> None:
        """Stops the queries at once: the pipeline is another instance's."""
        for query in self._queries.values():
            query.hand_over()

    def end(self, names: Collection[str], run: Path) -> None:
        """Has the queries of these backends take no more changes."""
        self._ending |= set(names)
        for name in names:
            if name in self._queries:
                stop_query(run, query_name(name, self._queries[name].restarts))

    def draining(self, names: Collection[str]) -> set[str]:
        """Those that are not idle yet after their stop file was made: the reader has to report that
        what it delivered is saved and acknowledged."""
        found = {name: self._queries[name] for name in names if name in self._queries}
        reported = {name: self._board.latest(SourceReport, name).stopped for name in found}
        return {
            name for name, query in found.items()
            if not query.has_drained(reported=reported[name])
        }  # fmt: skip

    def drain(self) -> None:
        """Waits until every reader reports that what it delivered is saved and acknowledged."""
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
        self._notices.log(self._board)
        self._log_reports()

    def _log_reports(self) -> None:
        self._unknown |= _log_unknown_types(self._board, self._unknown)
        self._announcer.announce(self._board.snapshot())

    def _post(self, query: Supervised) -> None:
        self._post_batch(query)
        error = self._beginnings.errors.get(query.name)
        passes = error is None or isinstance(error, Unavailable)
        report = QueryReport(
            begun=query.name in self._beginnings.begun,
            blocked=query.blocked if passes else str(error),
            restarts=query.restarts,
            last_error=query.last_error if error is None else str(error),
        )
        self._board.post(query.name, report)

    def _post_batch(self, query: Supervised) -> None:
        self._board.post(query.name, BatchReport(**query.progress()))

    def _refuse_hopeless(self) -> None:
        """Raises the first backend's error if each has failed for good and none has ever run:
        a pipeline that is misconfigured ends at its start, unless its map may be edited."""
        if self._pipeline.sink.map_store() is not None:
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


def _log_unknown_types(board: Board, known: set[str]) -> set[str]:
    """Logs once for each unknown type that it is delivered as text; returns the new ones."""
    fresh = set(board.latest(ProcessReport, "").unknown_types) - known
    for name in sorted(fresh):
        log.warning("a type is not known and is delivered as its text", type=name)
    return fresh


class _Loss(NamedTuple):
    backend: str
    partition: str
    gap: Mapping[str, Any]


class Notices:
    """Looks at the board, a few times a second, for gaps that were not announced."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._logged: dict[str, str] = {}
        self._announced: set[str] = set()
        self._waits: Iterator[float] = delays()
        self._at = 0.0

    def tick(self, board: Board, now: float) -> None:
        """Announces new gaps; `now` is monotonic seconds. Raises nothing: an announcement that
        fails is tried again."""
        self.log(board)
        for loss in self._losses(board):
            # Once its end is known, or will never be: each gap is announced once.
            done = bool(loss.gap["to"]) or loss.gap["policy"] == "fail"
            if done and not loss.gap["announced"] and _identity(loss.gap) not in self._announced:
                if now < self._at:
                    return
                self._tell(loss, now)

    def log(self, board: Board) -> None:
        """Logs new gaps, and announces none."""
        for loss in self._losses(board):
            self._log(loss)

    def _losses(self, board: Board) -> Iterator[_Loss]:
        snapshot = board.snapshot()
        for backend in self.pipeline.backends:
            for partition, row in snapshot.rows(GapReport, backend.name).items():
                for gap in row.report.gaps:
                    yield _Loss(backend.name, partition, gap)

    def _log(self, loss: _Loss) -> None:
        gap = loss.gap
        state = f"{gap['policy']} {gap['to']}"
        if gap["announced"] or self._logged.get(gap["id"]) == state:
            return
        self._logged[gap["id"]] = state
        log.error(
            "history lost",
            backend=loss.backend,
            partition=loss.partition,
            cause=gap["cause"],
            after=gap["from"],
            until=gap["to"],
            policy=gap["policy"],
            detail=gap["detail"],
        )

    def _tell(self, loss: _Loss, now: float) -> None:
        subject = f"penstock.gap.{loss.backend}"
        news = {
            "pipeline": self.pipeline.name,
            "backend": loss.backend,
            "partition": loss.partition,
            **{key: value for key, value in loss.gap.items() if key != "announced"},
        }
        server = self.pipeline.sink.server()
        try:
            if server is not None:
                kept = server.announce(subject, news, identity=_identity(loss.gap))
                log.warning("a gap was announced", subject=subject, kept_in=kept or "no stream")
            self._note(loss)
        except PenstockError as error:
            self._at = now + next(self._waits)
            log.warning("a gap could not be announced yet", subject=subject, error=str(error))
            return
        self._announced.add(_identity(loss.gap))
        self._waits = delays()

    def _note(self, loss: _Loss) -> None:
        store = open_store(self.pipeline.positions)
        try:
            gaps = Gaps(store, f"{self.pipeline.name}/{loss.backend}")
            gaps.announced(loss.partition, loss.gap["id"])
        finally:
            store.close()


def _identity(gap: Mapping[str, Any]) -> str:
    """The id of the announcement: a gap that stopped the backend is announced again when reading
    goes on."""
    return f"{gap['id']}-{gap['policy']}"
