"""`penstock demo --consolidate` and `--lake`: the databases of two shops flow into one, or into
Delta tables, while the shops are open, and `penstock verify` compares them in the end. One server
has all databases.
"""

import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import psycopg
from rich.console import Console

from penstock.demo.pipeline import DemoFolder, DemoPipeline
from penstock.demo.run import KEPT, START, Options, Report, show_lines
from penstock.demo.sources.postgres import Postgres, PostgresWriter, execute, shop
from penstock.demo.workload import Workload
from penstock.model.errors import SettingsError
from penstock.process.plugins import to_install

_SHOPS = ("eu", "us")
_TARGET = "all_shops"
_KEYS = shop.KEYS | shop.MIRRORED
_LIVE = "SELECT count(*) FROM penstock.ledger WHERE state = 'live'"


class Database:
    """Where the tables go: one database, whose key has the name of the shop, too."""

    called = "one database"
    options: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # of tables of the map

    def __init__(self, folder: Path, server: Postgres) -> None:
        self._server = server
        server.execute(f"CREATE DATABASE {_TARGET}")
        self.url = server.url_of(_TARGET)
        self.variables = {f"{_TARGET.upper()}_URL": self.url}
        execute(self.url, shop.CREATE)
        for table, key in _KEYS.items():
            execute(
                self.url,
                f"CREATE TABLE all_{table} AS SELECT ''::text AS sid, * FROM {table} WITH NO DATA;"
                f"DROP TABLE {table} CASCADE;"
                f"ALTER TABLE all_{table} ADD PRIMARY KEY (sid, {', '.join(key)})",
            )

    @property
    def sink(self) -> dict[str, Any]:
        return {"type": "postgres", "connection": f"${{{_TARGET.upper()}_URL}}"}

    def live(self) -> int:
        """How many tables are loaded."""
        with suppress(psycopg.errors.UndefinedTable):
            return int(execute(self.url, _LIVE)[0][0])
        return 0

    def lines(self) -> list[str]:
        """What is there, for people."""
        return []

    def ways(self) -> list[str]:
        """How to look at it while everything stays up."""
        return [f"psql {self.url}"]


class Lake(Database):
    """Delta tables in a folder, which penstock makes."""

    called = "Delta tables"
    # All but `sizes`, which has arrays of several dimensions: no column of Delta holds them.
    options: ClassVar = {
        "order_items": {
            "columns": ["order_id", "line", "sku", "quantity", "price", "weight", "remark"]
        }
    }

    def __init__(self, folder: Path, server: Postgres) -> None:
        self._duckdb, self._deltalake = imported("duckdb"), imported("deltalake")
        self._folder, self.variables = folder / "lake", {}

    @property
    def sink(self) -> dict[str, Any]:
        location = f"{self._folder}/{{table}}"
        return {"type": "delta", "location": location, "sid_column": "sid", "every": "1s"}

    def live(self) -> int:
        with (
            suppress(sqlite3.OperationalError),
            closing(
                sqlite3.connect(f"file:{self._folder}/_penstock.db?mode=ro", uri=True)
            ) as ledger,
        ):
            return int(ledger.execute(_LIVE.replace(".", "_")).fetchone()[0])
        return 0

    def lines(self) -> list[str]:
        found = []
        for table in _KEYS:
            delta = self._deltalake.DeltaTable(str(self._folder / f"all_{table}"))
            with self._duckdb.connect() as connection:
                connection.register("lake", delta.to_pyarrow_dataset())
                shown = connection.execute("SELECT sid, count(*) FROM lake GROUP BY 1 ORDER BY 1")
                rows = ", ".join(f"{count:,} of {sid}" for sid, count in shown.fetchall())
            found.append(f"  all_{table}, version {delta.version()}: {rows}")
        return ["DuckDB counts the rows of the Delta tables:", *found]

    def ways(self) -> list[str]:
        return [f"the Delta tables are in {self._folder}"]


def imported(name: str) -> Any:
    """A module of the extra `demo-lake`. Raises SettingsError."""
    try:
        return import_module(name)
    except ImportError:
        raise SettingsError(
            f"{name} is not installed", "process.module-missing",
            hint=f"pip install '{to_install('demo-lake')}'",
        ) from None  # fmt: skip


def run(
    options: Options, console: Console, report: Report = lambda _: None,
    into: type[Database] = Database,
) -> int:  # fmt: skip
    """0 when each table has what those of both shops have, else 1. Raises Unavailable."""
    told = Console(quiet=True) if options.quiet else console
    with DemoFolder() as folder, ExitStack() as stack:
        server = stack.enter_context(Postgres())
        for name in _SHOPS:
            server.execute(f"CREATE DATABASE {name}")
            execute(server.url_of(name), shop.CREATE)
        target = into(folder.path, server)
        pipeline = _pipeline(folder.path, server, target)
        stack.callback(pipeline.kill)
        show_lines(
            told, f"{len(_KEYS)} tables of {len(_SHOPS)} shops are loaded into {target.called}"
        )
        pipeline.start()
        count = len(_SHOPS) * len(_KEYS)
        pipeline.wait_for("loading", lambda: pipeline.ready() and target.live() == count, START)
        show_lines(told, f"the shops are open for {options.seconds:.0f} s")
        rate = options.rate / len(_SHOPS)
        writers = [
            PostgresWriter(server.url_of(name), rate=rate, seed=seed)
            for seed, name in enumerate(_SHOPS, 1)
        ]
        changes = _trade(options, writers, pipeline)
        verified = subprocess.run(  # noqa: S603 - ourselves
            [sys.executable, "-m", "penstock", "verify", str(pipeline.file)],
            env={**os.environ, **pipeline.variables}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        differs = verified.returncode != 0
        show_lines(console if differs else told, (verified.stdout + verified.stderr).rstrip())
        written = f"{changes:,} changes were committed by two shops"
        if not differs:
            show_lines(told, *target.lines())
            show_lines(console, f"VERDICT: ok. {written}; their common tables equal theirs.")
            if options.keep:
                _keep(console, server, target, writers, pipeline)
        folder.is_kept = pipeline.stop() != 0 or differs
        report({"ok": not folder.is_kept, "committed": changes, "shops": list(_SHOPS),
                "log": str(pipeline.log_file) if folder.is_kept else ""})  # fmt: skip
        if not folder.is_kept:
            return 0
        if differs:
            show_lines(
                console, f"VERDICT: FAILED. {written}; their common tables differ from theirs."
            )
        show_lines(console, f"the pipeline's log: {pipeline.log_file}")
        return 1


def _pipeline(folder: Path, server: Postgres, target: Database) -> DemoPipeline:
    variables = {f"{name.upper()}_URL": server.url_of(name) for name in _SHOPS}
    document = {
        "backends": [{
            "name": "shops", "type": "postgres",
            "sources": [{"sid": sid, "connection": f"${{{sid.upper()}_URL}}"} for sid in _SHOPS],
        }],
        "sink": {
            **target.sink,
            "map": [{
                "backend": "shops",
                "tables": {
                    table: {"target": f"all_{table}", **target.options.get(table, {})}
                    for table in _KEYS
                },
            }],
        },
    }  # fmt: skip
    return DemoPipeline(folder, document, variables | target.variables)


def _trade(options: Options, writers: Sequence[PostgresWriter], pipeline: DemoPipeline) -> int:
    """Both shops write, until their time is over or Ctrl-C; how many changes."""
    ends_at = time.monotonic() + options.seconds
    with _open_shops(writers, options.rate) as shops, suppress(KeyboardInterrupt):
        pipeline.wait_for(
            "trading",
            lambda: time.monotonic() >= ends_at or not all(one.running for one in shops),
        )
    return sum(one.ledger.count for one in shops)


@contextmanager
def _open_shops(writers: Sequence[PostgresWriter], rate: float) -> Iterator[list[Workload]]:
    """The shops, which write so many changes a second together while this is open."""
    shops = [Workload(writer, rate / len(writers)) for writer in writers]
    for one in shops:
        one.start()
    try:
        yield shops
    finally:
        for one in shops:
            one.stop()


def _keep(
    console: Console, server: Postgres, target: Database, writers: Sequence[PostgresWriter],
    pipeline: DemoPipeline,
) -> None:  # fmt: skip
    """Until Ctrl-C; says how to reach everything."""
    variables = " ".join(f"{name}={value}" for name, value in pipeline.variables.items())
    with suppress(KeyboardInterrupt), _open_shops(writers, KEPT) as shops:
        show_lines(
            console,
            "",
            f"Everything stays up until Ctrl-C; the shops write {KEPT:.0f} changes a second:",
            *(f"  psql {server.url_of(name)}" for name in _SHOPS),
            *(f"  {way}" for way in target.ways()),
            f"  {pipeline.ops}/ui/#/map, the map of tables; the dashboard's token is"
            f" {pipeline.token}",
            # Its file names the servers by variables.
            f"  {variables} penstock verify {pipeline.file}",
        )
        pipeline.wait_for("trading", lambda: not all(one.running for one in shops))
