"""A claim: a function that returns where a promise holds, and raises `Broken` where it does not.

Its name is the promise in words, which reports print.
"""

from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple

_SHOWN = 300  # characters of a value


class Broken(AssertionError):
    """A promise does not hold; the message says what was found, and what was expected."""


class NotTried(Exception):
    """A claim cannot be made here; the message says why."""


def hold(true: object, text: str) -> None:
    """Raises Broken with the text unless this is true."""
    if not true:
        raise Broken(text)


def same(found: Any, expected: Any, what: str) -> None:
    """Raises Broken, with where they differ, unless the two are equal."""
    if found != expected:
        where, mine, other = _difference(found, expected)
        raise Broken(f"{what}{where}: found {_shown(mine)}, expected {_shown(other)}")


def _difference(found: Any, expected: Any) -> tuple[str, Any, Any]:
    """Where two values differ, and what each has there."""
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        names = [n for n in {**found, **expected} if found.get(n) != expected.get(n)]
        parts = [{n: each[n] for n in names if n in each} for each in (found, expected)]
        return "", parts[0], parts[1]
    if isinstance(found, Set) and isinstance(expected, Set):
        return ", where they differ", found - expected, expected - found
    if isinstance(found, list) and isinstance(expected, list):
        pairs = enumerate(zip(found, expected, strict=False))
        shorter = min(len(found), len(expected))
        at = next((n for n, (one, other) in pairs if one != other), shorter)
        sizes = f" ({len(found)}, of {len(expected)} that are expected), from number {at} on"
        return sizes, found[at:], expected[at:]
    return "", found, expected


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


class Trial(NamedTuple):
    """A claim of something: what is called, the claim's function, and in which case."""

    call: Callable[[], object]
    claim: Callable[..., object]
    case: str = ""

    @property
    def words(self) -> str:
        """What is promised: the function's name, as people read it."""
        words = self.claim.__name__.replace("_", " ")
        return f"{words}, {self.case}" if self.case else words


class Clock:
    """Monotonic seconds that only the caller advances."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
