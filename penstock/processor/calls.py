"""The calls of one partition's observer: one at a time, and in their order."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.processor.observer import Changes, CloseReason, Observer, PartitionContext


class ObserverCalls:
    """Calls of what `make` makes. Each raises what the observer raises."""

    def __init__(
        self,
        make: Callable[[], Observer],
        context: PartitionContext,
        clock: Callable[[], float],
    ) -> None:
        self.context = context
        # When the present call began, if there is one, by the clock.
        self.busy_since: float | None = None
        # Whether the last call of all went well; None before it.
        self.ended_well: bool | None = None
        self._make = make
        self._observer: Observer | None = None  # while it is open
        self._clock = clock

    @property
    def is_open(self) -> bool:
        """Whether an observer is open."""
        return self._observer is not None

    def open(self) -> None:
        """Makes an observer and opens it."""
        observer = self._make()
        with self._busy():
            observer.open(self.context)
        self._observer = observer

    def process(self, changes: Changes) -> None:
        """Gives the open observer the next changes."""
        assert self._observer is not None
        with self._busy():
            self._observer.process(changes, self.context)

    def close(self, reason: CloseReason) -> None:
        """Closes the observer, if it is open."""
        observer, self._observer = self._observer, None
        if observer is not None:
            with self._busy():
                observer.close(self.context, reason)

    @contextmanager
    def _busy(self) -> Iterator[None]:
        self.busy_since = self._clock()
        try:
            yield
        finally:
            self.busy_since = None
