"""The leases of one host: what it holds, and everything that it writes to their rows.

Checkpoints of several threads go out together: while one write is on its way, the next one
gathers. All methods may be called from any thread, but for `survey`, `take` and `ask`, which one
thread calls.
"""

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from threading import Lock
from typing import Any, NamedTuple
from zlib import crc32

from penstock.config import Sharing
from penstock.leases import Lease
from penstock.leases.balance import balance
from penstock.leases.holder import LeaseHolder, users_own
from penstock.model.errors import LeaseLost, Unavailable
from penstock.model.position import Bookmark, PartitionId
from penstock.process.backoff import Clock
from penstock.reading.host_positions import HostPositions

# Of a lease's properties: the batch that fails, and how often it has, over all hosts.
FAILURES = "failures"
# And, where the source knows who reads: partition -> our name there.
READERS = "readers"

log = logging.getLogger("penstock")


class Survey(NamedTuple):
    """All leases at one moment: those of partitions that have not ended, and which of them nobody
    holds who lives (`vacant`, by partition). `late`: given back for a host that does not come."""

    rows: Mapping[PartitionId, Lease]
    vacant: Mapping[PartitionId, Lease]
    late: frozenset[str] = frozenset()


class HostLeases:
    """Each method that reaches the store raises Unavailable and SettingsError."""

    def __init__(
        self,
        positions: HostPositions,
        sharing: Sharing,
        *,
        clock: Clock = time.monotonic,
        knows_reader: bool = False,
    ) -> None:
        self.positions = positions
        self._sharing = sharing  # terms, intervals and limits
        # Where the source knows who reads: our name there; and whose lease had expired when we took
        # it, by partition, until its connection was ended.
        self.readers: dict[PartitionId, str] = {}
        self.predecessors: dict[PartitionId, str] = {}
        self._holder = LeaseHolder(
            positions.rows,
            clock=clock,
            every=max(sharing.renew, sharing.acquire),  # `free` comes each `acquire`
            term=sharing.expire,
            properties=lambda: {READERS: dict(self.readers)} if knows_reader else {},
        )
        self._clock = clock
        # When leases were first seen that were given back for another host, by their revision.
        self._given: dict[tuple[str, str], float] = {}
        self._steals = 1  # asked for at the next survey, at most
        self._pending: dict[PartitionId, Bookmark] = {}  # checkpoints of the next write
        self.left: set[PartitionId] = set()  # nothing is done for these leases: to be given back
        self._gathering = Lock()  # of `_pending` and `left`
        self._writing = Lock()  # one write at a time
        self._is_closed = False  # nothing is written any more
        self._has_twin = False  # another process with our name, at the last survey

    @property
    def host(self) -> str:
        return self.positions.rows.owner

    def survey(self) -> Survey:
        """Looks at all leases; call it a few times in a term."""
        found = self.positions.survey()
        rows = {name: row for name, (row, bookmark) in found.items() if not bookmark.ended}
        free = {row.name for row in self._holder.free(rows.values())}
        self._warn_of_twin(
            [row for row in rows.values() if row.owner == self.host and row.name not in free]
        )
        vacant = {name: row for name, row in rows.items() if row.name in free}
        return Survey(rows, vacant, self._late(vacant.values()))

    def _warn_of_twin(self, rows: Sequence[Lease]) -> None:
        found = [row for row in rows if not self._holder.has(row.name)]
        if found and not self._has_twin:
            log.warning(
                "%d leases are of another process with the name of this host, %s: they are taken"
                " when it has not renewed them for their term. No two live processes may have one"
                " name",
                len(found),
                self.host,
            )
        self._has_twin = bool(found)

    def _late(self, vacant: Collection[Lease]) -> frozenset[str]:
        """Those of a host that has asked for them, and has not taken them in two intervals."""
        now, kept = self._clock(), [row for row in vacant if not row.owner]
        self._given = {
            _version(row): self._given.get(_version(row), now)
            for row in kept
            if row.properties.get("asked_by")
        }
        limit = now - 2 * self._sharing.acquire
        return frozenset(row.name for row in kept if self._given.get(_version(row), now) <= limit)

    def take(
        self, survey: Survey, not_now: Collection[PartitionId] = ()
    ) -> Mapping[PartitionId, Bookmark]:
        """Takes what is ours to take, and asks for what is to be stolen; what was taken. Our own
        leases of before are taken in any case. `not_now`: those that must wait here."""
        limits = self._sharing
        names = {row.name: name for name, row in survey.rows.items()}
        others = [row for row in survey.vacant.values() if row.owner not in ("", self.host)]
        expired = {row.name for row in others} | survey.late
        rows = self._in_order(survey, not_now)
        chosen = [row for row in survey.vacant.values() if row.owner == self.host]
        asked: list[Lease] = []
        for _ in range(self._steals):
            takings = balance(
                rows,
                self.host,
                expired=expired,
                min_partitions=limits.min_partitions,
                max_partitions=limits.max_partitions,
            )
            if not takings:
                self._steals = 1
                break
            if takings[0].reason != "steal":
                chosen += [each.lease for each in takings]
                break
            asked.append(takings[0].lease)
            rows = [_asked(row, self.host) if row is asked[-1] else row for row in rows]
        if asked:  # one at first: hosts that start together see each other by what they ask for
            self._steals = min(4 * self._steals, 1024)
        self._holder.ask(asked)
        taken = self._holder.take([row for row in chosen if names[row.name] not in not_now])
        for row in [row for row in chosen if row.name in taken and row.owner]:
            readers = row.properties.get(READERS)
            if isinstance(readers, Mapping) and names[row.name] in readers:
                self.predecessors[names[row.name]] = str(readers[names[row.name]])
        return self.positions.record_taken([names[name] for name in taken])

    def _in_order(self, survey: Survey, last: Collection[PartitionId]) -> list[Lease]:
        """Beginning elsewhere on each host, so that they take others; `last` comes last."""
        names = list(survey.rows)
        start = crc32(self.host.encode()) % len(names) if names else 0
        names = sorted(names[start:] + names[:start], key=lambda name: name in last)
        return [survey.rows[name] for name in names]

    def renew(self) -> None:
        self._holder.renew()

    @property
    def asked(self) -> Mapping[PartitionId, str]:
        """Partitions that we hold -> the host that asks for it."""
        return {self.positions.partition(name): host for name, host in self._holder.asked.items()}

    def name(self, partition: PartitionId) -> str:
        return self.positions.name(partition)

    def is_ours(self, partition: PartitionId) -> bool:
        """Whether nobody is known to have taken the lease from us."""
        is_kept = not self._is_closed and partition not in self.left
        return is_kept and self._holder.has(self.name(partition))

    def holds(self, partition: PartitionId) -> bool:
        """Whether certainly nobody else can have the lease now: it was renewed within its term."""
        return self._holder.holds(self.name(partition))

    def checkpoint(self, partition: PartitionId, bookmark: Bookmark) -> None:
        """Saves a bookmark; durable when it returns. Raises LeaseLost."""
        if not self.is_ours(partition):
            raise LeaseLost(f"{self.name(partition)} is not {self.host}'s any more", "reading")
        with self._gathering:
            self._pending[partition] = bookmark
        with self._writing:
            with self._gathering:
                is_written = self._pending.get(partition) is not bookmark
                if not is_written:
                    gathered, self._pending = self._pending, {}
            if not is_written:
                self.positions.save(gathered)
        if not self.is_ours(partition):
            raise LeaseLost(f"{self.name(partition)} was taken by another host", "reading")
        stored = self.positions.stored(partition)
        if stored is None or (stored.place, stored.ended) != (bookmark.place, bookmark.ended):
            raise Unavailable(
                self.positions.error or f"{self.name(partition)} was not saved", "reading"
            )

    def failures(self, partition: PartitionId) -> tuple[str, int]:
        """Which batch of ours failed last (the place of its first change), and how often."""
        for row in self.positions.rows.known([self.name(partition)]):
            found = row.properties.get(FAILURES)
            if isinstance(found, Mapping):
                return str(found.get("first", "")), int(found.get("count", 0))
        return "", 0

    def note_failures(self, partition: PartitionId, first: str, count: int) -> None:
        """Notes in the row that a batch failed; `count` 0: it does not any more."""
        noted = {FAILURES: {"first": first, "count": count}} if count else {}

        def change(row: Lease) -> Lease:
            rest = {key: value for key, value in row.properties.items() if key != FAILURES}
            return replace(row, owner=self.host, properties=rest | noted)

        if self.is_ours(partition):
            self.positions.rows.write([self.name(partition)], change)

    def inherited(
        self, rows: Mapping[PartitionId, Lease], parents: Sequence[PartitionId]
    ) -> dict[str, Any]:
        """What a child's lease has of its parents': the user's own properties."""
        found: dict[str, Any] = {}
        for row in [rows[each] for each in parents if each in rows]:
            found |= users_own(row)
        return {key: value for key, value in found.items() if key not in (FAILURES, READERS)}

    def close(self) -> None:
        """No lease is ours any more, and nothing is written; those that are held expire."""
        self._is_closed = True

    def leave(self, partitions: Collection[PartitionId]) -> None:
        """Nothing is done any more for these leases: the next `give_back` releases them."""
        with self._gathering:
            self.left.update(partitions)

    def give_back(self) -> None:
        """Releases all that was left, in one write; when it returns, all of it is written."""
        with self.positions.rows.lock:  # also: one that is taken again meanwhile is not forgotten
            with self._gathering:
                left, self.left = self.left, set()
            if left:
                self._holder.release([self.name(each) for each in left])
                self.forget(left)

    def forget(self, partitions: Collection[PartitionId]) -> None:
        """Leases that were lost: nothing is written."""
        self._holder.forget([self.name(each) for each in partitions])
        self.positions.record_released(partitions)


def _version(row: Lease) -> tuple[str, str]:
    return row.name, row.revision


def _asked(row: Lease, host: str) -> Lease:
    return replace(row, properties={**row.properties, "asked_by": host})
