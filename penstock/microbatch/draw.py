"""Pages for one ticket, out of the reservoir: in an open micro-batch as they come, from whatever
partitions there are; in a planned one up to its end.
"""

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Protocol

from penstock.microbatch.ticket import Join, Leave, Range
from penstock.model.page import Page
from penstock.model.position import PartitionId, Place, Position
from penstock.reading.reservoir import Arrivals, Reservoir

# Bytes that are drawn at once: of all partitions, and of each while others have pages.
_AT_ONCE, _OF_EACH = 4 << 20, 1 << 20


class Draw(Protocol):
    """What a page server sends for one request. `begins`: up to where all was durable before it."""

    begins: Position = MappingProxyType({})

    def next(self, wait: float) -> tuple[Sequence[Page | Join | Leave], bool]:
        """The next pages (or, where tasks read by themselves, partitions that join and leave),
        waiting at most `wait` seconds for the first; and whether nothing more will come. Raises
        what reading failed with."""

    def close(self) -> None:
        """Called when the request is over."""
        return


class OpenDraw(Draw):
    """All partitions, as pages come; `durable` is where each goes on. Never over by itself."""

    def __init__(
        self, reservoir: Reservoir, durable: Callable[[PartitionId], Place | None], *,
        begins: Position = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self._reservoir, self._durable, self.begins = reservoir, durable, begins
        self._arrivals = Arrivals()
        with reservoir.wake:
            reservoir.listen(self._arrivals, durable)

    def next(self, wait: float) -> tuple[Sequence[Page], bool]:
        fresh, taken = self._arrivals.fresh, self._arrivals.taken
        with self._reservoir.wake:
            if not fresh:
                self._reservoir.check()
                self._reservoir.wake.wait(wait)
            pages: list[Page] = []
            size = 0
            while fresh and size < _AT_ONCE:
                name = next(iter(fresh))
                del fresh[name]
                of_this = 0
                for page in self._reservoir.beyond(name, taken.get(name) or self._durable(name)):
                    if of_this >= _OF_EACH:
                        fresh[name] = None  # after the others
                        break
                    pages.append(page)
                    of_this += page.size
                    taken[name] = page.last
                size += of_this
            self._reservoir.drawn += sum(page.count for page in pages)
        return pages, False

    def close(self) -> None:
        with self._reservoir.wake:
            self._reservoir.unlisten(self._arrivals)


class PlannedDraw(Draw):
    """The pages that lie in `ranges`; then it is over."""

    def __init__(self, reservoir: Reservoir, ranges: Sequence[Range]) -> None:
        self._reservoir = reservoir
        self._left = {each.partition: each for each in ranges}

    def next(self, wait: float) -> tuple[Sequence[Page], bool]:
        with self._reservoir.wake:
            if not (pages := self._pages()) and self._left:
                self._reservoir.wake.wait(wait)
                pages = self._pages()
            self._reservoir.drawn += sum(page.count for page in pages)
            return pages, not self._left

    def _pages(self) -> list[Page]:
        pages: list[Page] = []
        for name, (_, after, until) in list(self._left.items()):
            fresh = list(self._reservoir.beyond(name, after, until))
            pages += fresh
            if self._reservoir.reaches(name, until):
                del self._left[name]
            else:
                self._left[name] = Range(name, fresh[-1].last if fresh else after, until)
        return pages
