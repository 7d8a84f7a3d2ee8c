"""What comes before any sink: batches are pulled from an iterator, gathered, and put in order."""

import math
import os
import queue
import select
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.change import IMAGES
from penstock.model.errors import SettingsError
from penstock.model.position import Place
from penstock.native.batch import Batch, arrow
from penstock.process.closing import Closes
from penstock.sinks.rows import kernel as native
from penstock.sinks.rows.flow import Pace
from penstock.sinks.rows.part import Origin, OriginRun, Part
from penstock.sinks.settings import BatchSettings

_AHEAD = 4  # large batches, or lists of small ones, taken before they are asked for
# What a list has at most: small pages of many partitions go together.
_LIST_ROWS, _LIST_BYTES, _LIST_BATCHES = 500, 1 << 20, 256
_GIVE_UP = 0.5  # seconds between looks at whether anybody still wants batches

C = TypeVar("C", bound=Batch)

_USUAL = Pace()
# What is gathered at most for several messages at once.
_ROWS, _BYTES = 8000, 4 << 20

_KEYS = ("backend", "partition", "cursor", "ordinal")


class _Pulled(Generic[C]):
    """Neighbouring batches that are taken together."""

    def __init__(self, first: C) -> None:
        self.batches = [first]
        self._rows, self._bytes = len(first), first.get_total_buffer_size()

    def joins(self, batch: C) -> bool:
        rows, size = self._rows + len(batch), self._bytes + batch.get_total_buffer_size()
        if rows > _LIST_ROWS or size > _LIST_BYTES or len(self.batches) == _LIST_BATCHES:
            return False
        self.batches.append(batch)
        self._rows, self._bytes = rows, size
        return True


class Prefetch(Closes, Generic[C]):
    """Takes batches out of an iterator that may block, without blocking with it.

    An open-ended source yields when it has something; meanwhile acknowledgements come in and a
    small batch has waited long enough. So a thread pulls, and the writer waits for a batch and for
    its socket at the same time.

    `take` gives the batches that are there, and raises StopIteration at the end. A list or tuple
    is given as it is: it never blocks.
    """

    def __init__(self, changes: Iterable[C]) -> None:
        self._direct: Iterator[list[C]] | None = None
        if isinstance(changes, list | tuple):
            self._direct = iter([list(changes)])
            return
        self._pulled: deque[_Pulled[C] | BaseException] = deque()
        self._lock = threading.Lock()  # what was taken is not joined
        # Places that are free. (`queue.Queue` would do both, in twenty calls of Python.)
        self._free: queue.SimpleQueue[None] = queue.SimpleQueue()
        for _ in range(_AHEAD):
            self._free.put(None)
        # A byte for each that was pulled: what can be waited for beside a socket.
        self._filled, self._filling = os.pipe()
        for end in (self._filled, self._filling):
            weakref.finalize(self, os.close, end)  # when the thread has ended, too
        self._unwanted = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(iter(changes),), name="penstock-prefetch", daemon=True
        )
        self._thread.start()

    def take(self, timeout: float | None, beside: int | None = None) -> list[C]:
        """The next batches: a large one, or small ones that are there. Waits for one at most
        `timeout` seconds, or as long as it takes (None), and no longer than until the file
        descriptor `beside` can be read.

        What the iterator raises is raised here; StopIteration is its end.
        """
        if self._direct is not None:
            return next(self._direct)
        poll = select.poll()
        poll.register(self._filled, select.POLLIN)
        if beside is not None:
            poll.register(beside, select.POLLIN)
        ready = poll.poll(None if timeout is None else timeout * 1000)
        if self._filled not in dict(ready):
            return []
        os.read(self._filled, 1)
        with self._lock:
            item = self._pulled.popleft()
        self._free.put(None)
        if isinstance(item, BaseException):
            raise item
        return item.batches

    def _run(self, batches: Iterator[C]) -> None:
        while self._put(_step(batches)):
            pass

    def _put(self, found: C | BaseException) -> bool:
        if isinstance(found, BaseException):
            item: _Pulled[C] | BaseException = found
        elif self._joins(found):
            return not self._unwanted.is_set()
        else:
            item = _Pulled(found)
        while not self._unwanted.is_set():
            try:
                self._free.get(timeout=_GIVE_UP)
            except queue.Empty:
                continue
            self._pulled.append(item)
            os.write(self._filling, b"+")
            return not isinstance(item, BaseException)
        return False

    def _joins(self, batch: C) -> bool:
        with self._lock:
            last = self._pulled[-1] if self._pulled else None
            return isinstance(last, _Pulled) and last.joins(batch)

    def close(self) -> None:
        """Ends the thread, once it has its next batch: nothing more is wanted."""
        if self._direct is None:
            self._unwanted.set()


def _step(batches: Iterator[C]) -> C | BaseException:
    try:
        return next(batches)
    except StopIteration as end:
        return end.with_traceback(None)  # whose frames would keep the Pull alive
    except BaseException as error:
        return error


class Gather:
    """Gathers small batches into one, which costs about as much as one of them to encode and send.
    Batches of one schema, in order. Pure: `now` is seconds on the caller's clock."""

    def __init__(self, limits: BatchSettings) -> None:
        self._limits = limits
        self._batches: list[Batch] = []
        self._since = 0.0
        self._bytes = 0
        self.rows = 0
        # Among how many messages at once the changes are divided (hash partitions, tables): the
        # limits are those of one message. Only waiting for it is bounded by what it was.
        self.spread = 1

    def takes(self, batch: Batch) -> bool:
        """False when a batch has another schema: its images are encoded otherwise."""
        return not self._batches or self._batches[0].schema.equals(
            batch.schema, check_metadata=True
        )

    def add(self, batch: Batch, now: float) -> None:
        """Takes a batch that `takes` accepted."""
        if not self._batches:
            self._since = now
        self._batches.append(batch)
        self.rows += len(batch)
        # A batch's own `nbytes` looks at each column's slices: 50 times dearer.
        self._bytes += batch.get_total_buffer_size()

    def is_due(self, now: float, pace: Pace = _USUAL) -> bool:
        """True when there is enough (changes or bytes), or its first has waited long enough."""
        return self.is_full(pace) or (
            self.rows > 0 and now - self._since >= self._limits.max_wait * pace.patience
        )

    def is_full(self, pace: Pace = _USUAL) -> bool:
        """True when there is enough (changes or bytes)."""
        size, most = self._limits.max_size, self._limits.max_bytes
        if self.spread > 1:
            size = max(size, min(size * self.spread, _ROWS))
            most = max(most, min(most * self.spread, _BYTES))
        return self.rows > 0 and (
            self.rows * pace.divisor >= size or self._bytes * pace.divisor >= most
        )

    def due_in(self, now: float, pace: Pace = _USUAL) -> float:
        """Seconds until what is there has waited long enough; endless when there is nothing."""
        if not self._batches:
            return math.inf
        return max(0.0, self._since + self._limits.max_wait * pace.patience - now)

    def take(self) -> list[Batch]:
        """Everything, as one batch (or none), and begins anew."""
        batches, self._batches = self._batches, []
        self.rows = self._bytes = 0
        if len(batches) < 2:
            return batches
        table = pa.Table.from_batches([arrow(each) for each in batches])
        return list(table.combine_chunks().to_batches())


class Order:
    """Batches -> parts in the source's order, and not too large: at most `rows` rows. Keeps the
    last place of each origin, for the length of one write.

    Rows of one batch that were shuffled are sorted; a batch with changes before those of an earlier
    batch of the same write is refused, because the earlier ones may be stored already.
    """

    def __init__(self, rows: int = 1000) -> None:
        self._rows = rows
        self._last: dict[Origin, Place] = {}

    def arrange(self, batch: Batch) -> Iterator[Part]:
        """The batch in parts that are in order, of at most some 4 MiB.

        Raises SettingsError when a change is before one of an earlier batch.
        """
        part = Part.seen(batch)
        if part is None or (len(part.runs) > 1 and _out_of_order(part.runs, {}) is not None):
            part = Part.of(_sorted(arrow(batch)))
        if (late := _out_of_order(part.runs, self._last)) is not None:
            origin = late.origin
            raise SettingsError(
                f"changes of {origin.partition} are out of order: {late.first} after "
                f"{self._last[origin]}",
                "rows",
                hint="let nothing shuffle between the source and the sink (no repartition, join or "
                "union), or sort by partition, cursor and ordinal in one partition",
            )
        if len(part) <= self._rows and part.weight is not None and part.weight <= _BYTES:
            yield part
        else:
            yield from _divided(part, self._rows)


def _out_of_order(runs: tuple[OriginRun, ...], last: dict[Origin, Place]) -> OriginRun | None:
    """The first run that is not after the last place of its origin; notes the places in `last`."""
    for run in runs:
        before = last.get(run.origin)
        if before is not None and run.first <= before:
            return run
        last[run.origin] = run.last
    return None


def _sorted(batch: pa.RecordBatch) -> pa.RecordBatch:
    """By origin and place; a change that is there twice stays once."""
    keys: list[tuple[str, Any]] = [(name, "ascending") for name in _KEYS]
    batch = batch.take(pc.sort_indices(batch, sort_keys=keys))
    differ = [
        np.asarray(pc.not_equal(column[:-1], column[1:]), np.bool_)
        for column in map(batch.column, _KEYS)
    ]
    return batch.filter(pa.array(np.concatenate(([True], np.logical_or.reduce(differ)))))


def _divided(part: Part, most: int) -> Iterator[Part]:
    start, total = 0, len(part)
    while start < total:
        rows = min(most, total - start)
        while rows > 1 and _weight(part, start, rows) > _BYTES:
            rows //= 2
        yield part if rows == total else Part.of(part.batch.slice(start, rows))
        start += rows


def _weight(part: Part, start: int, rows: int) -> int:
    if part.weight is not None and rows == len(part):
        return part.weight
    kernel, columns = native.kernel(), part.columns
    if kernel is None:
        sizes = (pc.sum(pc.binary_length(columns[name].slice(start, rows))) for name in IMAGES)
        return sum(size.as_py() or 0 for size in sizes)
    return sum(kernel.penstock_rows_span(columns.pointer(name), start, rows) for name in IMAGES)
