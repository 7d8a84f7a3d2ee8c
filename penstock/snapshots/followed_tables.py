"""Which tables a pipeline follows, what requests and messages call them, and which are taken by
themselves: each once, the first time that the pipeline follows it.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

from penstock.config import Pipeline
from penstock.feeds import Feed, TakesSnapshots
from penstock.model.change import OnError
from penstock.model.errors import SettingsError
from penstock.model.table_schema import TableName, TableSchema
from penstock.snapshots.job import PipelineState
from penstock.snapshots.records import Records, RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSource:
    """A backend that has snapshots. `prefix`: what its tables' names begin with. `is_initial`: each
    of its tables is taken once by itself. `on_error`: of rows that cannot be read."""

    backend: str
    feed: Feed
    prefix: TableName
    is_initial: bool = False
    on_error: OnError = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedTable:
    source: SnapshotSource
    schema: TableSchema

    @property
    def name(self) -> TableName:
        """What messages call it."""
        return (*self.source.prefix, *self.schema.name)

    @property
    def names(self) -> tuple[TableName, ...]:
        """What a request may call it: with or without its backend and its schema."""
        qualified = self.schema.schema, self.schema.table
        whole = (self.source.backend, *qualified)
        return self.name, whole[2:], whole[1:], whole, (whole[0], whole[2])


def sources(pipeline: Pipeline) -> list[SnapshotSource]:
    """The backends whose tables snapshots can be taken of; does no I/O."""
    several, backends = len(pipeline.backends) > 1, pipeline.backends
    if pipeline.sink.has_layout("bridge"):
        backends = tuple(each.writing("text") for each in backends)
    return [
        SnapshotSource(
            backend=each.name,
            feed=feed,
            prefix=(each.name,) if several else (),
            on_error=each.on_error,
            is_initial=bool(pipeline.snapshot.initial)
            or getattr(each.settings, "start", None) == "snapshot",
        )
        for each in backends
        if isinstance(feed := each.feed(), TakesSnapshots)
    ]


def tables_of(source: SnapshotSource) -> list[FollowedTable]:
    """The tables of a backend, as they are now. Raises Unavailable, SettingsError."""
    return [FollowedTable(source=source, schema=schema) for schema in source.feed.current_schemas()]


def resolve(name: TableName, tables: Sequence[FollowedTable]) -> FollowedTable:
    """The table that a request calls so. Raises SettingsError, with those that there are."""
    text = ".".join(name)
    found = (
        [table for table in tables if table.name == name]
        or [table for table in tables if name in table.names]
        # A name may have dots, which a command line does not tell from those between names.
        or [table for table in tables if text in map(".".join, table.names)]
    )
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(".".join(table.name) for table in found)
        raise SettingsError(
            f"{text} may be one of several tables", "snapshots", hint=f"ask for one of: {names}"
        )
    names = ", ".join(sorted(".".join(table.name) for table in tables)) or "none"
    raise SettingsError(
        f"no followed table is called {text}",
        "snapshots.no-table",
        hint=f"there are: {names}; others have to be followed first (the publication, `tables`,"
        " `collections`)",
    )


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
        self._asked[name] = time.monotonic() + _AGAIN

    def ended(self, record: RunRecord, records: Records) -> None:
        if record.is_partial:
            return
        name = record.name
        if record.state == "failed":
            self.refused(name)
        elif name in self._asked and record.state in ("done", "cancelled"):
            taken = self._taken = {*records.initial(), name}
            records.put_initial(taken)
            del self._asked[name]
