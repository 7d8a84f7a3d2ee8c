"""Work that can be counted: calls of Python and of C functions, the same on every machine, however
fast or busy it is. What happens inside compiled libraries counts as the one call that enters them.
"""

import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

_CALLS = ("call", "c_call")


def calls(job: Callable[[], object]) -> int:
    """Of the second run of `job`: the first one warms up its caches."""
    seen = 0

    def called(_: FrameType, event: str, __: Any) -> None:
        nonlocal seen
        seen += event in _CALLS

    gc.collect()
    gc.disable()
    try:
        job()
        sys.setprofile(called)
        job()
    finally:
        sys.setprofile(None)
        gc.enable()
    return seen


def cost(make: Callable[[int], Callable[[], object]], *, rows: int) -> tuple[float, float]:
    """`make(n)` returns a job of n rows: the calls for a row, and for a page without any."""
    few, many = calls(make(rows)), calls(make(2 * rows))
    row = (many - few) / rows
    return round(row, 2), round(few - rows * row, 2)
