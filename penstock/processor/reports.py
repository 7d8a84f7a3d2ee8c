"""What the status of a service shows of a processor."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from penstock.model.position import Bookmarks
from penstock.ops.board import Board
from penstock.ops.partitions import DISCONNECTED, READING, WAITING
from penstock.ops.reports import GapReport, MeasureReport, PartitionReport, QueryReport
from penstock.process.closing import Closes
from penstock.processor.partition import OwnedPartition
from penstock.processor.processor import Processor
from penstock.reading.partition_reports import summed
from penstock.reading.remaining import EVERY, Remaining
from penstock.reading.silences import CLOCKED


class ProcessorReports(Closes):
    """Posts them to the board of this process; call `post` about once a second. Until `close`, it
    asks what remains of the partitions that this host has, of a source that can be asked."""

    def __init__(self, processor: Processor, board: Board, *, every: float = EVERY) -> None:
        self._processor, self._board = processor, board
        self._remaining = Remaining(processor.feed, self, every=every)
        self._saves: Counter[str] = Counter()  # of the store: `saved`, `save_errors`
        processor.positions.on_write = self._saved

    def close(self) -> None:
        self._remaining.close()

    @property
    def durable(self) -> Bookmarks:
        """What is saved of the partitions that this host has."""
        owned = list(self._processor.node.owned.values())
        return {part.partition: part.progress.position.saved for part in owned}

    def _saved(self, seconds: float, error: str, written: Bookmarks) -> None:
        self._saves["save_errors" if error else "saved"] += 1

    def post(self) -> None:
        self._remaining.open()
        processor, board = self._processor, self._board
        node, name = processor.node, processor.feed.backend
        rows = {
            part.partition: PartitionReport(**_row(part), **self._remaining.of(part.partition))
            for part in list(node.owned.values())
        }
        error = node.schedule.error or node.discovery.error or processor.positions.unreadable
        begun = node.discovery.begun
        board.post(name, QueryReport(begun=begun, blocked="", restarts=0, last_error=error))
        source = summed(
            rows,
            processor.feed.status(),
            **node.counts,
            **({} if rows else {"connected": True}),  # other hosts have them
            detail_series=processor.feed.detail_series,
            host=processor.host,
            leases=len(node.last.rows),
            hosts=dict(Counter(row.owner for row in node.last.rows.values() if row.owner)),
            unowned=len(node.last.vacant),
            observer_errors=processor.faults.errors,
            set_aside=processor.faults.letters,
        )
        board.post(name, source)
        for partition, row in rows.items():
            board.post(f"{name}/{partition}", row)
        for lost, gap in processor.gaps.log.rows().items():
            board.post(f"{name}/{lost}", GapReport(**gap))
        late = "; ".join(
            {part.progress.position.error for part in list(node.owned.values())} - {""}
        )
        saves: Mapping[str, Any] = self._saves
        board.post(name, MeasureReport(positions_error=late, **saves))

    def standby(self) -> str | None:
        """Why this host has nothing to do; None while it has."""
        node = self._processor.node
        if node.owned or node.last.vacant or not node.last.rows:
            return None
        count = len(node.last.rows)
        return f"other hosts hold all {count} partitions of {self._processor.feed.backend}"


def _row(part: OwnedPartition) -> dict[str, Any]:
    status = {name: found for name, found in part.reader.status().items() if name not in CLOCKED}
    place = part.progress.position.saved.place
    failed = part.error or part.progress.position.error
    state = READING if status["connected"] else DISCONNECTED if part.error else WAITING
    return {
        **status,
        "state": state,
        "place": None if place is None else str(place),
        "last_error": failed or status["last_error"],
        "details": {**status.get("details", {}), "idle_seconds": part.idle_seconds},
    }
