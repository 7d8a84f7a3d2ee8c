"""The board, the ops server and the METRICS line as one thing that a service enters."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import structlog

from penstock import __version__
from penstock.ops.board import Board
from penstock.ops.logs import MetricsLine
from penstock.ops.respond import StreamInfo, respond
from penstock.ops.server import OpsServer
from penstock.ops.status import Status, Thresholds, assess

__all__ = ["operations", "status_of"]

log = structlog.get_logger("penstock.ops")


def status_of(
    board: Board, *, name: str, backends: Sequence[str], thresholds: Thresholds
) -> Status:
    """The status now, by the board's clock."""
    return assess(
        board.snapshot(),
        name=name,
        version=__version__,
        backends=backends,
        started=board.started,
        now=board.now(),
        thresholds=thresholds,
    )


@contextmanager
def operations(
    board: Board,
    *,
    name: str,
    backends: Sequence[str],
    bind: str,
    port: int,
    shutdown: Callable[[], None],
    thresholds: Thresholds | None = None,
    stream_info: StreamInfo | None = None,
    bridge: bool = False,
    interval: float = 15.0,
) -> Iterator[OpsServer]:
    """Serves HTTP and logs METRICS while entered; logs where it listens. Raises SettingsError
    when the port is taken.

    The board should have been made with `bounds=thresholds.bounds`.
    """
    limits = thresholds or Thresholds()

    def status() -> Status:
        return status_of(board, name=name, backends=backends, thresholds=limits)

    server = OpsServer(
        bind=bind,
        port=port,
        answer=lambda method, path, query, origin: respond(
            method, path, query, status(), stream_info=stream_info, bridge=bridge, origin=origin
        ),
        shutdown=shutdown,
    )
    with server, MetricsLine(status, interval=interval):
        log.info("ops server listens", url=server.url)
        yield server
