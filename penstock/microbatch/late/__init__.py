"""Late columns: what a transform neither reads nor makes goes around the JVM, in side files."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """`number` is Spark's, over all tasks of a session. What no shuffle separates runs in one
    attempt: the task that decodes is then the task that writes. `is_first`: of its `stage`, which
    has exactly one such task."""

    stage: int
    number: int
    is_first: bool
