"""Takes batches out of an iterator that may block, without blocking with it.

An open-ended source yields when it has something; meanwhile acknowledgements come in and a small
batch has waited long enough. So a thread pulls, and the writer waits for a batch and for its socket
at the same time.
"""

import os
import queue
import select
import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator

import pyarrow as pa

from penstock.process.closing import Closes

_AHEAD = 4  # large batches, or lists of small ones, taken before they are asked for
# What a list has at most: small pages of many partitions go together.
_ROWS, _BYTES, _BATCHES = 500, 1 << 20, 256
_GIVE_UP = 0.5  # seconds between looks at whether anybody still wants batches


class _Pulled:
    """Neighbouring batches that are taken together."""

    def __init__(self, first: pa.RecordBatch) -> None:
        self.batches = [first]
        self._rows, self._bytes = len(first), first.get_total_buffer_size()

    def joins(self, batch: pa.RecordBatch) -> bool:
        """Takes the batch as well, if it is small enough."""
        rows, size = self._rows + len(batch), self._bytes + batch.get_total_buffer_size()
        if rows > _ROWS or size > _BYTES or len(self.batches) == _BATCHES:
            return False
        self.batches.append(batch)
        self._rows, self._bytes = rows, size
        return True


class Prefetch(Closes):
    """`take` gives the batches that are there, and raises StopIteration at the end. A list or tuple
    is given as it is: it never blocks."""

    def __init__(self, changes: Iterable[pa.RecordBatch]) -> None:
        self._direct: Iterator[list[pa.RecordBatch]] | None = None
        if isinstance(changes, list | tuple):
            self._direct = iter([list(changes)])
            return
        self._pulled: deque[_Pulled | BaseException] = deque()
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

    def take(self, timeout: float | None, beside: int | None = None) -> list[pa.RecordBatch]:
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
        if all(number != self._filled for number, _ in ready):
            return []
        os.read(self._filled, 1)
        with self._lock:
            item = self._pulled.popleft()
        self._free.put(None)
        if isinstance(item, BaseException):
            raise item
        return item.batches

    def _run(self, batches: Iterator[pa.RecordBatch]) -> None:
        while self._put(_step(batches)):
            pass

    def _put(self, found: "pa.RecordBatch | BaseException") -> bool:
        if isinstance(found, BaseException):
            item: _Pulled | BaseException = found
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

    def _joins(self, batch: pa.RecordBatch) -> bool:
        with self._lock:
            last = self._pulled[-1] if self._pulled else None
            return isinstance(last, _Pulled) and last.joins(batch)

    def close(self) -> None:
        """Ends the thread, once it has its next batch: nothing more is wanted."""
        if self._direct is None:
            self._unwanted.set()


def _step(batches: Iterator[pa.RecordBatch]) -> "pa.RecordBatch | BaseException":
    try:
        return next(batches)
    except StopIteration as end:
        return end.with_traceback(None)  # whose frames would keep the Pull alive
    except BaseException as error:
        return error
