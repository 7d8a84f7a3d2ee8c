"""Databases into one, by `penstock run`: each rate beside that of PostgreSQL's own subscription on
the same backlog, or of COPY from server to server, in one run.

A rate counts from 15 % of the backlog to 95 %: how both begin and end is left out. Afterwards both
targets have what the source has, or there is no result.
"""

import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import psutil
import psycopg
from rich.console import Console
from rich.table import Table

from tests.servers import Database, Postgres

from . import table
from .latency import percentiles
from .pipeline import Running, run_file
from .stream import wait_for

# The target's connections and files; a source has the rest.
_SERVER = {
    "shared_buffers": "512MB", "max_wal_size": "8GB", "track_commit_timestamp": True,
    "max_connections": 300, "max_wal_senders": 100, "max_replication_slots": 100,
}  # fmt: skip
_SOURCE = {"track_commit_timestamp": True, "max_wal_size": "1GB"}
_FIRST, _LAST = 0.15, 0.95
_LOOK = 0.05  # seconds between two looks at how far it is
_PATIENCE = 1800.0
# Rows of a history have further columns.
_SUM = "SELECT count(*), sum(hashtextextended(ROW({})::text, 0)) FROM bench"
_CURRENT = " WHERE kvsz_end = '9999-01-01Z'"
_COMMITTED = (
    "SELECT {} id, extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 FROM bench"
    " WHERE id > {}"
)
# Changes a second and their transactions: of one source whose delay is measured, and of many.
_RATE, _SIZE = 1000, 1
_SOURCES, _EACH, _EACH_SIZE = 50, 200, 10
# A server decodes its whole log once for each database that is followed: fifty in one server are
# 1.5 cores for that alone.
_SERVERS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Rows or changes a second, into a table of so many `rows`; `reference`: of PostgreSQL's own
    means in the same run."""

    what: str
    rows: int
    rate: float
    reference: float

    @property
    def ratio(self) -> float:
        """Of the reference's rate."""
        return self.rate / self.reference


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Milliseconds from the commit at a source to that at the target. `late`: seconds of the worst
    writer after its schedule; `behind`: seconds from the last commit until all was there; `cores`:
    that both servers and penstock kept busy meanwhile, the writers among them."""

    what: str
    changes: int
    p50: float
    p99: float
    max: float
    late: float
    behind: float
    cores: float


class Pair:
    """A source, the target of penstock (`ours`) and that of a subscription (`theirs`), all with the
    same rows."""

    def __init__(
        self,
        folder: Path,
        databases: tuple[Database, Database, Database],
        servers: list[Postgres],
        *,
        is_history: bool,
    ) -> None:
        self._pids = [server.pid for server in servers]
        self.source, self._ours, self._theirs = databases
        self._current = _CURRENT if is_history else ""
        self._name = self._ours.name  # of slots, which a server has once
        options = {"type": "history" if is_history else "clone", "create": True}
        self._file = {
            "backends": [
                {"name": "shop", **table.backend(self.source, self._name)}
            ],
            "sink": {
                "type": "postgres", "connection": self._ours.url,
                "map": [{"backend": "shop", "tables": {"bench": options}}],
            },
        }  # fmt: skip
        self._folder = folder
        self._markers = 0
        for database in databases if not is_history else (self.source, self._theirs):
            table.create(database)

    def load(self, rows: int, psql: Path) -> Compared:
        """Writes rows, and loads them into both targets."""
        table.write_backlog(self.source, rows=rows)
        self.source.execute("VACUUM ANALYZE bench")
        self._theirs.execute("CHECKPOINT")
        size = _size(self.source)
        with _copying(psql, self.source, self._theirs):
            reference = _rate(lambda: _size(self._theirs) / size, rows)
        self._theirs.execute("CHECKPOINT")
        with self._penstock() as running:
            rate = _rate(lambda: _size(self._ours) / size, rows)
            live = "SELECT state FROM penstock.ledger"
            _wait(lambda: self._ours.execute(live) == [("live",)], running.check)
        self._compare()
        for database in (self._ours, self._theirs):
            database.execute("ANALYZE bench")
        self._theirs.execute("SELECT setval('bench_id_seq', 1)")
        slot = f"{self._name}_theirs"
        self.source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (slot,))
        self._theirs.execute(
            f"CREATE SUBSCRIPTION {self._name} CONNECTION '{self.source.url}' PUBLICATION"
            f" {table.PUBLICATION} WITH (create_slot = false, slot_name = '{slot}',"
            " copy_data = false, enabled = false)"
        )
        return Compared(what="load", rows=rows, rate=rate, reference=reference)

    def drain(self, what: Literal["inserts", "mix"], changes: int, rows: int) -> Compared:
        """Writes a backlog, which both apply one after the other."""
        begin = _end_of_log(self.source)
        write = table.write_backlog if what == "inserts" else table.write_mix
        write(self.source, rows=changes)
        end = _end_of_log(self.source)
        marker = self._mark()
        rates = []
        for program, target, asked in (
            (self._penstock(), self._ours, "SELECT place FROM penstock.ledger"),
            (self._subscription(), self._theirs, "SELECT remote_lsn"
             " FROM pg_replication_origin_status"
             " WHERE local_id = (SELECT roident FROM pg_replication_origin WHERE roname = 'pg_' ||"
             f" (SELECT oid FROM pg_subscription WHERE subname = '{self._name}'))"),
        ):  # fmt: skip
            with program as running, psycopg.connect(target.url, autocommit=True) as connection:

                def share(connection: Any = connection, asked: str = asked) -> float:
                    found = connection.execute(asked.encode()).fetchone()
                    return (_lsn(found[0] if found else None) - begin) / (end - begin)

                rates.append(_rate(share, changes))
                _wait(lambda: _has(target, marker), running.check)  # noqa: B023
        self._compare()
        what_ = "history of the mix" if self._current else what
        return Compared(what=what_, rows=rows, rate=rates[0], reference=rates[1])

    def delay(self, seconds: int, warm_up: int) -> Delay:
        """Of single rows at a steady rate."""
        writer = table.Writer(self.source, rate=_RATE, per_transaction=_SIZE)
        with self._penstock() as running:
            marker = self._mark()
            _wait(lambda: _has(self._ours, marker), running.check)
            _written([writer], warm_up)
            since = self.source.execute("SELECT max(id) FROM bench")[0][0]
            with _Busy(*self._pids, running.pid) as busy:
                _written([writer], seconds)
                ended, marker = time.monotonic(), self._mark()
                _wait(lambda: _has(self._ours, marker), running.check)
        there = dict(self._ours.execute(_COMMITTED.format("", since)))
        taken = [there[id] - at for id, at in self.source.execute(_COMMITTED.format("", since))]
        what = f"{_RATE:,} rows/s in transactions of {_SIZE}"
        return _delay(what, taken, [writer], busy, ended)

    def close(self) -> None:
        """Lets the databases be dropped."""
        for statement in ("DISABLE", "SET (slot_name = NONE)"):
            self._theirs.execute(f"ALTER SUBSCRIPTION {self._name} {statement}")
        self._theirs.execute(f"DROP SUBSCRIPTION {self._name}")

    def _penstock(self) -> AbstractContextManager[Running]:
        return run_file(self._folder, self._file)

    @contextmanager
    def _subscription(self) -> Iterator["Pair"]:
        self._theirs.execute(f"ALTER SUBSCRIPTION {self._name} ENABLE")
        yield self
        self._theirs.execute(f"ALTER SUBSCRIPTION {self._name} DISABLE")

    def check(self) -> None:
        """A subscription says nothing."""

    def _mark(self) -> int:
        """The id of a row that comes last."""
        self._markers -= 1
        self.source.execute("INSERT INTO bench (id) VALUES (%s)", (self._markers,))
        return self._markers

    def _compare(self) -> None:
        names = self.source.execute(
            "SELECT string_agg(attname, ', ' ORDER BY attnum) FROM pg_attribute"
            " WHERE attrelid = 'bench'::regclass AND attnum > 0"
        )[0][0]
        wanted = self.source.execute(_SUM.format(names))
        for database, which in ((self._ours, self._current), (self._theirs, "")):
            if database.execute(_SUM.format(names) + which) != wanted:
                raise RuntimeError(f"{database.name} does not equal its source")


def consolidate(
    folder: Path, *, rows: int, seconds: int, warm_up: int, version: int
) -> Iterator[Compared | Delay]:
    """All figures, one after the other: backlogs of `rows` changes into tables of as many rows, and
    of a tenth."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(Postgres(version=version, settings=_SERVER)) for _ in range(2)
        ]
        psql = servers[0].bin / "psql"
        for size, is_history in ((rows, False), (rows // 10, False), (rows // 10, True)):
            with _pair(folder, servers, is_history=is_history) as pair:
                load = pair.load(size, psql)
                if is_history:
                    yield pair.drain("mix", rows, size)
                    continue
                if size == rows:
                    yield load
                yield pair.drain("inserts", rows, size)
                yield pair.drain("mix", rows, size)
                if size == rows:
                    yield pair.delay(seconds, warm_up)
        yield _many(folder, servers[1], seconds, warm_up)


@contextmanager
def _pair(folder: Path, servers: list[Postgres], *, is_history: bool) -> Iterator[Pair]:
    source, target = servers
    with source.database() as shop, target.database() as ours, target.database() as theirs:
        own = Path(tempfile.mkdtemp(dir=folder))
        pair = Pair(own, (shop, ours, theirs), servers, is_history=is_history)
        yield pair
        pair.close()


def _many(folder: Path, target: Postgres, seconds: int, warm_up: int) -> Delay:
    """Many sources into one table."""
    with ExitStack() as stack:
        sources = [
            stack.enter_context(Postgres(version=target.version, settings=_SOURCE))
            for _ in range(_SERVERS)
        ]
        shops = [
            stack.enter_context(sources[number % _SERVERS].database()) for number in range(_SOURCES)
        ]
        ours = stack.enter_context(target.database())
        for database in (*shops, ours):
            table.create(database)
        ours.execute(
            "ALTER TABLE bench DROP CONSTRAINT bench_pkey; ALTER TABLE bench ADD sid text,"
            " ADD PRIMARY KEY (sid, id)"
        )
        file = {
            "backends": [{
                "name": "shops", "type": "postgres", "publication": table.PUBLICATION,
                "sources": [
                    {"sid": str(number), "connection": shop.url}
                    for number, shop in enumerate(shops)
                ],
            }],
            "sink": {
                "type": "postgres", "connection": ours.url,
                "map": [{"backend": "shops", "tables": {"bench": None}}],
            },
        }  # fmt: skip
        with run_file(Path(tempfile.mkdtemp(dir=folder)), file) as running:
            live = "SELECT count(*) FROM penstock.ledger WHERE state = 'live'"
            _wait(lambda: _exists(ours) and ours.execute(live) == [(_SOURCES,)], running.check)
            writers = [table.Writer(shop, rate=_EACH, per_transaction=_EACH_SIZE) for shop in shops]
            _written(writers, warm_up)
            since = max(shop.execute("SELECT max(id) FROM bench")[0][0] for shop in shops)
            _mark(shops, ours, -2, running.check)  # how it begins is left out
            with _Busy(*(each.pid for each in sources), target.pid, running.pid) as busy:
                _written(writers, seconds)
                ended = time.monotonic()
                _mark(shops, ours, -1, running.check)
        there = {(sid, id): at for sid, id, at in ours.execute(_COMMITTED.format("sid,", since))}
        taken = [
            there[str(number), id] - at
            for number, shop in enumerate(shops)
            for id, at in shop.execute(_COMMITTED.format("", since))
        ]
    what = f"{_SOURCES} sources of {_EACH} rows/s in transactions of {_EACH_SIZE}"
    return _delay(what, taken, writers, busy, ended)


def _mark(shops: list[Database], ours: Database, id: int, alive: Callable[[], None]) -> None:
    """Writes one row more in each, and waits until it has all of them."""
    for shop in shops:
        shop.execute("INSERT INTO bench (id) VALUES (%s)", (id,))
    found = f"SELECT count(*) FROM bench WHERE id = {id}"
    _wait(lambda: ours.execute(found) == [(len(shops),)], alive)


def _written(writers: list[table.Writer], seconds: int) -> None:
    for writer in writers:
        writer.late = 0.0
        writer.start(seconds)
    for writer in writers:
        writer.wait()


def _rate(share: Callable[[], float], rows: int) -> float:
    """Rows a second, by how large a share of them is there."""
    samples: list[tuple[float, float]] = []
    deadline = time.monotonic() + _PATIENCE
    while not samples or samples[-1][1] < _LAST:
        found = share()
        if found >= _FIRST and (not samples or found > samples[-1][1]):
            samples.append((time.monotonic(), found))
        if time.monotonic() > deadline:
            raise TimeoutError(f"{found:.0%} is there after {_PATIENCE:.0f} s")
        time.sleep(_LOOK)
    if len(samples) == 1:
        raise RuntimeError(f"{rows} rows are too few to measure a rate")
    (begun, first), (ended, last) = samples[0], samples[-1]
    return rows * (last - first) / (ended - begun)


class _Busy:
    """How many cores the trees of some processes kept busy, of those that lived all the time."""

    def __init__(self, *pids: int) -> None:
        self._trees = [psutil.Process(pid) for pid in pids]
        self.ended = self.cores = 0.0

    def __enter__(self) -> Self:
        self._begun, self._before = time.monotonic(), self._spent()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended, after = time.monotonic(), self._spent()
        spent = sum(after[pid] - self._before.get(pid, 0.0) for pid in after)
        self.cores = spent / (self.ended - self._begun)

    def _spent(self) -> dict[int, float]:
        found = {}
        for tree in self._trees:
            for process in (tree, *tree.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    found[process.pid] = sum(process.cpu_times()[:2])
        return found


def _delay(
    what: str, seconds: list[float], writers: list[table.Writer], busy: _Busy, ended: float
) -> Delay:
    return Delay(
        what=what, changes=len(seconds), late=max(writer.late for writer in writers),
        behind=busy.ended - ended, cores=busy.cores,
        **percentiles([each * 1000 for each in seconds]),
    )  # fmt: skip


@contextmanager
def _copying(psql: Path, source: Database, target: Database) -> Iterator[None]:
    """COPY from server to server."""
    commands = [
        [str(psql), "-qc", f"COPY bench {how}", database.url]
        for database, how in ((source, "TO STDOUT"), (target, "FROM STDIN"))
    ]
    with subprocess.Popen(commands[0], stdout=subprocess.PIPE) as reading:
        with subprocess.Popen(commands[1], stdin=reading.stdout) as writing:
            yield
        if reading.wait() or writing.returncode:
            raise RuntimeError("COPY from server to server failed")


def _wait(done: Callable[[], bool], alive: Callable[[], None]) -> None:
    wait_for(done, timeout=_PATIENCE, alive=alive, every=_LOOK)


def _has(database: Database, id: int) -> bool:
    return bool(database.execute("SELECT 1 FROM bench WHERE id = %s", (id,)))


def _exists(database: Database) -> bool:
    return database.execute("SELECT to_regclass('penstock.ledger')") != [(None,)]


def _size(database: Database) -> int:
    return int(database.execute("SELECT coalesce(pg_relation_size(to_regclass('bench')), 0)")[0][0])


def _end_of_log(database: Database) -> int:
    return _lsn(database.execute("SELECT pg_current_wal_insert_lsn()")[0][0])


def _lsn(text: str | None) -> int:
    """Of `0/16B3748` or a place in the ledger; 0 of none."""
    high, _, low = (text or "0/0").partition(":")[0].partition("/")
    return (int(high, 16) << 32) + int(low, 16)


def show_consolidation(console: Console, all_: list[Compared | Delay]) -> None:
    """Rates, then delays."""
    rates = Table(title="into PostgreSQL, 15 to 95 % of a backlog", title_justify="left")
    for name in ("what", "rows in the target", "penstock, /s", "PostgreSQL itself, /s", "ratio"):
        rates.add_column(name, justify="left" if name == "what" else "right")
    delays = Table(title="from commit to commit", title_justify="left")
    for name in (
        "load",
        "changes",
        "p50 ms",
        "p99 ms",
        "max ms",
        "writer late s",
        "behind s",
        "cores",
    ):
        delays.add_column(name, justify="left" if name == "load" else "right")
    for one in all_:
        match one:
            case Compared():
                rates.add_row(
                    one.what, f"{one.rows:,}", f"{one.rate:,.0f}", f"{one.reference:,.0f}",
                    f"{one.ratio:.2f}",
                )  # fmt: skip
            case Delay():
                delays.add_row(
                    one.what, f"{one.changes:,}", f"{one.p50:.0f}", f"{one.p99:.0f}",
                    f"{one.max:.0f}", f"{one.late:.2f}", f"{one.behind:.1f}", f"{one.cores:.2f}",
                )  # fmt: skip
    console.print(rates)
    console.print(delays)
