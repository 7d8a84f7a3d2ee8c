"""`penstock demo --consolidate`: the databases of two shops flow into one while the shops are open,
and `penstock verify` compares them in the end. One server has all three databases.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg
from rich.console import Console

from penstock.demo.pipeline import DemoFolder, DemoPipeline
from penstock.demo.run import KEPT, START, Options, Report, show_lines
from penstock.demo.sources.postgres import Postgres, PostgresWriter, execute, shop
from penstock.demo.workload import Workload

_SHOPS = ("eu", "us")
_TARGET = "all_shops"
_KEYS = shop.KEYS | shop.MIRRORED
_LIVE = "SELECT count(*) FROM penstock.ledger WHERE state = 'live'"


def run(options: Options, console: Console, report: Report = lambda _: None) -> int:
    """0 when each table has what those of both shops have, else 1. Raises Unavailable."""
    told = Console(quiet=True) if options.quiet else console
    with DemoFolder() as folder, ExitStack() as stack:
        server = stack.enter_context(Postgres())
        _create(server)
        pipeline = _pipeline(folder.path, server)
        stack.callback(pipeline.kill)
        show_lines(told, f"{len(_KEYS)} tables of {len(_SHOPS)} shops are loaded into one database")
        pipeline.start()
        pipeline.wait_for("loading", lambda: pipeline.ready() and _are_live(server), START)
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
            show_lines(console, f"VERDICT: ok. {written}; their common tables equal theirs.")
            if options.keep:
                _keep(console, server, writers, pipeline)
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


def _create(server: Postgres) -> None:
    """Both shops, and their common tables, whose key has the name of the shop, too."""
    for name in (*_SHOPS, _TARGET):
        server.execute(f"CREATE DATABASE {name}")
        execute(server.url_of(name), shop.CREATE)
    for table, key in _KEYS.items():
        execute(
            server.url_of(_TARGET),
            f"CREATE TABLE all_{table} AS SELECT ''::text AS sid, * FROM {table} WITH NO DATA;"
            f"DROP TABLE {table} CASCADE;"
            f"ALTER TABLE all_{table} ADD PRIMARY KEY (sid, {', '.join(key)})",
        )


def _pipeline(folder: Path, server: Postgres) -> DemoPipeline:
    variables = {f"{name.upper()}_URL": server.url_of(name) for name in (*_SHOPS, _TARGET)}
    document = {
        "backends": [{
            "name": "shops", "type": "postgres",
            "sources": [{"sid": sid, "connection": f"${{{sid.upper()}_URL}}"} for sid in _SHOPS],
        }],
        "sink": {
            "type": "postgres", "connection": f"${{{_TARGET.upper()}_URL}}",
            "map": [{
                "backend": "shops",
                "tables": {table: {"target": f"all_{table}"} for table in _KEYS},
            }],
        },
    }  # fmt: skip
    return DemoPipeline(folder, document, variables)


def _are_live(server: Postgres) -> bool:
    with suppress(psycopg.errors.UndefinedTable):
        return execute(server.url_of(_TARGET), _LIVE) == [(len(_SHOPS) * len(_KEYS),)]
    return False


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
    console: Console, server: Postgres, writers: Sequence[PostgresWriter], pipeline: DemoPipeline
) -> None:
    """Until Ctrl-C; says how to reach everything."""
    variables = " ".join(f"{name}={value}" for name, value in pipeline.variables.items())
    with suppress(KeyboardInterrupt), _open_shops(writers, KEPT) as shops:
        show_lines(
            console,
            "",
            f"Everything stays up until Ctrl-C; the shops write {KEPT:.0f} changes a second:",
            *(f"  psql {server.url_of(name)}" for name in (*_SHOPS, _TARGET)),
            f"  {pipeline.ops}/ui/#/map, the map of tables; the dashboard's token is"
            f" {pipeline.token}",
            # Its file names the servers by variables.
            f"  {variables} penstock verify {pipeline.file}",
        )
        pipeline.wait_for("trading", lambda: not all(one.running for one in shops))
