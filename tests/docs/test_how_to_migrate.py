"""docs/how-to/migrate.md is played through: a hand-written watcher, and penstock beside it."""

import asyncio
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pymongo
import pytest
import yaml

from tests.docs.pages import DOCS, blocks, commands
from tests.pipeline.running import Run, basics, eventually, running
from tests.servers import Nats, Secantus

pytestmark = [
    pytest.mark.live,
    pytest.mark.spark,
    pytest.mark.timeout(900),  # two starts of Spark
]

PAGE = (DOCS / "how-to" / "migrate.md").read_text()
SUBJECT = "shop.{collection}.{operation}"
Copy = dict[str, Mapping[str, Any]]


class Watcher:
    """The old way: a service that follows the change stream by itself, and keeps a copy."""

    def __init__(self, url: str, token: Any = None) -> None:
        self.copy: Copy = {}
        self.token = token
        self._client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(url)
        self._stream = self._client.shop.orders.watch(
            full_document="updateLookup", resume_after=token
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            change = self._stream.try_next()
            if change is None:
                self._stopping.wait(0.05)
                continue
            identity = str(change["documentKey"]["_id"])
            if change["operationType"] == "delete":
                self.copy.pop(identity, None)
            elif change["fullDocument"] is not None:
                self.copy[identity] = change["fullDocument"]
            self.token = change["_id"]

    def stop(self) -> Any:
        """Its place, to start again from."""
        self._stopping.set()
        self._thread.join(60)
        self._client.close()
        return self.token


def penstock(folder: Path, line: str, *more: str) -> subprocess.CompletedProcess[str]:
    """A command of the page, in the folder of the pipeline file."""
    program, _, redirected = line.partition(" > ")
    name, *arguments = shlex.split(program)
    assert name == "penstock"
    found = subprocess.run(
        [sys.executable, "-m", "penstock", *arguments, *more],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    if redirected:
        (folder / redirected).write_text(found.stdout)
    return found


def line(start: str) -> str:
    """The command of the page that begins so."""
    (found,) = (each for each in commands(PAGE) if each.startswith(f"penstock {start}"))
    return found


def consumed(nats: Nats, since: datetime, wanted: Copy) -> Copy:
    """What the page's consumer has from `since` on, once that is `wanted`."""
    (code,) = blocks(PAGE, "python")
    names: dict[str, Any] = {}
    exec(code, names)
    copy: Copy = {}

    def handle(change: Mapping[str, Any]) -> bool:
        if change["operation"] == "DELETE":
            copy.pop(change["document_id"], None)
        elif change["data"] is not None:
            copy[change["document_id"]] = change["data"]
        return copy == wanted

    consume = names["consume"](nats.url, "CDC", "shop.orders.*", since, handle)
    asyncio.run(asyncio.wait_for(consume, 120))
    return copy


def work(orders: Any, first: int) -> None:
    """Inserts, updates and deletes."""
    orders.insert_many([{"_id": f"order {n}", "n": n} for n in range(first, first + 50)])
    orders.update_many({"n": {"$gte": first + 10}}, {"$inc": {"times": 1}})
    orders.delete_many({"n": {"$gte": first + 40}})


def source(orders: Any) -> Copy:
    return {document["_id"]: document for document in orders.find()}


def test_the_page_is_played_through(own_nats: Any, tmp_path: Path) -> None:
    nats: Nats = own_nats()
    document = {
        "backends": [{"type": "mongodb", "connection": "", "database": "shop"}],
        "sink": {"type": "jetstream", "url": nats.url, "stream": "CDC", "subject": SUBJECT},
        **basics(tmp_path),
    }
    client: pymongo.MongoClient[dict[str, Any]]
    with Secantus() as server, pymongo.MongoClient(server.url) as client:
        orders = client.shop.orders
        client.shop.create_collection("orders")
        document["backends"][0]["connection"] = server.url  # type: ignore[index]
        old = Watcher(server.url)
        begun = datetime.now(UTC)
        with running(tmp_path, document) as run:
            assert penstock(tmp_path, line("check")).returncode == 0
            _compare_and_switch(run, tmp_path, nats, server, orders, old, begun)
            assert run.stop() == 0
        _move(tmp_path, document, nats, orders)


def _compare_and_switch(
    run: Run, folder: Path, nats: Nats, server: Secantus, orders: Any, old: Watcher, begun: datetime
) -> None:
    eventually(lambda: run.get("/ready")[0] == 200, run=run)
    work(orders, 0)
    # 2 and 3: the stream, and both copies, are the collection.
    for each in (every for every in commands(PAGE) if every.startswith("penstock compare")):
        found = penstock(folder, each, "--wait", "180s")
        assert found.returncode == 0, found.stdout + found.stderr
    eventually(lambda: old.copy == source(orders), run=run)
    assert consumed(nats, begun, source(orders)) == old.copy
    # 4: the watcher stops, and the consumer begins a minute before.
    place, switched = old.stop(), datetime.now(UTC)
    work(orders, 100)
    since = switched - timedelta(minutes=1)
    assert consumed(nats, since, source(orders)) == source(orders)
    tailed = penstock(folder, line("tail"), "--url", nats.url)
    assert tailed.returncode == 0, tailed.stderr
    assert "order 100" in tailed.stdout
    # 5: and back.
    again = Watcher(server.url, place)
    again.copy.update(old.copy)
    eventually(lambda: again.copy == source(orders), run=run)
    again.stop()


def _move(folder: Path, document: dict[str, Any], nats: Nats, orders: Any) -> None:
    """6: to another store, with what was written meanwhile."""
    exported = penstock(folder, line("positions pipeline.yaml export"))
    assert exported.returncode == 0, exported.stderr
    document["positions"] = f"{nats.url}/POSITIONS"
    (folder / "pipeline.yaml").write_text(yaml.safe_dump(document))
    imported = penstock(folder, line("positions pipeline.yaml import"))
    assert imported.returncode == 0, imported.stderr
    work(orders, 200)
    with running(folder, document) as run:
        found = penstock(folder, line("compare pipeline.yaml orders --all"), "--wait", "240s")
        assert found.returncode == 0, found.stdout + found.stderr
        assert run.stop() == 0
