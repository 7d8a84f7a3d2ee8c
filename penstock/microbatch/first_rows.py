"""The rows that a table has when a query begins, before its changes (the option `snapshot`).

Ranges of the table are parts of micro-batches, and tasks read them from the source. Which ranges
are read, and which are left, is in the offsets, so that a query goes on wherever it was ended. The
snapshot itself ends with the process: another one takes what is left, and reads again what was
written since to the rows that were read, as snapshots of the service do.
"""

from collections.abc import Sequence
from contextlib import ExitStack

from penstock.feeds import Feed, SnapshotWait, TableSnapshot, TakesSnapshots
from penstock.microbatch.options import BatchLimits
from penstock.microbatch.planned import BEGUN, PlannedReading, bookmarks_of
from penstock.microbatch.source_reports import Json, Reading
from penstock.microbatch.ticket import Part, RowsSplit
from penstock.model.errors import SettingsError
from penstock.model.position import Bookmarks, Place, bookmarks_to_json

# Ranges in a micro-batch.
_RANGES = 4
# Seconds for the table's lock and older transactions.
_PATIENCE = 60.0
# What offsets have of the rows, beside the partitions.
_ROWS = "@rows"


class AfterFirstRows(Reading):
    """Reads the rows, and then what `reading` reads: without the changes that are in the rows,
    where the source says which. Of a query whose offsets are the record.

    What offsets have of the rows: nothing yet; or the ranges of the first snapshot that were
    `read`, those that a micro-batch (the `batch`th) reads `now`, what is `left`, and its `point`
    and `mark`; and from then on
    the point alone, until all bookmarks are behind it."""

    def __init__(self, reading: PlannedReading, feed: Feed) -> None:
        self.reader = reading.reader
        self._reading, self._feed = reading, feed
        self._initial: Json | None = None
        self._open = ExitStack()
        self._taken: TableSnapshot | None = None
        self._is_resumed = False  # the snapshot is not the first one

    @property
    def durable(self) -> Bookmarks:
        return self._reading.durable

    def begin(self, bookmarks: Bookmarks) -> Json:
        self._initial = {**bookmarks_to_json(bookmarks), _ROWS: {}}
        return self._initial

    def end_by_itself(self, feed: Feed) -> None:
        self._reading.end_by_itself(feed)

    def next(self, start: Json, limits: BatchLimits) -> Json:
        if (rows := start.get(_ROWS)) is None:
            return self._reading.next(start, limits)
        known = bookmarks_of(start)
        partitions = bookmarks_to_json(known)
        if not rows or "left" in rows:
            rows = self._further(rows, known, limits)
            if start == self._initial:
                return {**start, _ROWS: rows, BEGUN: start}
            if not rows["now"]:
                self._open.close()
                rows = {"point": rows["point"]}
            return {**partitions, _ROWS: rows}
        end = self._reading.next(partitions, limits)
        if end == partitions:
            return start
        floor = _floor(rows)
        is_needed = floor and any(not each.place or each.place < floor for each in known.values())
        return {**end, _ROWS: rows} if is_needed else end

    def _further(self, rows: Json, known: Bookmarks, limits: BatchLimits) -> Json:
        """What the offset after one with `rows` has of them."""
        taken = self._snapshot(rows, known)
        if not rows:
            plan = taken.plan(limits.events // _RANGES or 1, limits.size // _RANGES)
            point = taken.position if taken.is_exact else ""
            rows = {"point": point, "mark": taken.mark, "batch": 0, "read": [],
                    "now": [], "left": [[part, False] for part in plan]}  # fmt: skip
        read = rows["read"] + [part for part, is_again in rows["now"] if not is_again]
        left = rows["left"]
        if self._is_resumed:
            again = taken.written_since(read, rows["mark"]) if rows["mark"] else None
            if again is None:
                raise SettingsError(
                    "the query was ended while it read a table's first rows, and they cannot be"
                    " gone on with: the table has no key, or the source has another history",
                    "spark.first-rows",
                    hint="begin anew with another checkpoint and an empty destination",
                )
            left = [[part, True] for part in again] + [each for each in left if not each[1]]
            self._is_resumed = False
        return rows | {
            "batch": rows["batch"] + 1, "read": read,
            "now": left[:_RANGES], "left": left[_RANGES:],
        }  # fmt: skip

    def _snapshot(self, rows: Json, known: Bookmarks) -> TableSnapshot:
        if self._taken is None:
            table = _table_of(self._feed)
            assert isinstance(self._feed, TakesSnapshots)
            wait = SnapshotWait(patience=_PATIENCE)
            self._taken = self._open.enter_context(self._feed.snapshot(*table, known, wait))
            self._is_resumed = bool(rows)
        return self._taken

    def parts(self, start: Json, end: Json) -> Sequence[Part]:
        start = end.get(BEGUN, start)
        rows = end.get(_ROWS) or {}
        self._reading.floor = _floor(rows) or _floor(start.get(_ROWS) or {})
        if not rows.get("now"):
            return self._reading.parts(start, end)
        taken = self._snapshot(rows, bookmarks_of(start))
        return [
            RowsSplit(
                source=taken.source, range=part,
                name=f"rows:{taken.lsn}:{rows['batch']}:{number}",
            )
            for number, (part, _) in enumerate(rows["now"])
        ]  # fmt: skip

    def save(self, start: Json) -> None:
        self._reading.save(start)

    def connect(self) -> None:
        self._reading.connect()

    def stop(self, timeout: float) -> None:
        self._open.close()
        self._reading.stop(timeout)


def _floor(rows: Json) -> Place | None:
    """The last place before the point."""
    if not (point := rows.get("point")):
        return None
    place = Place.parse(point)
    return place._replace(ordinal=place.ordinal - 1)


def _table_of(feed: Feed) -> tuple[str, str]:
    if not isinstance(feed, TakesSnapshots):
        raise SettingsError(
            f"{feed.backend} gives no rows of tables",
            "spark.first-rows",
            hint="leave the option snapshot out; a first start can begin at the source's beginning",
        )
    found = [(each.schema, each.table) for each in feed.schemas()]
    if len(found) != 1:
        names = ", ".join(".".join(each) for each in found) or "no table"
        raise SettingsError(
            f"snapshot: initial is for a query of one table, and this one has {names}",
            "spark.first-rows",
            hint="name one table",
        )
    return found[0]
