"""The parts of what runs a pipeline, one protocol for all."""

from collections.abc import Collection
from contextlib import ExitStack

from penstock.config.pipeline import Pipeline
from penstock.process.closing import Closes


class PipelinePart(Closes):
    """One part; most care for some of these only."""

    def follow(self, pipeline: Pipeline, changed: Collection[str]) -> None:
        """The map was edited, and the queries of the backends that `changed` were ended: those that
        are new, gone, not the same any more, or to begin anew."""
        self._pipeline = pipeline

    def tick(self, now: float) -> None:
        """Takes the next step, some times a second; `now` is monotonic seconds."""

    def close(self) -> None:
        """Ends what it has begun."""


class PipelineParts(PipelinePart):
    """Several as one: they follow, take their steps and are closed in this order."""

    def __init__(self, *parts: PipelinePart) -> None:
        self._parts = parts

    def follow(self, pipeline: Pipeline, changed: Collection[str]) -> None:
        for part in self._parts:
            part.follow(pipeline, changed)

    def tick(self, now: float) -> None:
        for part in self._parts:
            part.tick(now)

    def close(self) -> None:
        with ExitStack() as stack:
            for part in reversed(self._parts):
                stack.callback(part.close)
