"""Compare and swap on a stream: read the last message of a subject, then store one that expects it
to be the last."""

from collections.abc import Callable
from typing import TypeVar

from penstock.model.errors import Unavailable
from penstock.nats.api import ApiError, error_of

T = TypeVar("T")

# The error codes of a message whose expected sequence was not the last.
WRONG_SEQUENCE = frozenset({10071, 10164})


def swapped(attempt: Callable[[], T], what: str, *, attempts: int = 10) -> T:
    """What `attempt` returns, which reads and stores; it runs again when another writer was faster.
    Raises Unavailable when others were faster each time, and what else `attempt` raises."""
    for _ in range(attempts):
        try:
            return attempt()
        except ApiError as error:
            if error.code not in WRONG_SEQUENCE:
                raise error_of(error, what) from None
    raise Unavailable(f"{what} was changed by others in each of {attempts} attempts")
