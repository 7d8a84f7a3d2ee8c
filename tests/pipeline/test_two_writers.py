"""Two instances whose positions are not shared, from a source that anyone may read: one writes."""

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.feeds.memory import MemoryFeedSettings, place_of
from penstock.model.position import PartitionId
from tests.pipeline.running import Run, count, eventually, messages, running, send, tree
from tests.pipeline.test_two_instances import java, published
from tests.servers import Nats

pytestmark = [pytest.mark.fault, pytest.mark.timeout(1800)]

CHANGES = 200_000
# Some 200 changes a second, for far longer than the test waits.
FEED: dict[str, Any] = {"changes": CHANGES, "page": 10, "latency": "400ms"}
# Seconds in which Spark has started and something is published, on a machine with much to do.
SOON = 400.0


@contextmanager
def started(folder: Path, nats: Nats, stream: str) -> Iterator[Run]:
    """A run with a positions store of its own."""
    folder.mkdir()
    pipeline = {
        "backends": [{"name": "default", "type": "memory", **FEED}],
        "sink": {
            "type": "jetstream",
            "url": nats.url,
            "stream": stream,
            "subject": f"{stream.lower()}.{{source_partition}}",
        },
        "checkpoint": {"interval": "0.5s"},
    }
    with running(folder, pipeline) as run:
        yield run


@contextmanager
def on_standby(folder: Path, nats: Nats, stream: str) -> Iterator[Run]:
    with started(folder, nats, stream) as run:
        eventually(lambda: run.status()["health"] == "standby", run=run)
        yield run


def publishes(run: Run, before: int = 0) -> None:
    """Waits until it has published more than before."""
    eventually(lambda: published(run) > before, seconds=SOON, run=run)


def takes_over(run: Run) -> None:
    """It does not wait any more within seconds, and publishes once Spark has started."""
    eventually(lambda: 'event="taking over"' in run.log, seconds=120, run=run)
    publishes(run, published(run))


def flows(nats: Nats, stream: str, changes: int, run: Run) -> None:
    """Waits until so many more are stored."""
    stored = count(nats, stream)
    eventually(lambda: count(nats, stream) > stored + changes, seconds=SOON, run=run)


def assert_refused(second: Run, first: Run) -> None:
    """It names the other and what to set, publishes nothing, and costs no JVM."""
    code, text = second.get("/health")
    (reason,) = json.loads(text)["reasons"]
    assert code == 200
    assert f":{first.process.pid}:" in reason
    assert "set positions to a store that all instances reach" in reason
    assert second.status()["standby"] == reason
    assert f'event="standby: {reason}' in second.log
    assert second.get("/ready")[0] == 503
    assert published(second) == 0
    assert not java(second)


def assert_once(nats: Nats, stream: str) -> None:
    """What is stored is the beginning of the feed, each change once and in order."""
    settings = MemoryFeedSettings.model_validate({"name": "default", **FEED})
    found = [message.id for message in messages(nats, stream)]
    name = PartitionId("p0")
    assert found == [f"default:{place_of(settings, name, n)}" for n in range(len(found))]


def test_a_frozen_instance_is_on_standby_when_it_wakes(
    nats: Nats, stream: str, tmp_path: Path
) -> None:
    with started(tmp_path / "1", nats, stream) as first:
        publishes(first)
        with on_standby(tmp_path / "2", nats, stream) as second:
            assert_refused(second, first)
            asleep = tree(first)
            send(asleep, signal.SIGSTOP)
            try:
                takes_over(second)
            finally:
                send(asleep, signal.SIGCONT)
            eventually(lambda: first.status()["health"] == "standby", run=first)
            assert f":{second.process.pid}:" in first.status()["standby"]
            assert 'event="another instance has taken over"' in first.log
            flows(nats, stream, 100, second)  # the last word of what it did before may come later
            before = published(first)
            flows(nats, stream, 500, second)
            assert published(first) == before, "it publishes on standby"
            for each in (first, second):  # else the first takes over
                assert each.stop() == 0
    assert_once(nats, stream)
