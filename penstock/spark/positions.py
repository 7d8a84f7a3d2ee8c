"""Saves durable positions to the lease store, at intervals; the source is told only what is saved.

Without a store (penstock as a library) Spark's own checkpoint is the record: what `latestOffset`
is called with is in it already.
"""

import json
import time
from collections.abc import Callable
from typing import Protocol

from penstock.config import Checkpoint
from penstock.errors import Malformed
from penstock.leases import Lease, LeaseStore, replace
from penstock.leases.open import open_store
from penstock.position import PartitionId, Place, Position

__all__ = ["Positions", "Save", "in_spark"]


class Save(Protocol):
    """Saves a durable position, at once if `force`; returns what is saved by now, which may lag
    behind. `changes` is how many came since the last call."""

    def __call__(self, durable: Position, changes: int, *, force: bool = False) -> Position: ...


def in_spark(durable: Position, changes: int, *, force: bool = False) -> Position:
    """The `Save` of a planner whose positions are in Spark's checkpoint."""
    return durable


class Positions:
    """The stored position of one backend of one pipeline: a lease for each partition.

    Saves when `interval` seconds have passed or `event_count` changes have come since the last
    time, and when asked to. `clock` is monotonic seconds.
    """

    def __init__(
        self,
        store: LeaseStore,
        prefix: str,
        *,
        interval: float,
        event_count: int,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._interval = interval
        self._event_count = event_count
        self._clock = clock
        self._leases: dict[PartitionId, Lease] = {}
        self._saved: dict[PartitionId, Place] = {}
        self._changes = 0
        self._next = clock()

    @classmethod
    def of(cls, url: str, pipeline: str, backend: str, checkpoint: Checkpoint) -> "Positions":
        """The positions of a pipeline's backend in the store at `url`; does no I/O."""
        return cls(
            open_store(url),
            f"{pipeline}/{backend}",
            interval=checkpoint.interval,
            event_count=checkpoint.event_count,
            clock=time.monotonic,
        )

    def load(self) -> dict[PartitionId, Place]:
        """What is stored; raises Unavailable, or Malformed for a row that nobody of us wrote."""
        for lease in self._store.list(f"{self._prefix}/"):
            partition = PartitionId(lease.name.removeprefix(f"{self._prefix}/"))
            self._leases[partition] = lease
            self._saved[partition] = _place(lease)
        return dict(self._saved)

    def save(self, durable: Position, changes: int, *, force: bool = False) -> Position:
        """Notes what is durable, writes it when it is time, and returns what is written.

        Raises LeaseLost if another process wrote meanwhile.
        """
        self._changes += changes
        now = self._clock()
        if force or self._changes >= self._event_count or now >= self._next:
            for partition, place in durable.items():
                if self._saved.get(partition) != place:
                    self._write(partition, place)
            self._changes = 0
            self._next = now + self._interval
        return self._saved

    def _write(self, partition: PartitionId, place: Place) -> None:
        name = f"{self._prefix}/{partition}"
        lease = self._leases.get(partition) or Lease(name=name)
        text = json.dumps({"place": str(place)})
        self._leases[partition] = self._store.put(replace(lease, continuation=text))
        self._saved[partition] = place


def _place(lease: Lease) -> Place:
    try:
        return Place.parse(json.loads(lease.continuation)["place"])
    except (ValueError, KeyError, TypeError) as error:
        raise Malformed(
            f"the stored position {lease.name!r} can't be read",
            hint="was the positions store written by something else?",
        ) from error
