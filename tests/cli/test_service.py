"""The service from outside: started as a user starts it, asked over HTTP, and stopped."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.servers import Database, Nats

pytestmark = [pytest.mark.live, pytest.mark.spark]


class Running:
    """A `penstock` process with its ops server's address."""

    def __init__(self, arguments: Sequence[str], log: Path, environment: dict[str, str]) -> None:
        self.log = log
        with log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock", *arguments, "--log-format", "json"],
                stderr=out,
                env=os.environ | environment,
            )
        self.url = ""

    def events(self) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def ask(self, path: str, method: str = "GET") -> tuple[int, str]:
        if not self.url:
            found = [event["url"] for event in self.events() if event["event"].startswith("ops")]
            if not found:
                return 0, ""
            self.url = found[0]
        request = urllib.request.Request(self.url + path, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def until(self, true: Callable[[], bool], seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)

    def acknowledged(self) -> int:
        code, body = self.ask("/status")
        sinks = json.loads(body)["sinks"] if code == 200 else []
        return sum(sink["acknowledged"] for sink in sinks)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    started: list[Running] = []

    def make(*arguments: str, **environment: str) -> Running:
        log = tmp_path / f"log{len(started)}"
        started.append(Running(arguments, log, environment | {"XDG_STATE_HOME": str(tmp_path)}))
        return started[-1]

    yield make
    for running in started:
        if running.process.poll() is None:
            running.process.terminate()
            running.process.wait(180)


def rows(database: Database, first: int, last: int) -> None:
    database.execute(f"INSERT INTO customer SELECT g FROM generate_series({first}, {last}) g")


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute("CREATE TABLE customer (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION shop FOR ALL TABLES")
    return database


def test_bridge_needs_no_file_and_serves_the_bridges_series(
    start: Callable[..., Running], shop: Database, nats: Nats, stream: str
) -> None:
    url, broker = urlsplit(shop.url), urlsplit(nats.url)
    subject = f"{stream}.{{collection}}.{{operation}}"
    bridge = start(
        *("bridge", "--slot", f"s_{stream.lower()}", "--pub", "shop", "--port", "0", "--json"),
        *("--stream", stream, "--subject", subject),
        PG_HOST=url.hostname or "",
        PG_PORT=str(url.port),
        PG_DB=shop.name,
        POSTGRES_BRIDGE_USER="postgres",
        POSTGRES_BRIDGE_PASSWORD="hunter22",
        NATS_HOST=broker.hostname or "",
        NATS_PORT=str(broker.port),
    )
    bridge.until(lambda: "spark is ready" in bridge.log.read_text())
    rows(shop, 1, 3)
    bridge.until(lambda: bridge.acknowledged() == 3)
    assert "\nbridge_cdc_events_published_total 3.0\n" in bridge.ask("/metrics")[1]
    assert "hunter22" not in bridge.log.read_text() + bridge.ask("/status")[1]
    bridge.process.send_signal(signal.SIGINT)
    assert bridge.process.wait(180) == 0, bridge.log.read_text()
