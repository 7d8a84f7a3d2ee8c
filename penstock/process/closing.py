"""Closing at the end of a `with`, or when what it does fails."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, Self


class Closable(Protocol):
    def close(self) -> object: ...


@contextmanager
def closing_on_failure(opened: Closable) -> Iterator[None]:
    """Closes what was opened if what is done with it fails."""
    try:
        yield
    except BaseException:
        opened.close()
        raise


class Closes(ABC):
    """What is closed at the end of a `with`, whatever ended it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Releases what it holds; again does nothing."""
