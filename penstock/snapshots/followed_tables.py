"""Which tables a pipeline follows, and what requests and messages call them."""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.config import Pipeline
from penstock.feeds import Feed, ListsSchemas, TakesSnapshots
from penstock.model.change import OnError
from penstock.model.errors import SettingsError
from penstock.model.table_schema import TableName, TableSchema


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotSource:
    """A backend that has snapshots. `prefix`: what its tables' names begin with. `is_initial`:
    each of its tables is taken once by itself. `on_error`: what becomes of rows that cannot be
    read."""

    backend: str
    feed: Feed
    prefix: TableName
    is_initial: bool = False
    on_error: OnError = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowedTable:
    """A followed table."""

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
    several = len(pipeline.backends) > 1
    return [
        SnapshotSource(
            backend=each.name,
            feed=feed,
            prefix=(each.name,) if several else (),
            on_error=each.on_error,
            is_initial=pipeline.snapshot.initial
            or getattr(each.settings, "start", None) == "snapshot",
        )
        for each in pipeline.backends
        if isinstance(feed := each.feed(), TakesSnapshots)
    ]


def tables_of(source: SnapshotSource) -> list[FollowedTable]:
    """The tables of a backend, as they are now. Raises Unavailable, SettingsError."""
    feed = source.feed
    found = feed.schemas() if isinstance(feed, ListsSchemas) else ()
    return [FollowedTable(source=source, schema=schema) for schema in found]


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
        raise SettingsError(f"{text} may be one of several tables", hint=f"ask for one of: {names}")
    names = ", ".join(sorted(".".join(table.name) for table in tables)) or "none"
    raise SettingsError(
        f"no followed table is called {text}",
        hint=f"there are: {names}; others have to be followed first (the publication, `tables`,"
        " `collections`)",
    )
