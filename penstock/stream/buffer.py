"""What was fetched and not handed out: a merge of queues, one for each partition.

Only the heads of the queues are compared: by creation time, then by place (services round times to
the second), then by when they were put in. So the records of one partition keep their order even
when their times go backwards.
"""

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush

from penstock.feeds import NativeRecord
from penstock.model.position import PartitionId, Place

# A record, its number in the order of arrival, its partition.
_Item = tuple[NativeRecord, int]


class Buffer:
    def __init__(self) -> None:
        self._queues: dict[PartitionId, deque[_Item]] = {}
        self._heads: list[tuple[int, Place, int, PartitionId]] = []
        self._arrived = 0

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def holds(self, partition: PartitionId) -> bool:
        return bool(self._queues.get(partition))

    @property
    def empty(self) -> bool:
        return not self._heads

    def put(self, partition: PartitionId, records: Iterable[NativeRecord]) -> None:
        queue = self._queues.setdefault(partition, deque())
        was_empty = not queue
        for record in records:
            queue.append((record, self._arrived))
            self._arrived += 1
        if was_empty and queue:
            self._push(partition, queue)

    def head(self) -> tuple[PartitionId, NativeRecord]:
        """The next record, which stays; raises IndexError if there is none."""
        partition = self._heads[0][3]
        return partition, self._queues[partition][0][0]

    def pop(self) -> tuple[PartitionId, NativeRecord]:
        """Takes the next record out; raises IndexError if there is none."""
        partition = heappop(self._heads)[3]
        queue = self._queues[partition]
        record, _ = queue.popleft()
        if queue:
            self._push(partition, queue)
        else:
            del self._queues[partition]
        return partition, record

    def _push(self, partition: PartitionId, queue: deque[_Item]) -> None:
        record, number = queue[0]
        heappush(self._heads, (record.created_at, record.place, number, partition))
