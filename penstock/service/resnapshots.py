"""`on_gap: resnapshot`: after a gap every table of the backend is taken anew, and then its
partition is not stale any more.

What is missing is read from the records of runs each time: nothing is lost with the service.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import structlog

from penstock.leases.gaps import Gaps
from penstock.snapshots.catalog import Known
from penstock.snapshots.records import RunRecord
from penstock.table_schema import TableName

_LOOK = 5.0  # seconds between two looks
_AGAIN = 60.0  # seconds after which a table whose run failed is asked for again

log = structlog.get_logger("penstock")


class Passed(NamedTuple):
    """A gap that reading has passed: where it went on, and when the gap was found (seconds since
    1970). Positions of before and after a gap may be of different servers."""

    to: str
    found_at: float


def passed(row: Mapping[str, Any]) -> Passed | None:
    """The last gap of a stale partition that is to be mended so, once changes go on after it."""
    last = row["gaps"][-1] if row["gaps"] else None
    if last is None or not row["stale"] or last["policy"] != "resnapshot" or not last["to"]:
        return None
    return Passed(str(last["to"]), datetime.fromisoformat(last["at"]).timestamp())


def outdated(
    tables: Sequence[Known], records: Sequence[RunRecord], gap: Passed, now: float
) -> tuple[list[Known], bool]:
    """The tables that are to be asked for now, because they have no snapshot from after the gap,
    nor one that runs or failed just now; and whether all have one (of no table that is not known).
    Pure."""
    records = [one for one in records if not one.is_partial]
    done = {
        one.name
        for one in records
        if one.state == "done"
        and one.begun_at >= gap.found_at
        # Without the era, which the end of a gap has not.
        and one.position.rpartition("-")[2] >= gap.to
    }
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

    def __init__(self, backends: Sequence[str], gaps: Callable[[str], Gaps]) -> None:
        self._backends, self._gaps = backends, gaps
        self._look_at = 0.0
        # By backend and gap: every table that was followed since the gap was first seen. One that
        # is not followed any more is not mended.
        self._affected: defaultdict[tuple[str, str], dict[TableName, Known]] = defaultdict(dict)

    def look(
        self,
        tables: Sequence[Known],
        records: Callable[[], Sequence[RunRecord]],
        request: Callable[[TableName], object],
    ) -> None:
        """Asks for what is missing, and clears what is mended."""
        if not self._backends or time.monotonic() < self._look_at:
            return
        self._look_at = time.monotonic() + _LOOK
        for backend in self._backends:
            gaps = self._gaps(backend)
            for partition, row in gaps.rows().items():
                if (gap := passed(row)) is None:
                    continue
                identity = row["gaps"][-1]["id"]
                affected = self._affected[backend, identity]
                affected |= {one.name: one for one in tables if one.source.backend == backend}
                missing, is_mended = outdated([*affected.values()], records(), gap, time.time())
                for each in missing:
                    request(each.name)
                if is_mended:
                    gaps.clear(partition, seen=identity)
                    del self._affected[backend, identity]
                    log.warning("lost changes are mended", backend=backend, partition=partition)
