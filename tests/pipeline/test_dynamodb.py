"""DynamoDB Streams through `penstock run` into JetStream, exactly once: shards split while records
are written, and the pipeline and the server die."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.dynamodb.endpoints import OTHERS, Endpoint, table_on
from tests.dynamodb.server import StreamsServer
from tests.dynamodb.streams import Stream
from tests.pipeline.running import Run, count, eventually, messages, send, tree
from tests.servers import Nats

pytestmark = pytest.mark.fault

ENDS = 3
PER_GENERATION = 300


def pipeline(nats: Nats, stream: str, server: StreamsServer | None, **more: Any) -> dict[str, Any]:
    return {
        "backends": [
            {
                "name": "aws",
                "type": "dynamodb",
                "table": "users",
                "endpoint": server.url if server else "",
                "region": "eu-central-1",
                "access_key": "a",
                "secret_key": "b",
                **more,
            }
        ],
        "sink": {
            "type": "jetstream",
            "url": nats.url,
            "stream": stream,
            "subject": f"{stream.lower()}.{{source_partition}}.{{collection}}.{{operation}}",
        },
        "checkpoint": {"interval": "0.5s"},
    }


def expected(server: StreamsServer, stream: Stream) -> dict[str, list[str]]:
    """Shard -> its event ids."""
    with server.lock:
        return {
            name: [f"aws:{stream.label}/{name}:{number:021d}" for number in shard.sequences]
            for name, shard in stream.shards.items()
        }


def assert_exact(server: StreamsServer, stream: Stream, ids: list[str]) -> None:
    """Every record once, each shard in order, and none before the last of its parent."""
    assert len(ids) == len(set(ids))
    at = {event: number for number, event in enumerate(ids)}
    wanted = expected(server, stream)
    assert set(at) == {event for events in wanted.values() for event in events}
    for name, events in wanted.items():
        places = [at[event] for event in events]
        assert places == sorted(places), f"{name} is out of order"
        parent = stream.shards[name].parent
        if parent and places and wanted[parent]:
            assert at[wanted[parent][-1]] < places[0], f"{name} came before its parent ended"


def total(server: StreamsServer) -> int:
    with server.lock:
        return sum(
            len(shard.records) for each in server.streams.values() for shard in each.shards.values()
        )


@contextmanager
def writing(server: StreamsServer, stream: Stream) -> Iterator[threading.Thread]:
    """Writes generations of records to the open shards, which split after each."""
    over = threading.Event()

    def write() -> None:
        shards = [stream.shard(), stream.shard()]
        number = 0
        for generation in range(ENDS):
            for _ in range(PER_GENERATION):
                with server.lock:
                    for shard in shards:
                        stream.put(shard, f"k{number % 9}", at=server.now, new={"n": number})
                        number += 1
                if over.wait(0.01):
                    return
            if generation < ENDS - 1:
                with server.lock:
                    shards = [child for shard in shards for child in stream.split(shard)]

    thread = threading.Thread(target=write, daemon=True)
    with server.lock:
        thread.start()
    try:
        yield thread
    finally:
        over.set()
        thread.join()


def test_splits_under_load_are_exact_under_kill_9(tmp_path: Path, nats: Nats, stream: str) -> None:
    with StreamsServer() as server:
        source = server.stream("users")
        document = pipeline(nats, stream, server, polled=True)
        with writing(server, source) as writer:
            run = Run(tmp_path, document)
            try:
                eventually(lambda: count(nats, stream) >= PER_GENERATION, seconds=240, run=run)
                eventually(lambda: run.status()["sinks"][0]["delivery"] == "exactly-once", run=run)
                run.kill()  # and not the tasks that read
                run = Run(tmp_path, document)
                writer.join(240)
                assert not writer.is_alive()
                every = total(server)
                eventually(lambda: count(nats, stream) >= every, seconds=240, run=run)
            finally:
                if run.process.poll() is None:
                    run.stop()
        assert_exact(server, source, [message.id for message in messages(nats, stream)])
        assert not run.log.count("level=error"), run.log


# The splits under kills run through the whole pipeline, and the iterator reads the same servers.
@pytest.mark.thorough
@pytest.mark.parametrize("kind", OTHERS)
def test_a_server_that_others_wrote_is_delivered_exactly_once(
    kind: type[Endpoint], tmp_path: Path, nats: Nats, stream: str
) -> None:
    with kind() as server, table_on(server) as table:
        document = pipeline(nats, stream, None, **table.given)
        run = Run(tmp_path, document)
        try:
            table.fill(1000)
            eventually(lambda: count(nats, stream) >= 500, seconds=240, run=run)
            send(tree(run), signal.SIGKILL)
            run.process.wait(60)
            table.fill(1000, start=1000)
            run = Run(tmp_path, document)
            eventually(lambda: count(nats, stream) >= 2000, seconds=240, run=run)
        finally:
            if run.process.poll() is None:
                run.stop()
        found = messages(nats, stream)
        assert sorted(message.body["data"]["n"] for message in found) == list(range(2000))
        ids = [message.id for message in found]
        assert len(set(ids)) == len(ids)
