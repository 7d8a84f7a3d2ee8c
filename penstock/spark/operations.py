"""What operators see of a running service: the board, the ops server, the METRICS line."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import structlog

from penstock import __version__
from penstock.config import Pipeline
from penstock.ops.board import Board
from penstock.ops.logs import MetricsLine
from penstock.ops.respond import Response, respond
from penstock.ops.server import OpsServer
from penstock.ops.status import Status, Thresholds, assess
from penstock.sinks import TellsOfStreams
from penstock.spark.folder import BOARD

__all__ = ["open_board", "operations"]

log = structlog.get_logger("penstock")


def open_board(pipeline: Pipeline, run: Path) -> Board:
    """The board that the planner and the tasks report to, in the run folder."""
    return Board(run / BOARD, bounds=_thresholds(pipeline).bounds)


@contextmanager
def operations(
    pipeline: Pipeline, board: Board, *, stop: Callable[[], None], bridge_metrics: bool
) -> Iterator[None]:
    """Serves /health and the rest, and logs the METRICS line, while it is entered.

    Raises SettingsError if the ops port is taken.
    """
    sink = pipeline.sink.sink()
    stream_info = sink.stream_info if isinstance(sink, TellsOfStreams) else None

    def status() -> Status:
        return assess(
            board.snapshot(),
            name=pipeline.name,
            version=__version__,
            backends=[backend.name for backend in pipeline.backends],
            started=board.started,
            now=time.monotonic(),
            thresholds=_thresholds(pipeline),
        )

    def answer(method: str, path: str, query: Mapping[str, str], origin: str | None) -> Response:
        return respond(
            method,
            path,
            query,
            status(),
            stream_info=stream_info,
            bridge=bridge_metrics,
            origin=origin,
        )

    ops = pipeline.ops
    with (
        OpsServer(bind=ops.bind, port=ops.port, answer=answer, shutdown=stop) as server,
        MetricsLine(status),
    ):
        log.info("ops server listens", url=server.url)
        yield


def _thresholds(pipeline: Pipeline) -> Thresholds:
    ops = pipeline.ops
    return Thresholds(stalled_after=ops.stalled_after, lag_bytes=ops.lag_limit)
