"""Announces gaps: in the log, and through the sink on `penstock.gap.{backend}`.

The reader process records a gap in the store and reports it; the service, which has the sink,
announces it. After a crash in between the next process does: at least once, under one id.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import structlog

from penstock.config import Pipeline
from penstock.leases.gaps import Gaps
from penstock.leases.open import open_store
from penstock.model.errors import PenstockError
from penstock.ops.board import Board, rows_of
from penstock.process.backoff import delays

log = structlog.get_logger("penstock")


class _Loss(NamedTuple):
    backend: str
    partition: str
    gap: Mapping[str, Any]


class Notices:
    """Looks at the board, a few times a second, for gaps that were not announced."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
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
        for backend in self._pipeline.backends:
            for partition, row in rows_of(snapshot, "gap", backend.name).items():
                for gap in row.fields["gaps"]:
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
            "pipeline": self._pipeline.name,
            "backend": loss.backend,
            "partition": loss.partition,
            **{key: value for key, value in loss.gap.items() if key != "announced"},
        }
        server = self._pipeline.sink.server()
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
        store = open_store(self._pipeline.positions)
        try:
            gaps = Gaps(store, f"{self._pipeline.name}/{loss.backend}")
            gaps.announced(loss.partition, loss.gap["id"])
        finally:
            store.close()


def _identity(gap: Mapping[str, Any]) -> str:
    """The id of the announcement: a gap that stopped the backend is announced again when reading
    goes on."""
    return f"{gap['id']}-{gap['policy']}"
