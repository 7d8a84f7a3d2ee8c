"""What of a snapshot is done and what is left. It outlives a connection, a snapshot of the source,
and, for a table whose ranges rows do not leave, the service: the plan is stored beside the record,
and each chunk says in a header which range it is of.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from penstock.model.errors import Malformed

HEADER = "Penstock-Chunk"
_FIELDS = "range", "first", "index", "rows", "lsn", "position", "last"  # of its value

ChunkInfo = dict[str, Any]  # an entry of the meta's `chunks`


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPlan:
    """How a table was cut, and by which snapshot: `mark` is that one's (see
    `feeds.TableSnapshot`), `start` the meta's `start_sequence`, `created` its
    `stream_created`, `gap` the job's before it began, `revision` the table's document's."""

    ranges: Sequence[Any]
    version: str
    mark: str
    lsn: str
    position: str
    start: int
    created: str | None = None
    gap: str = ""
    statements: str = ""  # the identity of those that its rows came through
    revision: int = 0


class SnapshotPart(NamedTuple):
    """A range that is to be read. `number` None: of rows that are read again."""

    number: int | None
    range: Any


NOTHING = SnapshotPart(None, None)  # of a chunk without rows


@dataclass(slots=True)
class PartReading:
    """Chunks of one part: the numbers that were taken for them, and those that are stored."""

    numbers: list[int] = field(default_factory=list)
    chunks: list[ChunkInfo] = field(default_factory=list)


class RangeProgress:
    """Of all workers. `chunks`: of parts that were read to their end; others' are `abandoned`."""

    def __init__(self) -> None:
        self.plan: SnapshotPlan | None = None
        self.done: set[int] = set()
        self.chunks: list[ChunkInfo] = []
        self.abandoned: set[int] = set()
        self._place: tuple[str, str] | None = None  # the first of parts that were read
        self._number = 0
        self._free: list[int] = []  # numbers below it of chunks that were deleted, the lowest last
        self._again: list[ChunkInfo] = []  # of rows that were read again
        self._lock = threading.Lock()

    def set_parts(self, again: Sequence[Any] = ()) -> list[SnapshotPart]:
        """What is to be read now: the ranges that are left, and ranges that are read again."""
        assert self.plan is not None
        parts = [
            SnapshotPart(n, one) for n, one in enumerate(self.plan.ranges) if n not in self.done
        ]
        parts += [SnapshotPart(None, one) for one in again]
        with self._lock:
            # Read again under the snapshot before: that is outdated.
            self.abandoned |= {one["chunk"] for one in self._again}
            self._again.clear()
        return parts

    def number(self, reading: PartReading) -> tuple[int, bool]:
        """The number of the next chunk, and whether another chunk had it before."""
        with self._lock:
            if was_used := bool(self._free):
                number = self._free.pop()
            else:
                number, self._number = self._number, self._number + 1
            reading.numbers.append(number)
            return number, was_used

    def discarded(self) -> None:
        """The abandoned chunks are deleted."""
        with self._lock:
            self._free = sorted({*self._free, *self.abandoned}, reverse=True)
            self.abandoned.clear()

    @property
    def holes(self) -> int:
        """How many numbers no chunk has, though a later one is used."""
        with self._lock:
            last = max((int(one["chunk"]) for one in [*self.chunks, *self._again]), default=-1)
            return sum(number < last for number in self._free)

    @property
    def place(self) -> tuple[str, str]:
        """`position` and `lsn` of the first source's snapshot of which something is left, be it
        that a range was empty: changes from there on are not contained."""
        assert self.plan is not None
        return self._place or (self.plan.position, self.plan.lsn)

    def finish(self, part: SnapshotPart, reading: PartReading, place: tuple[str, str]) -> None:
        """The part was read to its end, under the snapshot at this `position` and `lsn`."""
        with self._lock:
            self._place = min(self._place or place, place)
            if part.number is None:
                self._again += reading.chunks
            else:
                self.done.add(part.number)
                self.chunks += reading.chunks

    def add(self, chunk: ChunkInfo) -> None:
        """Counts a chunk without rows."""
        with self._lock:
            self._again.append(chunk)

    def abandon(self, reading: PartReading) -> None:
        """The part was not read to its end: it will be, from its beginning."""
        with self._lock:
            self.abandoned |= set(reading.numbers)

    def all_chunks(self) -> list[ChunkInfo]:
        """The chunks of the complete snapshot, in the order of their numbers."""
        return sorted([*self.chunks, *self._again], key=lambda one: int(one["chunk"]))

    def forget(self) -> None:
        """Nothing is done: everything begins anew."""
        with self._lock:
            self.plan = self._place = None
            self.abandoned |= {int(one["chunk"]) for one in [*self.chunks, *self._again]}
            self.done.clear()
            self.chunks.clear()
            self._again.clear()

    def restore(self, plan: SnapshotPlan, stored: Sequence[tuple[ChunkInfo, Any]]) -> None:
        """Goes on after another process: its plan, and its chunks with their headers."""
        self.plan = plan
        readings: dict[tuple[int | None, int], list[ChunkInfo]] = {}
        counts: dict[tuple[int | None, int], int] = {}  # of the chunks of those with a last one
        for chunk, header in stored:
            self._number = max(self._number, int(chunk["chunk"]) + 1)
            reading = header["range"], header["first"]
            readings.setdefault(reading, []).append(chunk)
            if header["last"]:
                counts[reading] = header["index"] + 1
        for reading, chunks in readings.items():
            number, _ = reading
            # Some of its chunks may be gone, though the last one is there.
            is_whole = len(chunks) == counts.get(reading)
            if number is None or not is_whole or number in self.done:
                self.abandoned |= {int(one["chunk"]) for one in chunks}
            else:
                self.done.add(number)
                self.chunks += chunks
        self._place = min(((one["position"], one["lsn"]) for one in self.chunks), default=None)
        # Numbers of chunks that were not stored, or were deleted before.
        numbers = {int(chunk["chunk"]) for chunk, _ in stored}
        self._free = sorted(set(range(self._number)) - numbers, reverse=True)


def header_of(
    part: SnapshotPart, reading: PartReading, *, rows: int, place: tuple[str, str], is_last: bool
) -> bytes:
    """The header of a chunk, for `restore`: of which range, of which reading of it, and
    which chunk of that. `place`: its `lsn` and `position`."""
    lsn, position = place
    about = {
        "range": part.number, "first": reading.numbers[0], "index": len(reading.numbers) - 1,
        "rows": rows, "lsn": lsn, "position": position, "last": is_last,
    }  # fmt: skip
    return orjson.dumps(about)


def read_header(value: str) -> Any:
    """The content of a chunk's header. Raises Malformed."""
    try:
        found = orjson.loads(value)
        return {key: found[key] for key in _FIELDS}
    except (ValueError, KeyError, TypeError) as error:
        raise Malformed(f"the header {HEADER} of a chunk can't be read", "snapshots") from error
