"""Many partitions that split and merge, through Spark into JetStream, while processes die."""

import random
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.feeds.staged import StagedFeed, StagedSettings, place_of
from tests.pipeline.running import Run, count, eventually, messages, tree
from tests.servers import Nats

pytestmark = [
    pytest.mark.live, pytest.mark.spark, pytest.mark.fault, pytest.mark.usefixtures("staged"),
]  # fmt: skip

KILLS = 4
CHANGES = 200
# Slow reads, so that all processes die in the middle of it.
FEED: dict[str, Any] = {
    "changes": CHANGES, "partitions": 30, "generations": 2, "page": 10, "latency": "0.1s",
}  # fmt: skip


def pipeline(folder: Path, nats: Nats, stream: str, feed: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": "many",
        "backends": [{"name": "default", "type": "staged", **feed}],
        "sink": {
            "type": "jetstream",
            "url": nats.url,
            "stream": stream,
            "subject": f"{stream.lower()}.{{source_partition}}",
        },
        "checkpoint": {"interval": "0.5s"},
        "state": str(folder / "state"),
        "ops": {"port": 0},
    }


def assert_exact(feed: StagedFeed, ids: Sequence[str]) -> None:
    """Every change once, each partition in order, and none before the last of a parent."""
    assert len(ids) == len(set(ids))
    at = {event: number for number, event in enumerate(ids)}
    last: dict[str, int] = {}
    first: dict[str, int] = {}
    for name in feed.lineage:
        events = [f"default:{place_of(feed.settings, name, n)}" for n in range(CHANGES)]
        found = [at[event] for event in events]
        assert found == sorted(found), f"{name} is out of order"
        first[name], last[name] = found[0], found[-1]
    assert len(ids) == len(feed.lineage) * CHANGES
    for each in feed.lineage.values():
        assert all(last[parent] < first[each.partition] for parent in each.parents)


def victim(run: Run, random: random.Random) -> psutil.Process | None:
    """Any process of the run that is not about to end by itself."""
    found = []
    for process in tree(run):
        with suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return random.choice(found) if found else None


# So do DynamoDB's shards and Cosmos DB's key ranges, under the same kills.
@pytest.mark.thorough
@pytest.mark.parametrize(
    "polled",
    [False, True],
    ids=["read by one", "read by tasks"],
)
def test_splits_and_merges_are_exact_under_kill_9(
    tmp_path: Path, nats: Nats, stream: str, polled: bool
) -> None:
    seed = random.Random(20261122)
    document = pipeline(tmp_path, nats, stream, {**FEED, "polled": polled})
    feed = StagedFeed(StagedSettings.model_validate({"name": "default", **FEED}))
    total = len(feed.lineage) * CHANGES
    run = Run(tmp_path, document)
    try:
        for kill in range(KILLS):
            # Somewhere in the next part of the stream, or when it is all there.
            wanted = min(total, total * (kill + 1) // (KILLS + 1))
            eventually(lambda wanted=wanted: count(nats, stream) >= wanted, seconds=240)
            process = victim(run, seed) if kill else psutil.Process(run.process.pid)
            with suppress(psutil.Error):
                if process is not None:
                    process.send_signal(signal.SIGKILL)
            time.sleep(0.3)
            if run.process.poll() is not None:
                run = Run(tmp_path, document)
        eventually(lambda: count(nats, stream) >= total, seconds=240, run=run)
    finally:
        if run.process.poll() is None:
            run.stop()
    assert_exact(feed, [message.id for message in messages(nats, stream)])
