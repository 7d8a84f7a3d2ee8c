"""Sources other than PostgreSQL: a server, a backlog in it, and a bare client that reads it."""

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from .dynamodb import DynamoDB
from .memory import Memory
from .mongodb import MongoDB, SecantusDB


class Source(Protocol):
    """A running server with what a bench needs of it. Rows have ten columns and a key."""

    @property
    def pid(self) -> int:
        """Of the server."""
        ...

    @property
    def backend(self) -> Mapping[str, Any]:
        """The backend of a pipeline file that reads everything from the beginning."""
        ...

    @property
    def baseline(self) -> str:
        """What `read` is."""
        ...

    def write(self, rows: int, size: int = 1000) -> None:
        """Writes rows, `size` in one request."""
        ...

    def read(self, rows: int) -> float:
        """The seconds in which a bare client reads so many changes from the beginning."""
        ...


class PacedWriter:
    """Writes `rate` rows a second into a source, in requests of `size`.

    `late` is the longest delay after the schedule, in seconds: if it is not small, the rate was not
    reached.
    """

    def __init__(self, source: Source, *, rate: int, size: int) -> None:
        self._source, self._rate, self._size = source, rate, size
        self.rows = 0
        self.late = 0.0

    def write(self, seconds: float) -> None:
        """Writes for so long."""
        began, rows = time.monotonic(), 0
        while rows < seconds * self._rate:
            ahead = began + rows / self._rate - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
            self.late = max(self.late, -ahead)
            self._source.write(self._size, self._size)
            rows += self._size
        self.rows += rows


_OPENED: Mapping[str, Callable[[int], AbstractContextManager[Source]]] = {
    "mongodb": MongoDB,
    "secantusdb": SecantusDB,
    "dynamodb": DynamoDB,
    "memory": Memory,
}
SOURCES = ("postgres", *_OPENED)


def open_source(kind: str, rows: int, page: int = 1000) -> AbstractContextManager[Source]:
    """The source of a kind other than PostgreSQL, with room for a log of so many changes; `page`:
    the changes of a page, where the source is made up."""
    if kind == "memory":
        return Memory(rows, page)
    return _OPENED[kind](rows)
