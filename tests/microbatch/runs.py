"""A query that ends by itself, as Spark runs it (the trigger AvailableNow), without Spark."""

from collections.abc import Callable, Mapping
from typing import Any

from penstock.microbatch.late import Attempt
from penstock.microbatch.source import Source
from penstock.microbatch.task import read_split

Row = dict[str, Any]
_ATTEMPT = Attempt(stage=0, number=0, is_first=True)


class Run:
    """Runs over one source after one another, and what Spark's checkpoint has of them: where the
    last micro-batch ended, and one that was planned and not committed. `batches`: the rows of each
    micro-batch of the last run."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)
        self.committed: Any = None
        self.planned: Any = None
        self.batches: list[list[Row]] = []

    def __call__(self, between: Callable[[int], None] = lambda _: None) -> list[Row]:
        """A run to its end; returns the rows. `between` is called before each micro-batch is
        committed, with its number, and may raise: the next run goes on as after a crash."""
        return self.with_rows(lambda number, _: between(number))

    def with_rows(self, between: Callable[[int, list[Row]], None]) -> list[Row]:
        """The same; `between` gets the micro-batch's rows as well."""
        self.batches = []
        source = Source.open(self.options)
        try:
            start = self.committed or source.initial()
            source.end_by_itself()
            end = self.planned or source.latest(start)
            while end != start:
                self.planned = end
                rows = [
                    row
                    for split in source.splits(start, end)
                    for batch in read_split(self.options, split, _ATTEMPT)
                    for row in batch.to_pylist()
                ]
                between(len(self.batches), rows)
                self.batches.append(rows)
                start = self.committed = end
                self.planned = None
                end = source.latest(start)
            assert source.latest(start) == start
        finally:
            source.stop()
        return [row for batch in self.batches for row in batch]
