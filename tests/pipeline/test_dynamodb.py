"""DynamoDB Streams through `penstock run` into JetStream, exactly once: shards split while records
are written, and the pipeline and the server die."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

import penstock
from penstock.model.errors import Unavailable
from tests.dynamodb.local import DynamodbLocal, Table
from tests.dynamodb.server import StreamsServer
from tests.dynamodb.streams import Stream
from tests.pipeline.running import Run, count, eventually, messages, running, send, tree
from tests.servers import Nats

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.fault]

ENDS = 3
PER_GENERATION = 300


def pipeline(
    folder: Path, nats: Nats, stream: str, server: StreamsServer | None, **more: Any
) -> dict[str, Any]:
    return {
        "name": "test",
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
        "state": str(folder / "state"),
        "ops": {"port": 0},
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


@pytest.mark.parametrize(
    "polled",
    [
        pytest.param(False, id="read by one", marks=pytest.mark.thorough),
        pytest.param(True, id="read by tasks"),
    ],
)
def test_splits_under_load_are_exact_under_kill_9(
    tmp_path: Path, nats: Nats, stream: str, polled: bool
) -> None:
    with StreamsServer() as server:
        source = server.stream("users")
        document = pipeline(tmp_path, nats, stream, server, polled=polled)
        with writing(server, source) as writer:
            run = Run(tmp_path, document)
            try:
                for kill in range(2):
                    wanted = (kill + 1) * PER_GENERATION
                    eventually(
                        lambda wanted=wanted: count(nats, stream) >= wanted, seconds=240, run=run
                    )
                    if not kill:  # the second run may find nothing to write
                        eventually(
                            lambda run=run: run.status()["sinks"][0]["delivery"] == "exactly-once",
                            run=run,
                        )
                    processes = tree(run)
                    send(processes if kill else [psutil.Process(run.process.pid)], signal.SIGKILL)
                    run.process.wait(60)
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


@pytest.mark.thorough  # tests/feeds/dynamodb has the faults, and the splits are under kills
def test_a_server_that_fails_and_throttles_and_lets_iterators_expire_costs_nothing(
    tmp_path: Path, nats: Nats, stream: str
) -> None:
    with StreamsServer() as server:
        source = server.stream("users")
        with (
            writing(server, source) as writer,
            running(tmp_path, pipeline(tmp_path, nats, stream, server)) as run,
        ):
            eventually(lambda: count(nats, stream) >= 200, seconds=240, run=run)
            server.fail("GetRecords", "InternalServerError", times=5, status=500)
            server.fail("GetRecords", "LimitExceededException", times=5)
            server.fail("DescribeStream", "LimitExceededException", times=3)
            eventually(lambda: count(nats, stream) >= 400, seconds=240, run=run)
            server.advance(16 * 60)
            server.restart()
            writer.join(240)
            every = total(server)
            eventually(lambda: count(nats, stream) >= every, seconds=240, run=run)
        assert_exact(server, source, [message.id for message in messages(nats, stream)])


# The splits under kills run through the whole pipeline, and the iterator reads DynamoDB Local.
@pytest.mark.thorough
def test_dynamodb_local_is_delivered_exactly_once(tmp_path: Path, nats: Nats, stream: str) -> None:
    try:
        local = DynamodbLocal()
    except Unavailable as error:
        pytest.skip(str(error))
    with local:
        table = Table(local.url)
        document = pipeline(tmp_path, nats, stream, None, **table.given)
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


@pytest.mark.thorough
def test_a_server_that_is_killed_while_it_is_read_costs_nothing(
    tmp_path: Path, nats: Nats, stream: str
) -> None:
    try:
        local = DynamodbLocal(keeps=True)
    except Unavailable as error:
        pytest.skip(str(error))
    with local:
        table = Table(local.url)
        table.fill(500)
        with running(tmp_path, pipeline(tmp_path, nats, stream, None, **table.given)) as run:
            eventually(lambda: count(nats, stream) > 0, seconds=240, run=run)
            local.kill()
            eventually(lambda: states(run) == {"disconnected"}, seconds=240, run=run)
            local.start()
            table.fill(500, start=500)
            eventually(lambda: count(nats, stream) >= 1000, seconds=240, run=run)
            eventually(lambda: states(run) == {"reading"}, seconds=240, run=run)
        found = messages(nats, stream)
        assert sorted(message.body["data"]["n"] for message in found) == list(range(1000))
        ids = [message.id for message in found]
        assert ids == sorted(set(ids))


def states(run: Run) -> set[str]:
    """Of the shards, as /status says."""
    [backend] = run.status()["backends"]
    return {each["state"] for each in backend["partitions"]}


@pytest.mark.thorough  # tests/dynamodb has it without Spark
def test_a_stream_that_is_enabled_again_is_a_gap(tmp_path: Path, nats: Nats, stream: str) -> None:
    with StreamsServer() as server:
        old = server.stream("users")
        shard = old.shard()
        for number in range(20):
            old.put(shard, number, at=server.now)
        document = pipeline(tmp_path, nats, stream, server, on_gap="continue")
        with running(tmp_path, document) as run:
            eventually(lambda: count(nats, stream) == 20, seconds=240, run=run)
            with server.lock:
                new = server.stream("users")
                shard = new.shard()
                for number in range(20):
                    new.put(shard, number, at=server.now)
            eventually(lambda: count(nats, stream) == 40, seconds=240, run=run)
        ids = [message.id for message in messages(nats, stream)]
        assert ids == [*expected(server, old).popitem()[1], *expected(server, new).popitem()[1]]
        assert "stream_replaced" in run.log


@pytest.mark.thorough  # tests/dynamodb has it without Spark
def test_each_start_begins_where_it_says(tmp_path: Path, nats: Nats, stream: str) -> None:
    """Four backends of one pipeline read the same table."""
    with StreamsServer() as server:
        source = server.stream("users")
        root = source.shard()
        source.put(root, "a", at=server.now - 7200)
        source.put(root, "b", at=server.now - 60)
        left, right = source.split(root)
        source.put(left, "c", at=server.now - 30)
        iterator = penstock.stream("dynamodb", at="trim_horizon", **_given(server))
        first = next(iterator)
        assert first is not None
        starts = {
            "latest": "latest",
            "horizon": "trim_horizon",
            "time": datetime.fromtimestamp(server.now - 3600, UTC).isoformat(),
            "token": iterator.token,
        }
        document = pipeline(tmp_path, nats, stream, server)
        [backend] = document["backends"]
        document["backends"] = [
            {**backend, "name": name, "start": start} for name, start in starts.items()
        ]
        document["sink"]["subject"] = f"{stream.lower()}.{{backend}}.{{operation}}"
        with running(tmp_path, document) as run:
            eventually(lambda: run.get("/ready")[0] == 200, seconds=240, run=run)
            with server.lock:
                for shard in (left, right):
                    source.put(shard, "new", at=server.now)
            eventually(lambda: count(nats, stream) >= 2 + 5 + 4 + 4, seconds=240, run=run)
        found: dict[str, list[str]] = {}
        for message in messages(nats, stream):
            found.setdefault(message.id.partition(":")[0], []).append(message.body["data"]["id"])
        assert {name: sorted(keys) for name, keys in found.items()} == {
            "latest": ["new", "new"],
            "horizon": ["a", "b", "c", "new", "new"],
            "time": ["b", "c", "new", "new"],
            "token": ["b", "c", "new", "new"],
        }


def _given(server: StreamsServer) -> dict[str, Any]:
    """What the iterator takes."""
    return {
        "table": "users",
        "endpoint": server.url,
        "region": "eu-central-1",
        "access_key": "a",
        "secret_key": "b",
    }
