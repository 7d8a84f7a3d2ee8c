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
from types import TracebackType
from typing import Self

import pyarrow as pa

__all__ = ["Pull"]

_AHEAD = 4  # batches taken before they are asked for
_GIVE_UP = 0.5  # seconds between looks at whether anybody still wants batches


class Pull:
    """`next` gives the next batch, None when there is none yet, and raises StopIteration at the
    end. A list or tuple is walked through directly: it never blocks."""

    def __init__(self, changes: Iterable[pa.RecordBatch]) -> None:
        self._direct: Iterator[pa.RecordBatch] | None = None
        if isinstance(changes, list | tuple):
            self._direct = iter(changes)
            return
        self._pulled: deque[pa.RecordBatch | BaseException] = deque()
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
            target=self._run, args=(iter(changes),), name="penstock-pull", daemon=True
        )
        self._thread.start()

    def next(self, timeout: float | None, beside: int | None = None) -> pa.RecordBatch | None:
        """Waits at most `timeout` seconds, or as long as it takes (None), and no longer than until
        the file descriptor `beside` can be read.

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
            return None
        os.read(self._filled, 1)
        item = self._pulled.popleft()
        self._free.put(None)
        if isinstance(item, BaseException):
            raise item
        return item

    def _run(self, batches: Iterator[pa.RecordBatch]) -> None:
        while self._put(_step(batches)):
            pass

    def _put(self, item: "pa.RecordBatch | BaseException") -> bool:
        while not self._unwanted.is_set():
            try:
                self._free.get(timeout=_GIVE_UP)
            except queue.Empty:
                continue
            self._pulled.append(item)
            os.write(self._filling, b"+")
            return not isinstance(item, BaseException)
        return False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._direct is None:
            self._unwanted.set()


def _step(batches: Iterator[pa.RecordBatch]) -> "pa.RecordBatch | BaseException":
    try:
        return next(batches)
    except StopIteration as end:
        return end.with_traceback(None)  # whose frames would keep the Pull alive
    except BaseException as error:
        return error
