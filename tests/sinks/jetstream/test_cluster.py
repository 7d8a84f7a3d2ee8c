"""Three servers: the stream has three copies, and its leader dies in the middle of a write."""

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock.demo.servers import Nats, free_port
from penstock.errors import PenstockError
from penstock.sinks.jetstream import JetStreamSettings, JetStreamSink
from penstock.sinks.jetstream.api import JetStream
from penstock.sinks.jetstream.connection import Connection

pytestmark = [pytest.mark.live, pytest.mark.fault]


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[Nats]]:
    ports = [free_port() for _ in range(3)]
    routes = [f"nats://127.0.0.1:{port}" for port in ports]
    servers = [
        Nats(
            config={
                "server_name": f"node{number}",
                "cluster": {"name": "c", "listen": f"127.0.0.1:{port}", "routes": routes},
            }
        )
        for number, port in enumerate(ports)
    ]
    for server in servers:
        server.__enter__()
    yield servers
    for server in servers:
        server.__exit__(None, None, None)


def prepared(sink: JetStreamSink) -> None:
    """Waits until the three have found each other."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return sink.prepare()
        except PenstockError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def leader(settings: JetStreamSettings) -> int:
    connection = Connection(settings)
    connection.open()
    info = JetStream(connection).stream(settings.stream)
    connection.close()
    assert info is not None
    return int(info["cluster"]["leader"].removeprefix("node"))


@pytest.mark.parametrize("delivery", ["exactly-once", "deduplicated"])
def test_the_leader_dies_in_the_middle_of_a_write(
    delivery: str, cluster: list[Nats], settings_of: Any, batch_of: Any, ids_of: Any, read: Any
) -> None:
    url = ",".join(server.url for server in cluster)
    settings = settings_of(url, delivery=delivery, replicas=3, timeout="2s")
    sink = JetStreamSink(settings)
    prepared(sink)
    batches = [batch_of(500, n) for n in range(1, 31)]
    victim = cluster[leader(settings)]

    def killed() -> Iterator[pa.RecordBatch]:
        yield from batches[:10]
        victim.kill()
        yield from batches[10:]

    receipt = sink.write(killed())
    victim.start()
    assert receipt.published + receipt.duplicates >= 15_000
    assert receipt.numbers["delivery"] == delivery
    survivor = cluster[cluster.index(victim) - 1]
    stored = [message.event_id for message in read(survivor.url, settings.stream)]
    assert stored == ids_of(*batches)
    again = sink.write(batches[-3:])
    assert (again.published, again.duplicates) == (0, 1500)
