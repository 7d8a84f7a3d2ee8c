"""What a processor's status says of its partitions."""

import time

from penstock.ops.board import Board
from penstock.ops.reports import PartitionReport, SourceReport
from penstock.processor.reports import ProcessorReports
from tests.processor.world import World, memory


def test_the_changes_that_are_left_after_what_is_saved_are_counted() -> None:
    """Also those that were processed: nothing is saved without the observer's checkpoint."""
    world, board = World(), Board("/nowhere")
    host = world.host("a", memory(partitions=2, changes=30), checkpoint="explicit")
    world.pass_time(30, host)
    assert {name: len(numbers) for name, numbers in world.numbers.items()} == {"p0": 30, "p1": 30}
    with ProcessorReports(host, board, every=0.001) as reports:
        lags, until = [], time.monotonic() + 60
        while lags != [(30, "changes")] * 2:
            assert time.monotonic() < until
            time.sleep(0.001)
            reports.post()
            lags = [
                (row.report.lag, row.report.lag_unit)
                for row in board.snapshot().rows(PartitionReport, "memory").values()
            ]
        source = board.snapshot().latest(SourceReport, "memory")
        assert (source.lag, source.hosts) == ({"changes": 60}, {host.host: 2})
