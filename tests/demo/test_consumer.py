"""The consumer takes the whole stream in, whenever it starts, and says what it could not read."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest

from penstock.demo.consumer import Consumer
from tests.servers import Nats
from tests.sinks.changes import publish
from tests.waiting import until

KEYS = {"users": ("id",)}


def insert(number: int) -> bytes:
    body: dict[str, Any] = {
        "event_id": f"default:00000000/{number:08X}:0",
        "position": f"00000000/{number:08X}:0",
        "backend": "default",
        "operation": "INSERT",
        "collection": "users",
        "transaction": str(number),
        "key": {"id": number},
        "data": {"id": number},
        "before": None,
        "unchanged": [],
        "committed_at": datetime.now(UTC).isoformat(),
    }
    return orjson.dumps(body)


@pytest.fixture
def consumer(nats: Nats, stream: str) -> Iterator[Consumer]:
    """A consumer of a stream that is not there yet."""
    made = Consumer(nats.url, stream, KEYS)
    made.start()
    yield made
    made.stop()


def test_a_stream_that_is_made_later_is_read_from_its_beginning(
    consumer: Consumer, nats: Nats, stream: str
) -> None:
    until(lambda: consumer.error is not None)
    publish(nats.url, stream, [insert(number) for number in range(1, 4)])
    until(lambda: consumer.read_to == 3)
    assert consumer.replica.count == 3
    assert consumer.replica.tables["users"] == {(n,): {"id": n} for n in (1, 2, 3)}
    assert [message.sequence for message in consumer.latest] == [1, 2, 3]


def test_finishing_reads_everything_that_is_there(nats: Nats, stream: str) -> None:
    publish(nats.url, stream, [insert(number) for number in range(1, 801)])
    consumer = Consumer(nats.url, stream, KEYS)
    consumer.start()
    consumer.finish(120)
    assert (consumer.replica.count, consumer.read_to) == (800, 800)


def test_latency_is_from_commit_to_stored(
    consumer: Consumer, nats: Nats, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.demo.consumer.WARM_UP", 0.0)
    publish(nats.url, stream, [])
    publish(nats.url, stream, [insert(1)])
    until(lambda: consumer.read_to == 1)
    latency = consumer.meter.quantile(1.0)
    assert latency is not None
    assert 0 <= latency < 60


def test_a_message_that_is_no_change_is_told_to_the_verdict(
    consumer: Consumer, nats: Nats, stream: str
) -> None:
    publish(nats.url, stream, [insert(1), b"hello", insert(2)])
    until(lambda: consumer.read_to == 3)
    [problem] = consumer.replica.impossible
    assert "5 bytes" in problem
