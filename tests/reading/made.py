"""What the tests of the read side put together: a reservoir over a memory feed and its parts."""

import time
from builtins import list as List  # `list` is a method of a store
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock.leases import Lease
from penstock.leases.memory import MemoryStore
from penstock.microbatch.epochs import BufferedEpochs, Lengths
from penstock.microbatch.options import SourceOptions
from penstock.microbatch.planned import PlannedReading
from penstock.model.errors import LeaseLost, Unavailable
from penstock.model.position import Bookmark, PartitionId, Place
from penstock.reading.gaps import GapLog
from penstock.reading.positions import Positions
from penstock.reading.reservoir import Reservoir
from penstock.reading.roster import Roster
from tests.feeds.staged import StagedFeed, StagedSettings
from tests.waiting import Clock

P0, P1 = PartitionId("p0"), PartitionId("p1")


class FaultyStore(MemoryStore):
    """Counts its calls; each may be lost before (`away`) or after it was carried out (`late`)."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.away = self.late = False

    def get(self, name: str) -> Lease | None:
        self._call()
        return super().get(name)

    def list(self, prefix: str) -> List[Lease]:
        self._call()
        return super().list(prefix)

    def put_all(self, leases: Sequence[Lease]) -> List[Lease | LeaseLost]:
        self._call()
        answers = super().put_all(leases)
        if self.late:
            raise Unavailable("the answer is lost")
        return answers

    def _call(self) -> None:
        self.calls += 1
        if self.away:
            raise Unavailable("the store does not answer")


def feed_of(**settings: Any) -> StagedFeed:
    given = {"changes": 100, "page": 10, "unit": 1, **settings}
    return StagedFeed(StagedSettings.model_validate(given))


def options_of(**given: Any) -> SourceOptions:
    """A source's over the memory feed."""
    return SourceOptions(backend="memory", **given)


def place(number: int, partition: str = "p0") -> Place:
    """The place of a change of a feed whose units are single changes."""
    return Place(f"{partition}-{number:012d}", 0)


def positions_of(
    store: MemoryStore | None = None, clock: Callable[[], float] | None = None
) -> Positions:
    """Saves whenever it is asked to."""
    return Positions(
        store or MemoryStore(),
        "shop/default",
        interval=0.0,
        event_count=1,
        clock=clock or time.monotonic,
    )


class Made:
    """The parts of a reader process over one feed."""

    def __init__(
        self,
        feed: StagedFeed,
        *,
        positions: Positions | None = None,
        **given: Any,
    ) -> None:
        self.options = options_of(**{"patience": 5.0, **given})
        self.feed = feed
        self.positions = positions
        self.gaps = GapLog(positions)
        self.reservoir = Reservoir(feed, limit=self.options.buffer, gaps=self.gaps)
        self.roster = Roster(feed)
        self.planner = PlannedReading(self.reservoir, self.roster, self.options, positions)

    def epochs(self, *, clock: Clock | None = None) -> BufferedEpochs:
        assert self.positions is not None
        lengths = Lengths(self.options)
        epochs = BufferedEpochs(
            self.reservoir, self.roster, self.positions, lengths, clock or Clock()
        )
        epochs.begin(self.feed.begin())
        return epochs

    def row(self, partition: PartitionId = P0) -> dict[str, Any]:
        return dict(self.reservoir.rows()[partition])

    def open(self, partition: PartitionId = P0, bookmark: Bookmark | None = None) -> None:
        self.reservoir.open(partition, bookmark or Bookmark())


@contextmanager
def made(feed: StagedFeed, **given: Any) -> Iterator[Made]:
    """Stopped in the end."""
    parts = Made(feed, **given)
    try:
        yield parts
    finally:
        parts.reservoir.stop(5.0)
