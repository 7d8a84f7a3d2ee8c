"""What users write, and what they are given: observers, changes, the context."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import cached_property
from typing import Any

import pyarrow as pa

from penstock.feeds import RecordReader
from penstock.model.change import schema
from penstock.model.page import Decoder, Page
from penstock.model.position import PartitionId
from penstock.process.backoff import Clock


class CloseReason(StrEnum):
    """Why an observer is closed. SHUTDOWN: the host stops. LEASE_LOST: another host has the lease
    (nothing can be checkpointed any more), or has asked for it (`context.revoked`; it still can).
    SPLIT: the partition has ended; its children begin afterwards. GONE: its history is lost.
    OBSERVER_ERROR: a call of the observer raised. UNKNOWN: anything else."""

    SHUTDOWN = "SHUTDOWN"
    LEASE_LOST = "LEASE_LOST"
    SPLIT = "SPLIT"
    GONE = "GONE"
    OBSERVER_ERROR = "OBSERVER_ERROR"
    UNKNOWN = "UNKNOWN"


class Changes:
    """Changes of one partition, in order. Iterating gives the iterator's records (`key`, `new`,
    `old`, `meta`); `batch` is the record batch of `penstock.schema()`. Both are decoded when they
    are asked for. `len()` counts changes as the source does: a feed's own filter may drop some."""

    def __init__(self, page: Page, decoder: Decoder, read: RecordReader) -> None:
        self._page, self._decoder, self._read = page, decoder, read

    def __repr__(self) -> str:
        return f"<{len(self)} changes of {self.partition}, {self.first} to {self.last}>"

    def __len__(self) -> int:
        return self._page.count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (record.record for record in self._read(self._page))

    @cached_property
    def batch(self) -> pa.RecordBatch:
        """All of them, with row images as JSON text. Raises Malformed."""
        batches = list(self._decoder.decode(self._page))
        if len(batches) == 1:
            return batches[0]
        table = pa.Table.from_batches(batches, schema("json")).combine_chunks()
        found = table.to_batches()
        return found[0] if found else pa.RecordBatch.from_pylist([], schema("json"))

    @property
    def partition(self) -> PartitionId:
        """The partition whose changes they are."""
        return self._page.partition

    @property
    def first(self) -> str:
        """The place of the first change."""
        return str(self._page.first)

    @property
    def last(self) -> str:
        """The place of the last change: what a checkpoint after them stores."""
        return str(self._page.last)


class PartitionContext:
    """Where an observer's changes come from. `partition`: its name at the source. `backend`: the
    feed's name. `host`: this host's, as leases have it."""

    def __init__(
        self, partition: PartitionId, backend: str, host: str, checkpoint: Callable[[], None]
    ) -> None:
        self.partition = partition
        self.backend = backend
        self.host = host
        # Another host has asked for the partition, or this one stops: no batch follows this one.
        self.revoked = False
        self._checkpoint = checkpoint

    def checkpoint(self) -> None:
        """Everything up to the present batch, and the whole of it, is done: after a crash the
        changes after it come. Durable when it returns. Call it from the observer's methods. Raises
        LeaseLost if another host has the lease, and Unavailable while the store is away."""
        self._checkpoint()


class Observer(ABC):
    """One for each partition that this host holds, made by calling what `Processor` was given.

    `open` once, then `process` for each batch, then `close` once, and nothing after it; never two
    calls at a time. Different observers run in different threads.
    """

    def open(self, context: PartitionContext) -> None:  # noqa: B027 - most need none
        """The partition is ours. If it raises, `close` is not called."""

    @abstractmethod
    def process(self, changes: Changes, context: PartitionContext) -> None:
        """The next changes. What it raises closes the observer; the same changes come again."""

    def close(self, context: PartitionContext, reason: CloseReason) -> None:  # noqa: B027
        """No change comes any more. Unless checkpoints are explicit, what was processed is
        checkpointed after it returns, and not if it raises."""


class ObserverCalls:
    """Calls of what `make` makes. Each raises what the observer raises."""

    def __init__(
        self, make: Callable[[], Observer], context: PartitionContext, clock: Clock
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
        return self._observer is not None

    def open(self) -> None:
        observer = self._make()
        with self._busy():
            observer.open(self.context)
        self._observer = observer

    def process(self, changes: Changes) -> None:
        assert self._observer is not None
        with self._busy():
            self._observer.process(changes, self.context)

    def close(self, reason: CloseReason) -> None:
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
