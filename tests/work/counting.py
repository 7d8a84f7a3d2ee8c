"""Work that can be counted: the same numbers on every machine, however fast or busy it is.

Counted is what the interpreter does: calls (of Python and of C functions), instructions of byte
code, and the bytes that Python objects take at the worst. What happens inside compiled libraries
counts as the one call that enters them; nothing here says how long anything takes.
"""

import gc
import sys
import tracemalloc
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

_CALLS = ("call", "c_call")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one run took: calls, instructions of byte code, peak bytes of Python objects."""

    calls: float
    instructions: float
    memory: float

    def per(self, other: "Work", rows: int) -> "Work":
        """The difference to a run that did `rows` rows less, for one row."""
        return Work(
            calls=(self.calls - other.calls) / rows,
            instructions=(self.instructions - other.instructions) / rows,
            memory=(self.memory - other.memory) / rows,
        )

    def rounded(self) -> dict[str, float]:
        """Plain JSON: hundredths of calls and instructions, whole bytes."""
        found = {name: round(value, 2) for name, value in asdict(self).items()}
        return found | {"memory": round(self.memory)}


def count(job: Callable[[], object]) -> Work:
    """Runs `job` four times: to warm up its caches, and once for each count."""
    gc.collect()
    gc.disable()
    try:
        job()
        return Work(calls=_calls(job), instructions=_instructions(job), memory=_memory(job))
    finally:
        gc.enable()


def cost(make: Callable[[int], Callable[[], object]], *, rows: int) -> dict[str, dict[str, float]]:
    """`make(n)` returns a job of n rows: the work of a `row`, and of a `page` without any."""
    few, many = count(make(rows)), count(make(2 * rows))
    row = many.per(few, rows)
    page = Work(
        calls=few.calls - rows * row.calls,
        instructions=few.instructions - rows * row.instructions,
        memory=few.memory - rows * row.memory,
    )
    return {"row": row.rounded(), "page": page.rounded()}


def _calls(job: Callable[[], object]) -> int:
    seen = 0

    def called(_: FrameType, event: str, __: Any) -> None:
        nonlocal seen
        seen += event in _CALLS

    sys.setprofile(called)
    try:
        job()
    finally:
        sys.setprofile(None)
    return seen


def _instructions(job: Callable[[], object]) -> int:
    seen = 0

    def traced(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal seen
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        seen += event == "opcode"
        return traced

    sys.settrace(traced)
    try:
        job()
    finally:
        sys.settrace(None)
    return seen


def _memory(job: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        job()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
