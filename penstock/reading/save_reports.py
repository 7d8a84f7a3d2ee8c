"""Reports how positions are saved: how often, how long it took, and why it failed."""

from collections.abc import Callable

from penstock.histograms import observed
from penstock.ops.reporter import Reporter

__all__ = ["save_reports"]


def save_reports(board: Reporter, backend: str) -> Callable[[float, str], None]:
    """What `Positions.on_write` calls: seconds, and the error ("" for none)."""

    def report(seconds: float, error: str) -> None:
        # `save_failing` is a number, so that the board knows since when.
        fields = {"positions_error": error, "save_failing": float(bool(error))}
        board.report("measure", backend, fields)
        counts = {"save_errors": 1.0} if error else {"saved": 1.0}
        board.add("measure", backend, {**counts, **observed("checkpoint", seconds)})

    return report
