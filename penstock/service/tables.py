"""The tables that a pipeline follows, as they are now, and the bucket of their schemas.

A thread of its own looks twice a minute: neither requests nor changes wait for it.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import structlog

from penstock.model.errors import PenstockError
from penstock.model.table_schema import TableName
from penstock.process.closing import Closes
from penstock.service.owned_pipeline import OwnedPipeline
from penstock.sinks.server import SinkServer
from penstock.snapshots.followed_tables import FollowedTable, SnapshotSource, tables_of

_LOOK = 30.0  # seconds between two looks at the tables
_AGAIN = 60.0  # seconds after which a bucket that did not take a schema is tried again
_TOGETHER = 50  # schemas that are stored between two questions whether to go on
_LEAVING = 5.0  # seconds that `close` waits for a look

log = structlog.get_logger("penstock")


class FollowedTables(Closes):
    """Looks from `start` until `close`, and once more then, while the pipeline is ours. What fails
    is logged once."""

    def __init__(
        self, owned: OwnedPipeline, sources: list[SnapshotSource], sink: SinkServer
    ) -> None:
        self._owned, self._sources = owned, sources
        self._reasons: Mapping[tuple[str, str], str] = {}  # of suspended tables
        self._found: dict[str, list[FollowedTable]] = {}  # backend -> its tables
        self._buckets = {each.backend: sink.schemas(owned.name, each.prefix) for each in sources}
        # By backend: the tables whose schemas the buckets have, and no others.
        self._stored: dict[str, set[TableName]] = {}
        self._store_at = 0.0  # monotonic seconds
        self._said: dict[str, str] = {}  # what failed -> how
        self._over, self._is_last = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="schemas", daemon=True)

    def start(self) -> None:
        """Looks in a thread, and returns at once."""
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        if self._thread.is_alive():
            self._thread.join(_LEAVING)

    @property
    def unknown(self) -> list[str]:
        """The backends whose tables are not known yet."""
        return [each.backend for each in self._sources if each.backend not in self._found]

    @property
    def all(self) -> list[FollowedTable]:
        """The tables, as the last look found them."""
        return [table for tables in self._found.copy().values() for table in tables]

    def asked(self) -> list[FollowedTable]:
        """The same for a request, with the tables suspended since. Raises Unavailable."""
        reasons = self._owned.suspended()
        return [_marked(table, reasons) for table in self.all]

    def look(self) -> None:
        """Looks at the tables of every backend that can be asked."""
        with self._warning("which tables are suspended is not known now"):
            self._reasons = self._owned.suspended()
        for source in self._sources:
            with self._warning(f"the tables of {source.backend} cannot be looked at now"):
                found, before = tables_of(source), self._found.get(source.backend, ())
                if {table.name for table in before} - {table.name for table in found}:
                    # PostgreSQL may lack a table that one transaction drops and makes again.
                    found = tables_of(source)
                self._found[source.backend] = [_marked(table, self._reasons) for table in found]

    def _run(self) -> None:
        while self._goes_on:
            self.look()
            if time.monotonic() >= self._store_at:
                self._store()
            self._over.wait(_LOOK)
        # A mirror that runs while no service does knows what the bucket has.
        self._is_last = not self._said and not self._store_at
        if self._goes_on:
            self.look()
            if not self._said:
                self._store()

    @property
    def _goes_on(self) -> bool:
        if self._is_last:
            return self._owned.is_held
        return self._owned.is_ours and not self._over.is_set()

    def _store(self) -> None:
        """Stores new schemas, and the ends of tables that are gone."""
        self._store_at = time.monotonic() + _AGAIN
        with self._warning("schemas of tables cannot be stored now; changes flow"):
            if all([self._store_of(*each) for each in self._found.copy().items()]):  # noqa: C419
                self._store_at = 0.0

    def _store_of(self, backend: str, tables: list[FollowedTable]) -> bool:
        """Whether it came to the end."""
        bucket, stored = self._buckets[backend], self._stored.get(backend)
        schemas = [each.schema for each in tables]
        for start in range(0, len(schemas), _TOGETHER):
            if not self._goes_on:
                return False
            some = schemas[start : start + _TOGETHER]
            bucket.put(*some)
            if stored is not None:
                stored.update(each.name for each in some)
        names = {each.name for each in schemas}
        if stored is None:
            bucket.keep(*names)
            stored = self._stored[backend] = names.copy()
        for name in stored - names:
            if not self._goes_on:
                return False
            bucket.remove(name)
            stored.discard(name)
        return True

    @contextmanager
    def _warning(self, what: str) -> Iterator[None]:
        """Logs an error, once until it passes or is another."""
        try:
            yield
            self._said.pop(what, None)
        except Exception as error:
            text = str(PenstockError.of(error, "the look at the tables"))
            if self._said.get(what) != text:
                log.warning(what, error=text)
            self._said[what] = text


def _marked(table: FollowedTable, reasons: Mapping[tuple[str, str], str]) -> FollowedTable:
    name = table.schema.schema, table.schema.table
    reason = reasons.get((table.source.backend, ".".join(name)), "")
    return replace(table, schema=replace(table.schema, suspended=reason))
