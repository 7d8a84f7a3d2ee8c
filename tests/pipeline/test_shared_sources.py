"""Two hosts divide a real client's feed by leases, while it is written and its partitions split;
one host is killed."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, Self

import pytest

from tests.cosmos.server import CosmosServer
from tests.dynamodb.server import StreamsServer
from tests.pipeline.running import (
    Message,
    Run,
    assert_none_is_left,
    count,
    eventually,
    messages,
    send,
    tree,
)
from tests.pipeline.test_shared_leases import SOON, has, host
from tests.pipeline.test_two_instances import published
from tests.servers import Nats

# tests/reading/test_taken.py has what is asked of the sink without Spark.
pytestmark = [
    pytest.mark.live, pytest.mark.spark, pytest.mark.fault, pytest.mark.thorough,
    pytest.mark.timeout(1800),
]  # fmt: skip

KEYS = 97
# What is saved is far behind what is stored, apart from what was handed over or has ended.
FAR = "1h"


class Source(Protocol):
    """A server with a few partitions. `count`: of the changes that were written."""

    count: int
    lock: Any

    @property
    def backend(self) -> dict[str, Any]:
        """Its settings in the pipeline file."""
        ...

    def write(self) -> None:
        """One change, of the key `count % KEYS`."""
        ...

    def split(self) -> None:
        """Each partition ends, and has two children."""
        ...

    def number(self, message: Message) -> int:
        """Which change it is."""
        ...


class Cosmos:
    """Items, each written once: the change feed has the last change of an item only."""

    def __init__(self) -> None:
        self.count = 0
        self.lock = threading.Lock()

    def __enter__(self) -> Self:
        self.server = CosmosServer()
        self.server.__enter__()
        self.orders = self.server.container("shop", "orders")
        self.split()
        self.split()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.__exit__()

    @property
    def backend(self) -> dict[str, Any]:
        return {
            "type": "cosmos",
            "endpoint": self.server.url,
            "key": self.server.key,
            "database": "shop",
            "container": "orders",
            "start": "beginning",
            "page_items": 20,
            "poll": "50ms",
        }

    def write(self) -> None:
        self.orders.put({"id": f"{self.count}", "pk": f"p{self.count % KEYS}"})
        self.count += 1

    def split(self) -> None:
        for each in list(self.orders.ranges):
            self.orders.split(range_id=each.id)

    def number(self, message: Message) -> int:
        return int(message.body["data"]["id"])


class Dynamodb:
    """Records of a table's stream, a key always in the same branch of shards."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> Self:
        self.server = StreamsServer()
        self.server.__enter__()
        self.lock = self.server.lock
        self.stream = self.server.stream("users")
        self.shards = [self.stream.shard() for _ in range(4)]
        return self

    def __exit__(self, *_: object) -> None:
        self.server.__exit__()

    @property
    def backend(self) -> dict[str, Any]:
        return {
            "type": "dynamodb",
            "table": "users",
            "endpoint": self.server.url,
            "region": "eu-central-1",
            "access_key": "a",
            "secret_key": "b",
        }

    def write(self) -> None:
        key = self.count % KEYS
        shard = self.shards[key % len(self.shards)]
        self.stream.put(shard, f"k{key}", at=self.server.now, new={"n": self.count})
        self.count += 1

    def split(self) -> None:
        # The keys of shard s are those of its children s and s + len(shards).
        left, right = zip(*(self.stream.split(each) for each in self.shards), strict=True)
        self.shards = [*left, *right]

    def number(self, message: Message) -> int:
        return int(message.body["data"]["n"])


@contextmanager
def written(source: Source) -> Iterator[Callable[[], None]]:
    """Changes are written all the time, until the function that it gives is called."""
    over = threading.Event()

    def write() -> None:
        while not over.wait(0.02):
            with source.lock:
                source.write()

    thread = threading.Thread(target=write, daemon=True)

    def end() -> None:
        over.set()
        thread.join()

    thread.start()
    try:
        yield end
    finally:
        end()


def split(source: Source) -> None:
    with source.lock:
        source.split()


def freeze_and_kill(run: Run) -> None:
    """As a machine ends: nothing of it writes after its leases are free."""
    processes = tree(run)
    send(processes, signal.SIGSTOP)
    send(processes, signal.SIGKILL)
    run.process.wait(60)
    assert_none_is_left(processes)


@pytest.mark.parametrize("make", [Cosmos, Dynamodb], ids=["cosmos", "dynamodb"])
def test_what_a_killed_host_had_goes_on_once_although_it_was_split_meanwhile(
    tmp_path: Path, nats: Nats, stream: str, make: Callable[[], Any]
) -> None:
    file = tmp_path / "positions.db"
    with make() as source, written(source) as end:
        with (
            host(tmp_path / "1", file, nats, stream, source.backend, FAR) as first,
            host(tmp_path / "2", file, nats, stream, source.backend, FAR) as second,
        ):
            eventually(lambda: has(first) and has(second), seconds=SOON, run=first)
            split(source)
            for run in (first, second):
                before = published(run)
                eventually(lambda r=run, b=before: published(r) > b + 50, seconds=SOON, run=run)
            freeze_and_kill(first)
            split(source)
            before = published(second)
            eventually(lambda: published(second) > before + 100, seconds=SOON, run=second)
            end()
            eventually(lambda: count(nats, stream) >= source.count, seconds=SOON, run=second)
            assert second.stop() == 0
        numbers = [source.number(each) for each in messages(nats, stream)]
        assert sorted(numbers) == list(range(source.count)), "each once"
        for key in range(KEYS):
            own = [number for number in numbers if number % KEYS == key]
            assert own == sorted(own), "in order"
        assert not second.log.count("level=error"), second.log
