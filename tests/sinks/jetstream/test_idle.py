"""Silence is a fault only while an answer is due: an idle sink keeps its connection."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock.model.errors import Unavailable
from penstock.model.position import PartitionId
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSettings, JetStreamSink
from penstock.sinks.jetstream.server import JetStreamServer
from tests.progress import Noted
from tests.servers import Nats
from tests.sinks.changes import batch_of

pytestmark = pytest.mark.live

TIMEOUT = 4.0  # a busy machine takes its time to answer
SURE = ["exactly-once", pytest.param("deduplicated", marks=pytest.mark.thorough)]


def settings(nats: Nats, stream: str, delivery: str) -> JetStreamSettings:
    return JetStreamSettings(
        url=nats.url,
        stream=stream,
        subject=f"{stream.lower()}.{{collection}}.{{operation}}",
        delivery=delivery,
        timeout=TIMEOUT,
    )


@pytest.mark.parametrize("delivery", SURE)
def test_a_pause_between_writes_is_no_fault(nats: Nats, stream: str, delivery: str) -> None:
    sink = JetStreamSink(settings(nats, stream, delivery))
    told: list[Any] = []
    for commit in range(1, 3):
        sink.write([batch_of(500, commit)], Noted(told.append))
        time.sleep(TIMEOUT + 0.1)
    assert [note for note in told if not note.get("connected", True)] == []


@pytest.mark.parametrize("delivery", SURE)
def test_a_pause_inside_an_open_end_is_no_fault(nats: Nats, stream: str, delivery: str) -> None:
    def slowly() -> Iterator[pa.RecordBatch]:
        for commit in range(1, 3):
            yield batch_of(500, commit)
            time.sleep(TIMEOUT + 0.1)

    told: list[Any] = []
    JetStreamSink(settings(nats, stream, delivery)).write(slowly(), Noted(told.append))
    assert [note for note in told if not note.get("connected", True)] == []


@pytest.mark.fault
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_question_after_the_server_was_restarted_is_answered(
    end: str, own_nats: Callable[..., Nats], stream: str
) -> None:
    server = own_nats()
    sink = JetStreamSink(settings(server, stream, "auto"))
    assert JetStreamServer(sink.settings).stream_info(stream) is not None
    for _ in range(2):
        getattr(server, end)()
        server.start()
        assert JetStreamServer(sink.settings).stream_info(stream) is not None
        assert sink.records("default", [PartitionId("shop")])


def test_a_question_while_the_server_is_away_is_unavailable(
    own_nats: Callable[..., Nats], stream: str
) -> None:
    server = own_nats()
    sink = JetStreamSink(settings(server, stream, "auto"))
    JetStreamServer(sink.settings).stream_info(stream)
    server.kill()
    with pytest.raises(Unavailable, match="no NATS server can be reached"):
        JetStreamServer(sink.settings).stream_info(stream)


def test_a_process_that_never_wrote_says_nothing_of_a_delivery(nats: Nats, stream: str) -> None:
    sink = JetStreamSink(settings(nats, stream, "auto"))
    assert "delivery" not in sink.write(iter([]), ignore).numbers
    assert sink.write([batch_of(1)], ignore).numbers["delivery"] == "exactly-once"
    assert sink.write(iter([]), ignore).numbers["delivery"] == "exactly-once"
