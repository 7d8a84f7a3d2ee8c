"""The changes between two positions, for a batch query of Spark: the option `changes`.

One task reads all of them from the source, as a query reads that ends by itself. The source is told
nothing: what it keeps for its reader stays.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

import pyarrow as pa

from penstock.feeds import At, Feed, FeedPlugin, Span
from penstock.microbatch.options import SourceOptions
from penstock.microbatch.planned import STOPPING, PlannedReading
from penstock.microbatch.task import changes_of
from penstock.model.errors import PositionLost, SettingsError
from penstock.model.position import Place, bookmarks_to_json
from penstock.process.plugins import plugin
from penstock.reading.gaps import GapLog
from penstock.reading.reservoir import Reservoir
from penstock.reading.roster import Roster
from penstock.typed import TypedRows
from penstock.wire.hash_partitions import hashing

_HINT = (
    "write FROM..TO: each is a value of _sequence or a time with a zone, FROM may be earliest, and"
    " TO may be now; these are the defaults"
)


def plan_span(source: SourceOptions, feed: Feed) -> Sequence[Span]:
    """The changes that the options name; none where nothing can be between their ends, which are
    pinned now. Does I/O; raises SettingsError, Unavailable, PositionLost."""
    first, dots, last = source.changes.partition("..")
    if not dots or ".." in last:
        raise _wrong(source.changes, "is no span")
    after: At | Place = "beginning" if first in ("", "earliest") else _position(first)
    until = None if last in ("", "now") else _position(last)
    if isinstance(after, datetime) and isinstance(until, datetime) and until < after:
        raise _wrong(source.changes, "ends before it begins")
    _refuse_others(source)
    span = feed.span(after, until)
    if span.after is None:
        return [span]
    ends = span.end.places.values()
    if isinstance(until, Place) and any(each < span.after for each in ends):
        raise _wrong(source.changes, "ends before it begins")
    return [] if any(each <= span.after for each in ends) else [span]


def read_span(
    source: SourceOptions, span: Span, typed: TypedRows | None
) -> Iterator[pa.RecordBatch]:
    """In a task: the changes, or `typed` rows of them. Raises SettingsError for what the source has
    lost."""
    feed = span.feed
    feed.mark_changes()
    images = source.images if typed is None else typed.images
    if images == "text":
        feed.number_columns()
    decoder = hashing(feed.decoder(images, source.on_error), source.hash_partitions)
    reservoir = Reservoir(feed, limit=source.buffer, gaps=GapLog())
    reading = PlannedReading(reservoir, Roster(feed), source, acknowledges=False)
    reading.floor = span.after
    reading.end_at(feed, span.end)
    start = bookmarks_to_json(span.begin)
    try:
        while (end := reading.next(start, source.limits)) != start:
            for part in reading.parts(start, end):
                yield from changes_of(part, decoder, typed)
            start = end
    except PositionLost as error:
        raise SettingsError(
            f"changes of {source.changes} are gone: {error.message}",
            "spark.changes-gone",
            hint="make the DataFrame anew, from earliest or from a later position on",
        ) from error
    finally:
        reading.stop(STOPPING)


def _refuse_others(source: SourceOptions) -> None:
    found: FeedPlugin = plugin("feeds", source.backend)
    if source.where:
        raise SettingsError(
            "the option where is for rows of a table, and changes has all changes of it",
            "spark.no-selection",
            hint="filter the DataFrame",
        )
    if source.table and not (found.has_lines or "table" in found.settings.model_fields):
        raise SettingsError(
            "the option table is for rows of a collection, and not for its changes",
            "spark.no-selection",
            hint="name it by the feed's own setting, such as collections",
        )


def _position(text: str) -> Place | datetime:
    """A time, a place, or a place without its ordinal: before all changes of its cursor."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        cursor, colon, ordinal = text.rpartition(":")
        if colon and cursor and ordinal.isdecimal():
            return Place(cursor, int(ordinal))
        if colon or text in ("now", "earliest"):
            raise _wrong(text, "is no position here") from None
        return Place(text, -1)
    if time.tzinfo is None:
        raise _wrong(text, "has no zone")
    return time


def _wrong(text: str, why: str) -> SettingsError:
    return SettingsError(f"changes: {text[:80]!r} {why}", "spark.changes", hint=_HINT)
