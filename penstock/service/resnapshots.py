"""`on_gap: resnapshot`: after a gap every table of the backend is taken anew, and then its
partitions are not stale any more.

A snapshot mends the gaps that were on record before it began: each run's record says which. So no
clocks and no positions of before and after a gap are compared. What is missing is read from the
records of runs each time: nothing is lost with the service.
"""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence

import structlog

from penstock.leases.gaps import GapRow, losses
from penstock.model.table_schema import TableName
from penstock.service.owned_pipeline import OwnedPipeline
from penstock.snapshots.followed_tables import FollowedTable
from penstock.snapshots.records import RunRecord
from penstock.snapshots.requests import SnapshotRequests

_LOOK = 5.0  # seconds between two looks
_AGAIN = 60.0  # seconds after which a table whose run failed is asked for again

log = structlog.get_logger("penstock")


def to_mend(rows: Mapping[str, GapRow]) -> dict[str, GapRow]:
    """The stale partitions that are to be mended so. Empty as long as changes do not go on after
    the last gap of each of them: one snapshot mends them all."""
    found = {
        name: row
        for name, row in rows.items()
        if row["stale"] and row["gaps"] and row["gaps"][-1]["policy"] == "resnapshot"
    }
    return found if all(row["gaps"][-1]["to"] for row in found.values()) else {}


def outdated(
    tables: Sequence[FollowedTable], records: Sequence[RunRecord], lost: str, now: float
) -> tuple[list[FollowedTable], bool]:
    """The tables that are to be asked for now, because they have no snapshot from after what was
    `lost` (see `losses`), nor one that runs or failed just now; and whether all have one (of no
    table that is not known). Pure."""
    records = [one for one in records if not one.is_partial]
    done = {one.name for one in records if one.state == "done" and one.gap == lost}
    busy = {
        one.name
        for one in records
        if not one.has_ended or (one.state == "failed" and now - one.changed_at < _AGAIN)
    }
    missing = [each for each in tables if each.name not in done]
    return [each for each in missing if each.name not in busy], bool(tables) and not missing


class Resnapshots:
    """Looks at the gaps of these backends. Used by one thread. Everything raises Unavailable,
    SettingsError."""

    def __init__(self, owned: OwnedPipeline, backends: Sequence[str]) -> None:
        self._owned, self._backends = owned, backends
        self._look_at = 0.0
        # By backend: every table that was followed since a gap was first seen. One that is not
        # followed any more is not mended.
        self._affected: defaultdict[str, dict[TableName, FollowedTable]] = defaultdict(dict)

    def look(self, requests: SnapshotRequests, tables: list[FollowedTable]) -> None:
        """Asks for what is missing, and clears what is mended."""
        if not self._backends or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK
        for backend in self._backends:
            gaps = self._owned.gaps(backend)
            rows = gaps.rows()
            stale = to_mend(rows)
            if not stale or self._owned.unpublished(backend, rows):
                continue
            affected = self._affected[backend]
            affected |= {one.name: one for one in tables if one.source.backend == backend}
            missing, is_mended = outdated(
                [*affected.values()], requests.records.all(), losses(rows), time.time()
            )
            for each in missing:
                requests.take_again(each.name, tables)
            if is_mended:
                for partition, row in stale.items():
                    gaps.clear(partition, seen=row)
                    log.warning("lost changes are mended", backend=backend, partition=partition)
                del self._affected[backend]
