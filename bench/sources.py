"""Sources other than PostgreSQL: a server, a backlog in it, and a bare client that reads it."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

from .mongodb import MongoDB

__all__ = ["SOURCES", "Source", "open_source"]


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


SOURCES = ("postgres", "mongodb")


def open_source(kind: str, rows: int) -> AbstractContextManager[Source]:
    """The source of a kind other than PostgreSQL, with room for a log of so many changes."""
    return {"mongodb": MongoDB}[kind](rows)
