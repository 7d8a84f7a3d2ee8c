"""`penstock demo --consolidate`: the databases of two shops flow into one while the shops are open,
and `penstock verify` compares them in the end.

One server has all three databases. Files are in a temporary folder, which is removed unless
something differs.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import psycopg
from rich.console import Console

from penstock.demo.pipeline import DemoPipeline
from penstock.demo.run import Options
from penstock.demo.sources.postgres import Postgres, PostgresWriter, shop
from penstock.demo.workload import Workload
from penstock.model.errors import PenstockError, Unavailable

_SHOPS = ("eu", "us")
_TARGET = "all_shops"
_KEYS = shop.KEYS | shop.MIRRORED
_START = 180.0  # seconds until all tables are loaded
_LIVE = "SELECT count(*) FROM penstock.ledger WHERE state = 'live'"


def run(options: Options, console: Console) -> int:
    """Runs the demo; 0 when each table has what those of both shops have, else 1.

    Raises Unavailable when the server or the pipeline does not come up, or the pipeline ends.
    """
    folder = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
    is_kept = False

    def show(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    def tell(text: str) -> None:
        if not options.quiet:
            show(text)

    try:
        with ExitStack() as stack:
            server = stack.enter_context(Postgres())
            _create(server)
            pipeline = _pipeline(folder, server)
            stack.callback(pipeline.kill)
            names = " and ".join(_SHOPS)
            tell(f"{len(_KEYS)} tables of the shops {names} are loaded into one database")
            pipeline.start()
            _wait(pipeline, lambda: pipeline.ready() and _are_live(server))
            tell(f"the shops are open for {options.seconds:.0f} s")
            changes = _trade(options, server, pipeline)
            verified = subprocess.run(  # noqa: S603 - ourselves
                [sys.executable, "-m", "penstock", "verify", str(pipeline.file)],
                env={**os.environ, **pipeline.variables}, capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            is_kept = verified.returncode != 0
            if is_kept or not options.quiet:
                show((verified.stdout + verified.stderr).rstrip())
            is_kept |= pipeline.stop() != 0
            written = f"{changes:,} changes were committed by two shops"
            if is_kept:
                show(f"VERDICT: FAILED. {written}; their common tables differ from theirs.")
            else:
                show(f"VERDICT: ok. {written}; their common tables equal theirs.")
            if is_kept:
                show(f"the pipeline's log: {pipeline.log_file}")
            return int(is_kept)
    except PenstockError:
        is_kept = True
        raise
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)


def _create(server: Postgres) -> None:
    """Both shops, and their common tables, whose key has the name of the shop, too."""
    for name in (*_SHOPS, _TARGET):
        server.execute(f"CREATE DATABASE {name}")
        with psycopg.connect(server.url_of(name), autocommit=True) as connection:
            connection.execute(shop.CREATE.encode())
            for table, key in _KEYS.items() if name == _TARGET else ():
                connection.execute(
                    f"CREATE TABLE all_{table} AS SELECT ''::text AS sid, * FROM {table}"
                    f" WITH NO DATA; DROP TABLE {table} CASCADE;"
                    f"ALTER TABLE all_{table} ADD PRIMARY KEY (sid, {', '.join(key)})".encode()
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
    with (
        suppress(psycopg.errors.UndefinedTable),
        psycopg.connect(server.url_of(_TARGET)) as connection,
    ):
        return connection.execute(_LIVE.encode()).fetchone() == (len(_SHOPS) * len(_KEYS),)
    return False


def _wait(pipeline: DemoPipeline, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _START
    while not done():
        pipeline.check()
        if time.monotonic() > deadline:
            raise Unavailable(f"loading took longer than {_START:.0f} s:\n{pipeline.tail()}")
        time.sleep(0.2)


def _trade(options: Options, server: Postgres, pipeline: DemoPipeline) -> int:
    """Both shops write, until their time is over or Ctrl-C; how many changes."""
    rate = options.rate / len(_SHOPS)
    shops = [
        Workload(PostgresWriter(server.url_of(name), rate=rate, seed=seed), rate)
        for seed, name in enumerate(_SHOPS, 1)
    ]
    begun = time.monotonic()
    for one in shops:
        one.start()
    try:
        with suppress(KeyboardInterrupt):
            while time.monotonic() - begun < options.seconds and all(one.running for one in shops):
                pipeline.check()
                time.sleep(0.2)
    finally:
        for one in shops:
            one.stop()
    return sum(one.ledger.count for one in shops)
