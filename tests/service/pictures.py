"""Pictures of every screen of the dashboard, in light and dark, wide and narrow, of a pipeline that
is healthy and of some in trouble: python -m tests.service.pictures FOLDER"""

import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from penstock.model.settings import Secret
from penstock.ops.history import History
from penstock.ops.partitions import PartitionReport
from penstock.ops.reports import (
    BatchReport,
    GapReport,
    QueryReport,
    SinkReport,
    SnapshotsReport,
    SourceReport,
    TableStatus,
)
from penstock.reading.partition_reports import summed
from tests.servers import Nats, Postgres
from tests.service import maps
from tests.service.maps import made, mapped
from tests.service.test_dashboard import Served
from tests.service.test_messages import store

SCREENS = (
    "overview", "sources", "tables", "snapshots", "letters", "configuration", "events",
)  # fmt: skip
WIDTHS = (1400, 390)
NOW = datetime.now(UTC).isoformat(timespec="seconds")
TOKEN = "a token of pictures"


def healthy(served: Served) -> None:
    board, chance = served.board, random.Random(7)
    served.history, events = History(), 0
    begun = time.time() - 900
    for second in range(900):
        events += chance.randrange(100, 140) if second % 300 < 280 else 900
        board.post("a", QueryReport(begun=True))
        board.post("a", SourceReport(
            connected=True, events=events,
            lag_seconds=chance.random() / 3, lag_bytes=chance.randrange(90_000),
            window_bytes=50 << 30, window_left_bytes=(48 << 30) - 40_000_000 * second,
        ))  # fmt: skip
        latency = 4000.0 if second == 3 else chance.random() * 3 + 3
        board.post("memory", SinkReport(
            connected=True, acknowledged=events, latency_p50_ms=latency, latency_p99_ms=latency * 3,
        ))  # fmt: skip
        served.history.record(board.snapshot(), begun + second)
    board.post("a", SourceReport(
        current="0/2E51DE70", confirmed="0/2E51A000", partition_count=1, reader="4711",
        details={"wal_status": "reserved", "safe_wal_size": 48 << 30, "timeline": 1},
    ))  # fmt: skip
    board.post("a/shop", PartitionReport(state="reading", place="0/2E51A000", lag_seconds=0.2))
    board.post("a", BatchReport(id=7, rows=512, timings={"triggerExecution": 210.0}))
    board.post("memory", SinkReport(delivery="exactly-once", details={"stream": "SHOP"}))
    for name, count in (("orders", 4000), ("customers", 120), ("items", 17)):
        table = f"public.{name}"
        applied = {"insert": count, "update": count // 3, "delete": count // 9}
        board.post(f"a/{table}", TableStatus(backend="a", table=table, applied=applied))
    last = {"snapshot_id": "snap-01M8", "state": "done", "rows": 19_999, "at": NOW}
    board.post("a", SnapshotsReport(runs={"done": 2}, rows=25_001, last={"public.orders": last}))
    served.history.notice(served.status(), time.time() - 880)


def paused(served: Served) -> None:
    healthy(served)
    why = {"since": NOW, "by": "the command line of db1", "until": None}
    served.board.post("a", QueryReport(paused=why))
    served.board.post("a", SourceReport(lag_seconds=340.0, lag_bytes=3 << 30, buffered_events=9000))


def lost(served: Served) -> None:
    healthy(served)
    served.board.post("a", QueryReport(blocked="the slot shop is gone [postgres.slot-missing]"))
    gap = {"at": NOW, "cause": "slot_lost", "detail": "the server gave the slot up"}
    served.board.post("a/shop", GapReport(stale=True, counts={"slot_lost": 1}, gaps=[gap]))
    served.board.post("a", SourceReport(connected=False, last_error="no connection"))
    served.board.post("a", SourceReport(window_left_bytes=3 << 30))


def letters(served: Served) -> None:
    healthy(served)
    served.board.post("memory", SinkReport(dead_letters={"refused": 3, "unfit": 1}))
    for name, state in (("orders", "suspended"), ("customers", "waiting")):
        why = "the column total is numeric(4,2), and 12345.00 does not fit"
        table = TableStatus(
            backend="a", table=f"public.{name}", state=state, reason="refused", error=why,
            since=NOW, letters=3, held=1200,
        )  # fmt: skip
        served.board.post(table.name, table)


def loading(served: Served) -> None:
    healthy(served)
    run = {
        "snapshot_id": "snap-01M9", "table": "public.orders", "state": "running", "waiting": None,
        "ranges": 40, "done": 13, "chunks": 26, "rows": 260_000, "bytes": 9 << 20,
        "bytes_per_second": 4 << 20, "seconds_left": 75.0,
    }  # fmt: skip
    other = run | {"table": "public.items", "done": 0, "seconds_left": None, "waiting": {"pid": 71}}
    served.board.post("a", SnapshotsReport(current=[run, other]))
    served.board.post("a/p/t", TableStatus(
        backend="a", table="public.stock", target="all.stock", state="loading", rows_loaded=30_000,
        rows_to_come=90_000,
    ))  # fmt: skip


def many(served: Served) -> None:
    healthy(served)
    rows = {
        f"shard-{n:04}": PartitionReport(state="reading", lag_seconds=n * 7 % 100 / 10)
        for n in range(1000)
    }
    for name, row in rows.items():
        served.board.post(f"a/{name}", row)
    hosts = {f"worker-{n}": 1000 // 8 for n in range(8)}
    more = {"host": "worker-1", "hosts": hosts, "leases": 1000, "unowned": 0}
    served.board.post("a", summed(rows, {}, **more))
    for n in range(300):
        table = f"public.table_{n:03}"
        served.board.post(f"a/{table}", TableStatus(backend="a", table=table, state="following"))


STATES: dict[str, Callable[[Served], None]] = {
    each.__name__: each for each in (healthy, paused, lost, letters, loading, many)
}
Shown = tuple[str, str, Sequence[str]]  # the page, its token, and its screens


@contextmanager
def stated(state: str, folder: Path) -> Iterator[Shown]:
    served = Served(folder, token=Secret(TOKEN))
    STATES[state](served)
    with served.server as server:
        yield f"{server.url}/ui/", TOKEN, SCREENS
    served.actions.close()


@contextmanager
def messages(folder: Path) -> Iterator[Shown]:
    with Nats() as nats:
        sink = {"type": "jetstream", "url": nats.url, "stream": "SHOP"}
        store(nats, "SHOP", *range(1, 40))
        served = Served(folder, sink, token=Secret(TOKEN))
        healthy(served)
        with served.server as server:
            yield f"{server.url}/ui/", TOKEN, ("messages",)
        served.actions.close()


@contextmanager
def edited(folder: Path) -> Iterator[Shown]:
    with Postgres() as postgres, made(postgres) as databases:
        api = mapped(folder, databases)
        with api.server as server:
            yield f"{server.url}/ui/map", maps.TOKEN, ("map",)


MORE: dict[str, Callable[[Path], AbstractContextManager[Shown]]] = {
    "messages": messages, "map": edited,
}  # fmt: skip
# What a screen has once it is drawn.
DRAWN = {
    "overview": "figure canvas", "configuration": "#keys td", "messages": "#messages tbody tr",
    "map": "#mapped tbody tr",
}  # fmt: skip


def taken(browser: Any, folder: Path, state: str) -> None:
    with tempfile.TemporaryDirectory() as made:
        shown = MORE[state](Path(made)) if state in MORE else stated(state, Path(made))
        with shown as (url, token, screens):
            for scheme in ("light", "dark"):
                for width in WIDTHS:
                    size = {"width": width, "height": 900}
                    page = browser.new_page(color_scheme=scheme, viewport=size)
                    page.add_init_script(f"sessionStorage.setItem('token', '{token}')")
                    for screen in screens:
                        page.goto(f"{url}#/{screen}")
                        page.wait_for_selector("body[data-connection=live]")
                        if screen in DRAWN:
                            page.wait_for_selector(DRAWN[screen])
                        page.wait_for_timeout(400)
                        page.screenshot(
                            path=folder / f"{state}-{screen}-{scheme}-{width}.png", full_page=True
                        )
                    page.close()


def main(folder: Path, states: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for state in states or [*STATES, *MORE]:
            taken(browser, folder, state)
            print(state, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
