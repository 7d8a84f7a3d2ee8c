"""Where a backend goes on: after the stored bookmark; without one, after what the sink has.

Only a first start may create what is missing at the source: creating it again after a bookmark
would be a silent gap. If the sink has changes, or ever had, it is no first start.
"""

from collections.abc import Mapping

import structlog

from penstock.config import Backend
from penstock.feeds import Feed
from penstock.model.position import Bookmark, Bookmarks, PartitionId
from penstock.reading.positions import Positions
from penstock.sinks import Record, ReportsLast, ReportsPositions, Sink

log = structlog.get_logger("penstock")


def resume(backend: Backend, positions: Positions, sink: Sink) -> None:
    """Logs where the backend goes on; a first start begins here, and stores where, before anything
    is read. May be called again. Raises Unavailable, SettingsError and what `Positions.load`
    does."""
    feed, saved = backend.feed(), positions.load()
    begun = _begun(backend, feed, sink, saved)
    if saved:
        _warn_of_repetition(backend, begun)
        _move(backend, feed, positions, saved, begun)
        return
    positions.begin(_first(backend, feed, begun))


def _first(backend: Backend, feed: Feed, begun: Mapping[PartitionId, Record]) -> Bookmarks:
    """Where a start without a stored position begins."""
    if not begun:
        return feed.begin()
    _warn_of_no_position(backend, begun)
    return {name: record.bookmark or Bookmark(mark={}) for name, record in begun.items()}


def _move(
    backend: Backend,
    feed: Feed,
    positions: Positions,
    saved: Bookmarks,
    begun: Mapping[PartitionId, Record],
) -> None:
    """Where what the sink has cannot be told by reading it again, it is passed over: the bookmark
    beyond it is saved before anything is read."""
    nothing = Record()
    found = {
        name: moved
        for name, bookmark in saved.items()
        if (moved := feed.moved(bookmark, begun.get(name, nothing).bookmark)) is not None
    }
    if not found:
        return
    positions.save(found, force=True)
    for name, bookmark in found.items():
        log.info(
            "reading does not go on at the saved position: nothing shall be stored twice",
            backend=backend.name,
            partition=name,
            place=str(bookmark.place),
        )


def _begun(backend: Backend, feed: Feed, sink: Sink, saved: Bookmarks) -> dict[PartitionId, Record]:
    """What the sink knows of the partitions of which it has changes, or had: of those that are
    saved, and of those that the source lists."""
    if not isinstance(sink, ReportsPositions):
        return {}
    partitions = [lineage.partition for lineage in feed.partitions(saved)]
    records = sink.records(backend.name, partitions)
    found = {name: record for name, record in records.items() if record.begun}
    if not found and feed.polled and isinstance(sink, ReportsLast):
        # Shards come and go: those of what the sink has may not be listed any more.
        last = sink.last(backend.name)
        found = {} if last is None else dict([last])
    return found


def _warn_of_repetition(backend: Backend, begun: dict[PartitionId, Record]) -> None:
    for partition, record in begun.items():
        if record.emptied:
            log.warning(
                "the sink has nothing left of what it stored: resuming after the stored position;"
                " what was delivered after that comes again",
                backend=backend.name,
                partition=partition,
            )


def _warn_of_no_position(backend: Backend, begun: Mapping[PartitionId, Record]) -> None:
    for partition, record in begun.items():
        if record.bookmark is not None:
            log.warning(
                "no position is stored, and the sink has changes: resuming after them",
                backend=backend.name,
                partition=partition,
                place=str(record.bookmark.place),
            )
        else:
            log.warning(
                "no position is stored, and the sink, which had changes, does not say how far it"
                " is: resuming where the source remembers us to be; some may come again",
                backend=backend.name,
                partition=partition,
            )
