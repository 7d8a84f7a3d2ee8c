"""The catalogues of sources, asked twice a minute. One that is away holds up no other."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from penstock.feeds import Feed, HasSources
from penstock.model.errors import SettingsError
from penstock.model.position import Bookmark, PartitionId
from penstock.model.table_schema import TableSchema

_EVERY = 30.0  # seconds between two questions
_AGAIN = 5.0  # seconds after which one is asked again that failed, or lacked a table
_THREADS = 16  # sources that are asked at once: each may take its whole time limit

Source = tuple[str, PartitionId]  # a backend and its partition
LeftOut = Mapping[tuple[str, str], SettingsError]  # tables that are not sent, and why


class Catalogues:
    """What each source has; used by one thread. `tables`, and those that are `left_out`: of the
    last answers that were taken."""

    def __init__(self) -> None:
        self.tables: dict[Source, Sequence[TableSchema]] = {}
        self.left_out: dict[Source, LeftOut] = {}
        self._asked: dict[Source, Future[tuple[Sequence[TableSchema], LeftOut]]] = {}
        self._due: dict[Source, float] = {}  # monotonic seconds
        self._pool = ThreadPoolExecutor(_THREADS, "catalogue")

    def take(
        self,
        sources: Mapping[Source, Bookmark],
        feeds: Mapping[str, Feed],
        compare: Callable[[Source, Sequence[TableSchema], LeftOut], None],
    ) -> Iterator[tuple[Source, Exception]]:
        """Asks those that are due, and has answers that are others than the last compared, or leave
        tables out; yields what failed. `sources`: with what is saved of each."""
        for source, bookmark in sources.items():
            if source not in self._asked and time.monotonic() >= self._due.get(source, 0.0):
                before = self.tables.get(source)
                self._asked[source] = self._pool.submit(
                    _schemas, feeds[source[0]], source[1], bookmark, before
                )
        for source in [one for one, future in self._asked.items() if future.done()]:
            self._due[source] = time.monotonic() + _EVERY
            try:
                found, left = self._asked.pop(source).result()
                if source in sources:
                    self.left_out[source] = left
                    if left or found != self.tables.get(source):
                        compare(source, found, left)
                    self.tables[source] = found
            except Exception as error:
                self.ask_soon(source)
                yield source, error

    def ask_soon(self, source: Source) -> None:
        self._due[source] = min(self._due.get(source, 0.0), time.monotonic() + _AGAIN)

    def forget(self, backends: Collection[str]) -> None:
        """Their tables are compared again before anything is loaded."""
        for source in [one for one in {*self.tables, *self._asked} if one[0] in backends]:
            self.tables.pop(source, None)
            self.left_out.pop(source, None)
            self._asked.pop(source, None)
            self._due.pop(source, None)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)


def _schemas(
    feed: Feed, partition: PartitionId, bookmark: Bookmark, before: Sequence[TableSchema] | None
) -> tuple[Sequence[TableSchema], LeftOut]:
    feed = feed.of(partition) if isinstance(feed, HasSources) else feed
    if (found := [each.within(feed.backend) for each in feed.current_schemas()]) != before:
        feed.verify_source(bookmark)
    return found, feed.left_out()
