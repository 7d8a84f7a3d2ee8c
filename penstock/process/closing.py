"""Leaving a `with` by closing."""

from abc import ABC, abstractmethod
from typing import Self


class Closes(ABC):
    """What is closed at the end of a `with`, whatever ended it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Releases what it holds; again does nothing."""
