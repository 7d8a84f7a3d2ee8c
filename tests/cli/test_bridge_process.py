"""`penstock bridge` in the place of the CDC bridge: its users' consumer, probes and parsers,
written from what its page says of messages and endpoints alone."""

import asyncio
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import ormsgpack
import pytest
from nats.js.api import StreamConfig

from tests.servers import Database, Nats, free_port
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.spark]

# Of its page, for Grafana's Alloy.
ALLOY = re.compile(
    r"METRICS uptime=(?P<uptime>\d+) wal_messages=(?P<wal>\d+) cdc_events=(?P<cdc>\d+)"
)
WHOLE = re.compile(
    ALLOY.pattern + r" lsn=[0-9a-f]+/[0-9a-f]+ connected=1 reconnects=0 nats_reconnects=0"
    r" lag_bytes=\d+ slot_active=1\b"
)
STATUS = {
    "status": "connected", "is_connected": True, "slot_active": True, "reconnect_count": 0,
    "nats_reconnect_count": 0, "wal_lag_mb": 0,
}  # fmt: skip
NUMBERS = (
    "uptime_seconds", "wal_messages_received", "cdc_events_published", "last_processing_time_us",
    "wal_lag_bytes",
)  # fmt: skip
NEWER = (
    "wal_confirmed_lag_bytes", "cpu_seconds_total", "max_rss_bytes", "refused_tables",
    "refused_events_dropped_total",
)  # fmt: skip


class Bridge:
    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.out, self.log, self.port = folder / "out", folder / "log", free_port()
        with self.out.open("w") as out, self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "penstock", "bridge", *arguments, "--log-format", "json"],
                stdout=out, stderr=log,
                env=os.environ | environment
                | {"BRIDGE_PORT": str(self.port), "XDG_STATE_HOME": str(folder)},
            )  # fmt: skip

    def get(self, path: str) -> Any:
        url = f"http://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            text = answer.read().decode()
        return text if path == "/metrics" else json.loads(text)

    def until(self, true: Callable[[], Any], seconds: float = 240.0) -> None:
        def come() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return bool(true())

        until(come, seconds, problem=self.log.read_text)


class Consumer:
    """Keeps a table of SQLite: by the schema's columns, the snapshot's rows and the changes."""

    def __init__(self, url: str, load: Callable[[bytes], Any], table: str) -> None:
        self._url, self._load, self._table = url, load, table
        self.rows: dict[str, dict[str, Any]] = {}

    async def run(self, is_over: Callable[["Consumer"], bool]) -> None:
        client = await nats.connect(self._url)
        js = client.jetstream()
        entry = await (await js.key_value("schemas")).get(self._table)
        schema = self._load(entry.value or b"")
        assert schema["schema"] == f"public.{self._table}"
        assert isinstance(schema["timestamp"], int)
        keys = {"name", "position", "data_type", "is_nullable", "column_default"}
        assert all(set(column) >= keys for column in schema["columns"])
        names = [column["name"] for column in schema["columns"]]
        init = await js.pull_subscribe("init.>", stream="INIT")
        await client.publish(f"snapshot.request.{self._table}", b"")
        meta, chunks = None, 0
        while meta is None or chunks < meta["batch_count"]:
            for message in await init.fetch(10, timeout=60):
                await message.ack()
                body = self._load(message.data)
                if message.subject == f"init.meta.{self._table}":
                    assert isinstance(body["timestamp"], int)
                    meta = body
                else:
                    assert (body["operation"], body["chunk"]) == ("snapshot", chunks)
                    chunks += 1
                    for row in body["data"]:
                        assert list(row) == names
                        assert all(isinstance(each, str | None) for each in row.values())
                        self.rows[row["id"]] = row
        assert len(self.rows) == meta["row_count"]
        changes = await js.pull_subscribe(f"cdc.{self._table}.>", stream="CDC")
        while not is_over(self):
            try:
                messages = await changes.fetch(50, timeout=1)
            except TimeoutError:
                continue
            for message in messages:
                await message.ack()
                self._apply(self._load(message.data))
        await client.close()

    def _apply(self, change: dict[str, Any]) -> None:
        row = change["data"]
        if change["operation"] == "DELETE":
            assert [value for value in row.values() if value is not None] == [row["id"]]
            self.rows.pop(str(row["id"]), None)
        else:
            self.rows[str(row["id"])] = row


async def made(url: str, *names: str) -> None:
    """The streams and the bucket, as the page has an administrator make them; but changes are kept
    for a day."""
    client = await nats.connect(url)
    js = client.jetstream()
    for name, days in (("CDC", 1), ("INIT", 7)):
        await js.add_stream(StreamConfig(
            name=name, subjects=[f"{name.lower()}.>"], max_age=days * 86_400, max_bytes=2**27,
            max_msgs=1_000_000, num_replicas=1,
        ))  # fmt: skip
    await js.create_key_value(bucket="schemas", history=10, replicas=1)
    await client.close()


@pytest.fixture(params=["json", pytest.param("msgpack", marks=pytest.mark.thorough)])
def encoding(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def bridge(
    encoding: str, database: Database, own_nats: Callable[..., Nats], tmp_path: Path
) -> Iterator[tuple[Bridge, str]]:
    server = own_nats()
    database.execute(
        "CREATE TABLE users (id int PRIMARY KEY, name text, price numeric, at timestamptz, b bool);"
        "INSERT INTO users SELECT n, 'n' || n, n / 7.0, now(), n % 2 = 0"
        " FROM generate_series(1, 25000) n;"
        "CREATE PUBLICATION my_pub FOR TABLE users"
    )
    asyncio.run(made(server.url))
    running = Bridge(
        tmp_path, "--slot", f"s_{database.name}", "--pub", "my_pub",
        *(["--json"] if encoding == "json" else []),
        DATABASE_URL=database.url, NATS_URL=server.url,
    )  # fmt: skip
    yield running, server.url
    running.process.terminate()
    running.process.wait(180)


def test_a_consumer_of_the_bridge_has_the_rows_and_follows(
    bridge: tuple[Bridge, str], encoding: str, database: Database
) -> None:
    running, url = bridge
    said = ("snapshots can be asked for", "beginning: no position was saved")
    running.until(lambda: all(each in running.log.read_text() for each in said))
    database.execute("DELETE FROM users WHERE id = 1; UPDATE users SET name = 'x' WHERE id = 2")
    load = json.loads if encoding == "json" else ormsgpack.unpackb
    consumer, written = Consumer(url, load, "users"), False

    def is_over(found: Consumer) -> bool:
        nonlocal written
        if not written:
            written = True
            database.execute("DELETE FROM users WHERE id % 5 = 0 AND id < 1000")
            database.execute("INSERT INTO users (id, name) VALUES (30000, 'last')")
        return "30000" in found.rows

    asyncio.run(asyncio.wait_for(consumer.run(is_over), 240))
    wanted = {str(key): name for key, name in database.execute("SELECT id, name FROM users")}
    assert {key: row["name"] for key, row in consumer.rows.items()} == wanted
    assert len(wanted) == 25000 - 1 - 199 + 1

    def published() -> bool:
        return bool(running.get("/status")["cdc_events_published"] == 202)

    running.until(published)
    status = running.get("/status")
    assert {name: status[name] for name in STATUS} == STATUS
    assert all(type(status[name]) is int for name in NUMBERS)
    assert re.fullmatch(r"[0-9a-f]+/[0-9a-f]+", status["current_lsn"])
    assert {"backends", "sinks", "health"} <= status.keys()
    running.until(lambda: running.get("/health")["status"] == "ok")
    text = running.get("/metrics")
    assert all(re.search(rf"(?m)^bridge_{name} \d", text) for name in NEWER)
    running.until(lambda: WHOLE.search(running.out.read_text()))
    running.until(lambda: ALLOY.findall(running.out.read_text())[-1][2] == "202")
