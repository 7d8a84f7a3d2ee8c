"""Two hosts, each with its own Spark, divide one feed's partitions by leases; one is killed."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.feeds.memory import MemoryFeed, MemoryFeedSettings
from tests.pipeline.running import Run, count, eventually, messages, running
from tests.pipeline.test_partitions import assert_exact
from tests.servers import Nats

pytestmark = [pytest.mark.live, pytest.mark.spark, pytest.mark.fault, pytest.mark.timeout(1800)]

# Of `assert_exact`, too.
CHANGES, PARTITIONS = 200, 12
SOON = 400.0
# Slow reads: the hosts are at it for a long time.
FEED: dict[str, Any] = {
    "changes": CHANGES, "partitions": PARTITIONS, "page": 10, "latency": "1s", "polled": True,
}  # fmt: skip


@contextmanager
def host(folder: Path, store: Path, nats: Nats, stream: str) -> Iterator[Run]:
    folder.mkdir()
    pipeline = {
        "name": "many",
        "backends": [{"name": "default", "type": "memory", **FEED}],
        "sink": {
            "type": "jetstream",
            "url": nats.url,
            "stream": stream,
            "subject": f"{stream.lower()}.{{source_partition}}",
            "delivery": "exactly-once",
        },
        "share": "leases",
        "leases": {"renew": "0.5s", "acquire": "0.5s", "expire": "10s"},
        "positions": f"sqlite:///{store}",
        "checkpoint": {"interval": "0.5s"},
        "state": str(folder / "state"),
        "ops": {"port": 0},
    }
    with running(folder, pipeline) as run:
        yield run


def has(run: Run) -> int:
    """How many partitions it reads."""
    (backend,) = run.status()["backends"]
    return int(backend["partition_states"].get("reading", 0))


def test_hosts_divide_a_feed_and_what_a_killed_one_had_goes_on_once(
    tmp_path: Path, nats: Nats, stream: str
) -> None:
    store = tmp_path / "positions.db"
    feed = MemoryFeed(MemoryFeedSettings.model_validate({"name": "default", **FEED}))
    total = CHANGES * PARTITIONS
    with (
        host(tmp_path / "1", store, nats, stream) as first,
        host(tmp_path / "2", store, nats, stream) as second,
    ):
        half = PARTITIONS // 2
        eventually(lambda: (has(first), has(second)) == (half, half), seconds=SOON, run=first)
        assert count(nats, stream) < total, "they divide what is left to do"
        first.kill()
        eventually(lambda: has(second) == PARTITIONS, seconds=SOON, run=second)
        eventually(lambda: count(nats, stream) >= total, seconds=SOON, run=second)
        assert second.stop() == 0
    assert_exact(feed, [message.id for message in messages(nats, stream)])
