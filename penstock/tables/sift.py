"""Which of some changes a database or a server refuses, wherever they go. No I/O of its own."""

from collections.abc import Callable, Sequence
from typing import Protocol, Self, TypeVar

from penstock.model.errors import Rejected


class Divisible(Protocol):
    """Changes in their order: a `Part`, a list."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> Self: ...


R = TypeVar("R", bound=Divisible)
T = TypeVar("T")


def _middle(rows: Divisible) -> int:
    return len(rows) // 2


def sift(
    rows: R,
    write: Callable[[R], Sequence[T]],
    middle: Callable[[R], int] = _middle,
    *,
    stops: Callable[[R, Rejected], bool] = lambda _, __: False,
) -> tuple[Sequence[T], list[tuple[R, Rejected]]]:
    """Writes what `write` takes, in order, divided in the `middle` where it has to be; what it made
    of that, and each row that it refused alone. After one with which it
    `stops` nothing is written."""
    try:
        return write(rows), []
    except Rejected as error:
        if len(rows) == 1:
            return [], [(rows, error)]
    at = middle(rows)
    left, refused = sift(rows[:at], write, middle, stops=stops)
    if refused and stops(*refused[-1]):
        return left, refused
    right, more = sift(rows[at:], write, middle, stops=stops)
    return [*left, *right], [*refused, *more]
