"""Cosmos DB's change feed through `penstock run` into JetStream, exactly once: ranges split and
merge while items are written, and the pipeline is killed."""

import signal
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.nats.api import JetStream
from penstock.nats.connection import Connection
from penstock.nats.settings import NatsSettings
from tests.cosmos.container import StoredContainer
from tests.cosmos.server import CosmosServer
from tests.pipeline.running import Run, count, eventually, messages, running, send, tree
from tests.pipeline.test_snapshots import chunk_rows, snapshot
from tests.servers import Nats

pytestmark = [
    pytest.mark.live, pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(900)
]  # fmt: skip

ITEMS = 400
HELD = 150


def pipeline(nats: Nats, stream: str, server: CosmosServer) -> dict[str, Any]:
    return {
        "backends": [
            {
                "name": "azure",
                "type": "cosmos",
                "endpoint": server.url,
                "key": server.key,
                "database": "shop",
                "container": "orders",
                "start": "beginning",
                "page_items": 20,
                "poll": "50ms",
            }
        ],
        "sink": {
            "type": "jetstream",
            "url": nats.url,
            "stream": stream,
            "subject": f"{stream.lower()}.{{source_partition}}.{{collection}}.{{operation}}",
        },
        # What is saved is far behind what is stored, apart from ranges that have ended.
        "checkpoint": {"interval": "1h"},
    }


class Writing(threading.Thread):
    """Writes items, none of them twice; splits and merges in between. However late a pipeline
    begins, some are left: the thread waits before the item `HELD` until `go_on`."""

    def __init__(self, orders: StoredContainer) -> None:
        super().__init__(daemon=True)
        self._orders = orders
        self._goes_on, self._over = threading.Event(), threading.Event()

    def run(self) -> None:
        orders = self._orders
        for number in range(ITEMS):
            if number == HELD:
                self._goes_on.wait()
            orders.put({"id": f"i{number}", "pk": f"p{number % 97}"})
            if number in (100, 200):
                for each in list(orders.ranges):
                    orders.split(range_id=each.id)
            if number == 300:
                orders.merge(*orders.ranges[1:3])
            if self._over.wait(0.05):
                return

    def go_on(self) -> None:
        self._goes_on.set()

    def stop(self) -> None:
        self._over.set()
        self.go_on()
        self.join()


@contextmanager
def writing(orders: StoredContainer) -> Iterator[Writing]:
    writer = Writing(orders)
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()


def test_splits_and_merges_under_load_are_exact_under_kill_9(
    tmp_path: Path, nats: Nats, stream: str
) -> None:
    with CosmosServer() as server:
        orders = server.container("shop", "orders")
        document = pipeline(nats, stream, server)
        run = Run(tmp_path, document)
        try:
            with writing(orders) as writer:
                eventually(lambda: count(nats, stream) >= 100, seconds=240, run=run)
                eventually(lambda: run.status()["sinks"][0]["delivery"] == "exactly-once", run=run)
                send(tree(run), signal.SIGKILL)
                run.process.wait(60)
                # What came after their saved positions is its children's now.
                for each in list(orders.ranges):
                    orders.split(range_id=each.id)
                writer.go_on()
                run = Run(tmp_path, document)
                writer.join(240)
                assert not writer.is_alive()
            eventually(lambda: count(nats, stream) >= ITEMS, seconds=240, run=run)
        finally:
            if run.process.poll() is None:
                run.stop()
        found = messages(nats, stream)
        assert sorted(each.body["document_id"] for each in found) == sorted(
            f'["p{number % 97}","i{number}"]' for number in range(ITEMS)
        )
        places: dict[str, list[str]] = {}
        for each in found:
            partition = each.id.split(":")[1]
            places.setdefault(partition, []).append(each.id)
        assert all(ids == sorted(ids) for ids in places.values()), "out of order"
        assert len(places) >= 4, "children were read"
        assert not run.log.count("level=error"), run.log


def test_a_snapshot_has_the_items_of_the_container_at_the_start_and_when_it_is_asked_for(
    tmp_path: Path, nats: Nats, stream: str
) -> None:
    with CosmosServer() as server, closing(Connection(NatsSettings(url=nats.url))) as connection:
        connection.open()
        orders = server.container("shop", "orders")
        for number in range(60):
            orders.put({"id": f"i{number}", "pk": f"p{number % 7}", "n": number})
        document = pipeline(nats, stream, server)
        document["backends"][0]["start"] = "now"
        with running(tmp_path, {**document, "snapshot": {"initial": True}}) as run:
            eventually(lambda: JetStream(connection).last("INIT", "init.meta.orders"), run=run)
            orders.put({"id": "i60", "pk": "p4", "n": 60})
            meta = snapshot(run, "orders", connection)
            rows = chunk_rows(connection, "orders", meta)
            assert sorted(row["n"] for row in rows) == [*range(61)]
            eventually(lambda: count(nats, stream) == 1, run=run)
