"""Tables that are taken by themselves: each once, the first time that the pipeline follows it."""

import time
from collections.abc import Callable

from penstock.model.table_schema import TableName
from penstock.snapshots.followed_tables import Known
from penstock.snapshots.records import Records, RunRecord

_LOOK = 1.0  # seconds between two looks
_AGAIN = 60.0  # seconds after which one that failed is tried again


class InitialSnapshots:
    """`has_begun` says of a backend whether its changes are followed: a snapshot from before that
    would have a hole after it. Used by one thread. Everything raises Unavailable, SettingsError."""

    def __init__(
        self, has_begun: Callable[[str], bool], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._has_begun, self._clock = has_begun, clock
        self._taken: set[TableName] | None = None
        self._asked: dict[TableName, float] = {}  # when it is asked for again
        self._look_at = 0.0

    def missing(self, tables: list[Known], records: Records) -> list[Known]:
        """Those that are to be asked for now."""
        wanted = [each for each in tables if each.source.is_initial]
        if not wanted or self._clock() < self._look_at:
            return []
        self._look_at = self._clock() + _LOOK
        if self._taken is None:
            self._taken = records.initial()
        found = [
            each for each in wanted
            if each.name not in self._taken and self._clock() >= self._asked.get(each.name, 0.0)
        ]  # fmt: skip
        begun = {each.source.backend for each in found}
        begun = {backend for backend in begun if self._has_begun(backend)}
        return [each for each in found if each.source.backend in begun]

    def asked(self, name: TableName) -> None:
        """It is being taken: `ended` says how that ended."""
        self._asked[name] = float("inf")

    def refused(self, name: TableName) -> None:
        """It cannot be taken now."""
        self._asked[name] = self._clock() + _AGAIN

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
