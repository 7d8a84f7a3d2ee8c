"""How many changes a source has after what is durable, of feeds that estimate it by asking."""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from penstock.feeds import EstimatesLag, Feed
from penstock.model.errors import PenstockError
from penstock.model.position import Bookmarks, PartitionId
from penstock.process.closing import Closes
from penstock.process.repeated import Repeated
from penstock.reading.roster import superseded

# Seconds between two rounds over all partitions.
EVERY = 5.0


# Answers that did not come, and none that did, after which a source is taken to be away.
_AWAY = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The work that is left, in changes. `counts`: of each partition that has not ended and could
    be asked for. `failed`: why of the others it is not known. `awaited`: partitions that have ended
    and of which a descendant, which may have changes, has no bookmark yet. `total`: of `counts`; at
    least 1 where there is no partition yet, one is not in `counts` or a descendant is awaited: a
    reader starts, which finds out."""

    counts: Mapping[PartitionId, int]
    failed: Mapping[PartitionId, str]
    awaited: Collection[PartitionId]
    total: int


def estimate(feed: Feed, bookmarks: Bookmarks) -> Estimate | None:
    """What a feed has after these bookmarks, which are all that are stored; None if it is none
    that can be asked. Does I/O, a question for each partition and a listing if one has ended;
    raises nothing of the source's: a partition that fails is in `failed`."""
    if not isinstance(feed, EstimatesLag):
        return None
    counts, failed = _counted(feed, bookmarks)
    awaited = _awaited(feed, bookmarks)
    least = 1 if failed or awaited or not bookmarks else 0
    total = max(least, sum(counts.values()))
    return Estimate(counts=counts, failed=failed, awaited=awaited, total=total)


def _awaited(feed: Feed, bookmarks: Bookmarks) -> set[PartitionId]:
    ended = {name for name, bookmark in bookmarks.items() if bookmark.ended}
    with suppress(PenstockError):
        ended -= superseded(feed.partitions(bookmarks), bookmarks) if ended else set()
    return ended


def _counted(
    feed: EstimatesLag, bookmarks: Bookmarks, *, is_over: Callable[[], bool] = lambda: False
) -> tuple[dict[PartitionId, int], dict[PartitionId, str]]:
    """`Estimate.counts` and `failed`. Ends early when `is_over`."""
    counts: dict[PartitionId, int] = {}
    failed: dict[PartitionId, str] = {}
    for name, bookmark in bookmarks.items():
        if bookmark.ended or is_over():
            continue
        if not counts and len(failed) >= _AWAY:
            failed[name] = "not asked: the source does not answer"
            continue
        try:
            found = feed.remaining(name, bookmark)
        except PenstockError as error:
            failed[name] = str(error)
            continue
        if found is None:
            failed[name] = "the source does not know"
        else:
            counts[name] = max(0, found)
    return counts, failed


class Durable(Protocol):
    """Something that is read."""

    @property
    def durable(self) -> Bookmarks:
        """Everything up to here is in the sink."""


class Remaining(Closes):
    """Asks in a thread of its own, from `open` to `close`. Of other feeds it has nothing."""

    def __init__(self, feed: Feed, reading: Durable, *, every: float = EVERY) -> None:
        self._feed = feed if isinstance(feed, EstimatesLag) else None
        self._reading = reading
        self._counts: Mapping[PartitionId, int] = {}
        self._asking = Repeated(self._ask, interval=every, name="remaining")
        self._is_open = False

    def open(self) -> None:
        """Begins to ask; idempotent."""
        if self._feed is not None and not self._is_open:
            self._is_open = True
            self._asking.start()

    def close(self) -> None:
        self._asking.close()

    def of(self, partition: PartitionId) -> Mapping[str, Any]:
        """The fields of the partition's row: none as long as nothing is known."""
        found = self._counts.get(partition)
        return {} if found is None else {"lag": found, "lag_unit": "changes"}

    def _ask(self) -> None:
        assert self._feed is not None
        # Errors are reported by the reader of the partition.
        durable, asking = self._reading.durable, self._asking
        self._counts, _ = _counted(self._feed, durable, is_over=lambda: asking.is_closed)
