"""Two hosts, each with its own Spark, divide one feed's partitions by leases; one is killed."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.feeds.memory import MemoryFeedSettings, place_of
from penstock.leases.sqlite import SqliteStore
from penstock.position import PartitionId
from tests.pipeline.running import (
    Run,
    assert_none_is_left,
    eventually,
    messages,
    running,
    tree,
)
from tests.pipeline.test_two_instances import published
from tests.servers import Nats

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(1800)]

PARTITIONS = 12
# Far more changes than a test waits for, by slow reads.
FEED: dict[str, Any] = {
    "changes": 100_000, "partitions": PARTITIONS, "page": 10, "latency": "1s", "polled": True,
}  # fmt: skip
MEMORY = {"type": "memory", **FEED}
# Seconds in which Spark has started and something is published, on a machine with much to do.
SOON = 400.0


@contextmanager
def host(
    folder: Path, store: Path, nats: Nats, stream: str,
    backend: Mapping[str, Any] = MEMORY, checkpoint: str = "0.5s",
) -> Iterator[Run]:  # fmt: skip
    folder.mkdir()
    pipeline = {
        "name": "many",
        "backends": [{"name": "default", **backend}],
        "sink": {
            "type": "jetstream",
            "url": nats.url,
            "stream": stream,
            "subject": f"{stream.lower()}.{{source_partition}}.{{operation}}",
            "delivery": "exactly-once",
        },
        "share": "leases",
        "leases": {"renew": "0.5s", "acquire": "0.5s", "expire": "10s"},
        "positions": f"sqlite:///{store}",
        "checkpoint": {"interval": checkpoint},
        "state": str(folder / "state"),
        "ops": {"port": 0},
    }
    with running(folder, pipeline) as run:
        yield run


def has(run: Run) -> int:
    """How many partitions it reads."""
    (backend,) = run.status()["backends"]
    return int(backend["partition_states"].get("reading", 0))


def stored(nats: Nats, stream: str) -> dict[str, list[str]]:
    """The ids of the stored changes of each partition, in their order."""
    found: dict[str, list[str]] = defaultdict(list)
    for message in messages(nats, stream):
        found[message.subject.split(".")[-2]].append(message.id)
    return found


def is_beyond(found: dict[str, list[str]], before: dict[str, list[str]]) -> bool:
    """Whether each partition has more changes than before."""
    return len(found) == PARTITIONS and all(
        len(ids) > len(before.get(name, ())) + 20 for name, ids in found.items()
    )


def test_hosts_divide_a_feed_and_what_a_killed_one_had_goes_on_once(
    tmp_path: Path, nats: Nats, stream: str
) -> None:
    file = tmp_path / "positions.db"
    with (
        host(tmp_path / "1", file, nats, stream) as first,
        host(tmp_path / "2", file, nats, stream) as second,
    ):
        half = PARTITIONS // 2
        eventually(lambda: (has(first), has(second)) == (half, half), seconds=SOON, run=first)
        for run in (first, second):
            before = published(run)
            eventually(lambda r=run, b=before: published(r) > b, seconds=SOON, run=run)
        killed = tree(first)
        first.kill()
        assert_none_is_left(killed)  # its tasks go on for a moment, and publish what they have
        before = stored(nats, stream)
        eventually(lambda: has(second) == PARTITIONS, seconds=SOON, run=second)
        eventually(lambda: is_beyond(stored(nats, stream), before), seconds=SOON, run=second)
        assert second.stop() == 0
    settings = MemoryFeedSettings.model_validate({"name": "default", **FEED})
    found = stored(nats, stream)
    for name, ids in found.items():
        places = [place_of(settings, PartitionId(name), number) for number in range(len(ids))]
        assert ids == [f"default:{place}" for place in places], "each once, and in order"
    rows = SqliteStore(file).list("many/default/")
    assert len(rows) == PARTITIONS
    for row in rows:
        assert row.owner == "", "a stop in order gives leases back"
        last = found[row.name.rpartition("/")[2]][-1].removeprefix("default:")
        cursor, _, ordinal = last.rpartition(":")
        assert cursor in row.continuation, "and keeps what is done"
        assert ordinal in row.continuation
