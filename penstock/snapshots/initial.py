"""Tables that are taken by themselves: each once, the first time that the pipeline follows it."""

import time

from penstock.model.table_schema import TableName
from penstock.snapshots.followed_tables import FollowedTable
from penstock.snapshots.job import PipelineState
from penstock.snapshots.records import Records, RunRecord

_LOOK = 1.0  # seconds between two looks
_AGAIN = 60.0  # seconds after which one that failed is tried again


class InitialSnapshots:
    """Asks for the tables of backends whose changes are followed: a snapshot from before that would
    have a hole after it. Used by one thread. Everything raises Unavailable, SettingsError."""

    def __init__(self, pipeline: PipelineState) -> None:
        self._pipeline = pipeline
        self._taken: set[TableName] | None = None
        self._asked: dict[TableName, float] = {}  # when it is asked for again
        self._look_at = 0.0

    def missing(self, tables: list[FollowedTable], records: Records) -> list[FollowedTable]:
        """Those that are to be asked for now."""
        wanted = [each for each in tables if each.source.is_initial]
        if not wanted or time.monotonic() < self._look_at:
            return []
        self._look_at = time.monotonic() + _LOOK
        if self._taken is None:
            self._taken = records.initial()
        found = [
            each for each in wanted
            if each.name not in self._taken and time.monotonic() >= self._asked.get(each.name, 0.0)
        ]  # fmt: skip
        begun = {each.source.backend for each in found}
        begun = {backend for backend in begun if self._pipeline.bookmarks(backend)}
        return [each for each in found if each.source.backend in begun]

    def asked(self, name: TableName) -> None:
        """It is being taken: `ended` says how that ended."""
        self._asked[name] = float("inf")

    def refused(self, name: TableName) -> None:
        """It cannot be taken now."""
        self._asked[name] = time.monotonic() + _AGAIN

    def ended(self, record: RunRecord, records: Records) -> None:
        """A run of a table ended: whoever asked for it, its rows are there."""
        if record.is_partial:
            return
        name = record.name
        if record.state == "failed":
            self.refused(name)
        elif name in self._asked and record.state in ("done", "cancelled"):
            taken = self._taken = {*records.initial(), name}
            records.put_initial(taken)
            del self._asked[name]
