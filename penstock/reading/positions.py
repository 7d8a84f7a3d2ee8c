"""Saves durable positions to the lease store, at intervals; the source is told only what is saved.

Without a store (penstock as a library) Spark's own checkpoint is the record: what `latestOffset`
is called with is in it already.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from penstock.config import Checkpoint
from penstock.errors import LeaseLost, Malformed, Unavailable
from penstock.feeds import Mark
from penstock.leases import Lease, LeaseStore, replace
from penstock.leases.gaps import Gaps
from penstock.leases.open import open_store
from penstock.position import PartitionId, Place, Position

__all__ = ["Positions", "Save", "in_spark"]

# Seconds without a `save` behind which we look whether the rows are still ours: Spark calls it
# twice a second, so this process was frozen, or its sink was away.
PAUSE = 2.0
_CLAIMS = 100


class Save(Protocol):
    """Saves a durable position, at once if `force`; returns what is saved by now, which may lag
    behind. `changes` is how many came since the last call."""

    def __call__(self, durable: Position, changes: int, *, force: bool = False) -> Position: ...


def in_spark(durable: Position, changes: int, *, force: bool = False) -> Position:
    """The `Save` of a planner whose positions are in Spark's checkpoint."""
    return durable


# Durable positions -> what to store beside each of them.
Marks = Callable[[Position], Mapping[PartitionId, Mark]]
# Told what is stored beside a position now.
Settled = Callable[[PartitionId, Mark], None]


@dataclass(frozen=True, slots=True)
class _Stored:
    place: Place | None
    mark: Mark


_NOTHING = _Stored(None, {})


class Positions:
    """The stored position of one backend of one pipeline: a lease for each partition.

    Saves when `interval` seconds have passed or `event_count` changes have come since the last
    time, and when asked to. `clock` is monotonic seconds. `owner` is this instance of the
    pipeline; rows of another one are not touched.
    """

    def __init__(
        self,
        store: LeaseStore,
        prefix: str,
        *,
        interval: float,
        event_count: int,
        clock: Callable[[], float],
        owner: str = "",
    ) -> None:
        self._store = store
        self._prefix = prefix
        self._interval = interval
        self._event_count = event_count
        self._clock = clock
        self._owner = owner
        self._leases: dict[PartitionId, Lease] = {}
        self._stored: dict[PartitionId, _Stored] = {}
        self._lock = threading.Lock()
        self._changes = 0
        self._next = clock()
        self._looked_at = clock()
        self._marks: Marks = _no_marks
        self._settled: Settled = _nobody_hears

    @classmethod
    def of(
        cls, url: str, pipeline: str, backend: str, checkpoint: Checkpoint, owner: str = ""
    ) -> "Positions":
        """The positions of a pipeline's backend in the store at `url`; does no I/O."""
        return cls(
            open_store(url),
            f"{pipeline}/{backend}",
            interval=checkpoint.interval,
            event_count=checkpoint.event_count,
            clock=time.monotonic,
            owner=owner,
        )

    @property
    def gaps(self) -> Gaps:
        """What this backend lost, in the same store."""
        return Gaps(self._store, self._prefix)

    def marking(self, marks: Marks, settled: Settled) -> None:
        """From now on stores `marks` beside positions, and tells `settled` what is stored."""
        self._marks, self._settled = marks, settled

    def claim(self) -> None:
        """Makes every row this instance's. Whoever wrote them before fails with LeaseLost."""
        for _ in range(_CLAIMS):
            try:
                for lease in self._store.list(f"{self._prefix}/"):
                    self._store.put(replace(lease, owner=self._owner))
            except LeaseLost:  # its owner saved in this moment
                continue
            return
        raise Unavailable(f"the positions of {self._prefix} change all the time")

    def load(self) -> dict[PartitionId, Place]:
        """What is stored; raises Unavailable, Malformed for a row that nobody of us wrote, and
        LeaseLost for one of another instance."""
        for lease in self._store.list(f"{self._prefix}/"):
            if self._owner and lease.owner not in ("", self._owner):
                raise LeaseLost(f"{lease.name} is {lease.owner}'s now")
            partition = PartitionId(lease.name.removeprefix(f"{self._prefix}/"))
            self._leases[partition] = lease
            self._stored[partition] = _read(lease)
        return self._places()

    def is_known(self) -> bool:
        """Whether anything is stored; not a place, perhaps: an idle source has a mark only.
        Raises as `load` does."""
        return bool(self.load() or self._stored)

    def mark(self, partition: PartitionId) -> Mark:
        """What is stored beside the partition's position."""
        return self._stored.get(partition, _NOTHING).mark

    def save(self, durable: Position, changes: int, *, force: bool = False) -> Position:
        """Notes what is durable, writes it when it is time, and returns what is written.

        Raises LeaseLost if another process wrote meanwhile.
        """
        self._changes += changes
        now = self._clock()
        if now - self._looked_at >= PAUSE:
            self.verify()
        self._looked_at = now
        if force or self._changes >= self._event_count or now >= self._next:
            self._save(durable)
            self._changes = 0
            self._next = now + self._interval
        return self._places()

    def verify(self) -> None:
        """Raises LeaseLost if somebody else wrote our rows: this process may have been frozen
        while another instance took over. From any thread."""
        with self._lock:
            for lease in self._leases.values():
                now = self._store.get(lease.name)
                if now is None or now.revision != lease.revision:
                    raise LeaseLost(f"{lease.name} was written by another instance")

    def _save(self, durable: Position) -> None:
        marks = self._marks(durable)
        for partition in {**durable, **marks}:
            before = self._stored.get(partition, _NOTHING)
            after = _Stored(durable.get(partition, before.place), marks.get(partition, before.mark))
            if after != before:
                self._write(partition, after)
            if partition in marks:
                self._settled(partition, after.mark)

    def _write(self, partition: PartitionId, stored: _Stored) -> None:
        name = f"{self._prefix}/{partition}"
        lease = self._leases.get(partition) or Lease(name=name)
        place = None if stored.place is None else str(stored.place)
        text = json.dumps({"place": place, "mark": dict(stored.mark)})
        with self._lock:
            self._leases[partition] = self._store.put(
                replace(lease, continuation=text, owner=self._owner)
            )
        self._stored[partition] = stored

    def _places(self) -> dict[PartitionId, Place]:
        return {
            partition: stored.place
            for partition, stored in self._stored.items()
            if stored.place is not None
        }


def _no_marks(_: Position) -> Mapping[PartitionId, Mark]:
    return {}


def _nobody_hears(partition: PartitionId, mark: Mark) -> None:
    """Without marks there is nothing to settle."""


def _read(lease: Lease) -> _Stored:
    try:
        document = json.loads(lease.continuation)
        place, mark = document["place"], document.get("mark") or {}
        return _Stored(None if place is None else Place.parse(place), dict(mark))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Malformed(
            f"the stored position {lease.name!r} can't be read",
            hint="was the positions store written by something else?",
        ) from error
