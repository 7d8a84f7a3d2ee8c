"""A copy of tables, made of snapshots and of the changes after them, and nothing else.

Each table is loaded from a snapshot; then the stream's changes are applied. What makes a copy wrong
in silence (expired messages, a stream that was made again, columns that changed) leads to another
snapshot of the table. A table that cannot be had for now is set aside: it is loaded anew later, and
leaves the others running.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import structlog

from penstock.consumer.mirror.bootstrap import Bootstrap, NoSnapshot
from penstock.consumer.mirror.followed import Dropped
from penstock.consumer.mirror.published_tables import Catalog, PublishedTable, chosen
from penstock.consumer.mirror.steps import TableRefused
from penstock.consumer.mirror.tailing import LiveTables, ReplicaStatus
from penstock.consumer.mirror.target import MirrorTarget, open_target
from penstock.consumer.mirror.target_table import TargetTable
from penstock.model.errors import LeaseLost, Malformed, PenstockError, SettingsError, Unavailable
from penstock.nats.api import JetStream
from penstock.nats.connection import Connection
from penstock.nats.settings import NatsSettings
from penstock.process.backoff import delays
from penstock.process.closing import Closes
from penstock.process.notebook import Drawn
from penstock.tables.database import TableDatabase

_LOOK = 2.0  # seconds between looks at the bucket of schemas and at the stream's end

log = structlog.get_logger("penstock")


class Replica(Drawn, Closes):
    """Keeps `tables` (all that are published, if none are named) in a `target`, the URL of a
    database or a `TableDatabase`. `server` is the URL of a NATS server, or several by commas, or
    the settings of a connection. `init` is the stream of the snapshots; `dropped` says what becomes
    of columns that the source drops. With the name of a `pipeline`, only its tables are known.
    Constructing one does no I/O; not for several threads.

    Everything raises SettingsError (the operator must change something), LeaseLost (another replica
    has the target) and Unavailable, after which `run` waits and goes on. What concerns one table
    (also Rejected: no snapshot is to be had; Malformed) is raised where no other is live, and at
    the end of `once`: until then the table is set aside, and loaded anew later.
    """

    def __init__(
        self,
        server: str | NatsSettings,
        target: str | TableDatabase,
        *,
        tables: Sequence[str] | None = None,
        init: str = "INIT",
        dropped: Dropped = "drop",
        pipeline: str = "",
    ) -> None:
        if isinstance(server, str):
            server = NatsSettings.model_validate({"url": server})
        self.status = ReplicaStatus()
        self.copies: Sequence[TargetTable] = ()  # as they were left by `run`
        self._init = init
        self._target = open_target(target) if isinstance(target, str) else MirrorTarget(target)
        self._names = tables  # None: all
        self._connection = Connection(server, "penstock mirror")
        self._published = Catalog(self._connection, pipeline)
        self._live = LiveTables(server, self._connection, self._target, dropped=dropped)
        self._loading: dict[str, Bootstrap] = {}  # by the table's key, as `_set_aside`
        self._set_aside = SetAside()  # of `_loading`
        self._missing: dict[str, SettingsError] = {}  # of `_names`
        self._looked_at = -_LOOK  # monotonic seconds
        self._is_open = False  # connected, since the last `close`
        self._has_begun = False  # what was reached once is waited for

    def __repr__(self) -> str:
        return f"<Replica in {type(self._target.database).__name__}>"

    def facts(self) -> Mapping[str, Any]:
        """What Jupyter shows."""
        status = self.status
        return {
            "tables": status.tables,
            "loading": ", ".join(f"{each.name} ({each.rows} rows)" for each in status.loading),
            "snapshots loaded": status.snapshots,
            "changes applied": status.changes,
            "messages behind": status.behind,
            "seconds behind": round(status.lag, 1),
        }

    @property
    def tables(self) -> Sequence[TargetTable]:
        """The live tables, as far as they are."""
        return self._live.tables

    def count(self, table: TargetTable) -> int:
        """How many rows the target has of a table."""
        return self._target.count(table)

    def run(
        self,
        *,
        once: bool = False,
        is_stopped: Callable[[], bool] = lambda: False,
        report: Callable[[ReplicaStatus], None] = lambda _: None,
    ) -> None:
        """Runs until it `is_stopped`; `once`: until all that was published before is applied.
        `report` is called after each step."""
        end, loads = self._end() if once else 0, self.status.snapshots
        waits = delays(limit=5.0)
        while not is_stopped():
            try:
                count = self.step(0.5)
                waits = delays(limit=5.0)
            except Unavailable as error:
                if not self._has_begun:
                    raise
                log.warning("the mirror waits", error=str(error))
                self.close()
                time.sleep(next(waits))
                continue
            report(self.status)
            self.copies = self.tables
            if once and len(self._loading) == len(self._set_aside.errors):
                if self.status.snapshots != loads:  # the stream may have been unknown before
                    end, loads = max(end, self._end()), self.status.snapshots
                end = max([end, *(table.sequence for table in self.tables)])
                if self._live.sequence >= end or (not count and self._live.is_read):
                    if self._set_aside.errors or self._missing:
                        raise self._refusal()
                    return

    def step(self, wait: float = 0.5) -> int:
        """Loads and applies what has come, in a transaction or a few; waits up to `wait` seconds
        for something. How many changes were applied."""
        self._open()
        self._look()
        for name in list(self._loading):
            self._load_more(name, 0.05 if self.tables else min(wait, 0.2))
        has_failed = self._set_aside.errors or self._missing
        if has_failed and not self.tables and len(self._set_aside.errors) == len(self._loading):
            raise self._refusal()
        self._has_begun, count = True, 0
        if self.tables:
            count = self._live.tail(0.0 if self._loading else wait, self.status)
            self._reload()
        self.status.loading = [each.progress for each in self._loading.values()]
        self.status.tables = len(self.tables)
        return count

    def close(self) -> None:
        """Disconnects from everything; the next step connects again."""
        self._loading.clear()
        self._set_aside.errors.clear()
        for each in (self._live, self._target, self._connection):
            each.close()
        self._is_open = False

    def _load_more(self, name: str, wait: float) -> None:
        """Loads what has come of one table. One that cannot be had leaves the others running."""
        if name in self._set_aside.errors:
            if not self._set_aside.is_due(name):
                return
            del self._set_aside.errors[name]
            self._load(self._loading[name].announced, self._loading[name].table)
        bootstrap = self._loading[name]
        try:
            if (table := bootstrap.step(wait)) is not None:
                self._live.begin(table)
        except Exception as error:
            if isinstance(error, (LeaseLost, Unavailable)) and not isinstance(error, NoSnapshot):
                raise
            if needs_another(error):
                bootstrap.give_up()
            self._refuse(name, error)
            return
        if table is not None:
            del self._loading[name]
            self.status.snapshots += 1

    def _refuse(self, name: str, error: Exception) -> None:
        self._loading[name].progress.problem = str(self._set_aside.add(name, error))

    def _refusal(self) -> PenstockError:
        """What is wrong with the tables that are not mirrored, as one error."""
        failed: dict[str, PenstockError] = {**self._set_aside.errors, **self._missing}
        kinds = [type(error) for error in failed.values()]
        of_users = any(issubclass(kind, SettingsError) for kind in kinds)
        text = "; ".join(f"{name}: {failed[name]}" for name in sorted(failed))
        return (SettingsError if of_users else kinds[0])(f"not mirrored: {text}", "consumer")

    def _end(self) -> int:
        """The last sequence of the stream, as it is now; 0 if no table is live."""
        self._open()
        stream = next((table.stream for table in self.tables), "")
        found = JetStream(self._connection).stream(stream) if stream else None
        return int(found["state"]["last_seq"]) if found else 0

    def _open(self) -> None:
        if self._is_open:
            return
        self._connection.open()
        self._looked_at = -_LOOK
        self._published.read()
        wanted = self._wanted()
        stored = {table.name: table for table in self._target.open({each.key for each in wanted})}
        for each in wanted:
            table = stored.get(each.key)
            if table is None or table.state != "live":
                self._load(each, table)
                continue
            try:
                self._live.begin(table)
            except SettingsError as error:  # of another stream
                self._load(each, table)
                self._refuse(each.key, error)
        self._is_open = True
        self._live.find_changed(self._published.tables)
        self._live.find_hole(self.status)
        self._reload()

    def _wanted(self) -> list[PublishedTable]:
        if self._names is None:
            if not self._published.tables:
                raise SettingsError(
                    "no table is published", "consumer.no-tables", hint="start the pipeline first"
                )
            tables = list(self._published.tables.values())
            return [each for each in tables if not each.layout] or tables
        wanted, missing = chosen(self._names, self._published.tables)
        for name in missing.keys() - self._missing.keys():
            log.warning("a table is left as it is", table=name, error=str(missing[name]))
        self._missing = missing
        return wanted

    def _load(self, announced: PublishedTable, table: TargetTable | None = None) -> None:
        """A table whose rows are to come. `table`: as it is in the target."""
        if table is None:
            table = announced.mirrored()
        self._loading[announced.key] = Bootstrap(
            self._connection, self._init, announced, self._target, table,
            is_patient=bool(self.tables),
        )  # fmt: skip

    def _reload(self) -> None:
        """Only a snapshot makes their rows right. Readers see the old rows meanwhile."""
        for each in self._live.tables_to_reload(self._published.tables):
            name = each.table.name
            self._load(self._published.tables[name], each.table)
            # The next snapshot is right after a message that nobody can read, and hardly after a
            # value that the target refuses.
            is_malformed = isinstance(each.refusal, Malformed)
            if each.refusal and (self._set_aside.has_failed(name) or not is_malformed):
                self._refuse(name, each.refusal)
                continue
            if is_malformed:
                self._set_aside.note(name)
            log.warning("a table is loaded again", table=name, reason=each.problem)
            if each.newer:
                self._loading[name].follow(each.newer)

    def _look(self) -> None:
        """New tables, dropped ones, and how far the stream is; from time to time."""
        if (now := time.monotonic()) - self._looked_at < _LOOK:
            return
        self._looked_at = now
        for bootstrap in self._loading.values():
            bootstrap.look()
        if self._published.is_outdated:
            self._published.read()
            self._live.find_changed(self._published.tables)
            known = {table.name for table in self.tables} | self._loading.keys()
            for each in self._wanted() if self._published.tables else ():
                if each.key not in known:
                    self._load(each)
        with suppress(SettingsError):
            self._live.find_hole(self.status)
        self._live.find_newer_snapshots(self._init, self._published.tables)
        self._reload()


_REFUSED, _LONGEST = 60.0, 3600.0  # seconds until a table that failed is asked for again


class SetAside:
    """Each is due after a minute, and after twice the time where another snapshot did not help,
    either. `errors`: of those that are set aside."""

    def __init__(self) -> None:
        self.errors: dict[str, PenstockError] = {}
        # When each table failed last (monotonic seconds), and after how many it is due.
        self._failures: dict[str, tuple[float, float]] = {}

    def add(self, name: str, error: Exception) -> PenstockError:
        """Sets a table aside, and returns the error as one of ours."""
        ours = (
            error
            if isinstance(error, PenstockError)
            else Malformed(type(error).__name__, "consumer")
        )
        pause = _REFUSED
        if needs_another(error) and self.has_failed(name):
            pause = max(pause, min(2 * self._failures[name][1], _LONGEST))
        self.errors[name], self._failures[name] = ours, (time.monotonic(), pause)
        log.warning("a table is set aside", table=name, error=str(ours), again_in=pause)
        return ours

    def note(self, name: str) -> None:
        """The table failed, and is loaded again at once."""
        self._failures[name] = time.monotonic(), 0.0

    def has_failed(self, name: str) -> bool:
        at, pause = self._failures.get(name, (-math.inf, 0.0))
        return time.monotonic() - at < 2 * pause + _REFUSED

    def is_due(self, name: str) -> bool:
        at, pause = self._failures[name]
        return time.monotonic() - at >= pause


def needs_another(error: Exception) -> bool:
    """Whether another snapshot may help; else the same one will do, once the target is mended."""
    return isinstance(error, TableRefused) or not isinstance(error, SettingsError)
