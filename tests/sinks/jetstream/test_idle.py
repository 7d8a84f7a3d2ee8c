"""Silence is a fault only while an answer is due: an idle sink keeps its connection."""

import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock.demo.servers import Nats
from penstock.sinks.jetstream import JetStreamSettings, JetStreamSink
from tests.sinks.conftest import MakeBatch

pytestmark = pytest.mark.live

TIMEOUT = 2.0


def settings(nats: Nats, stream: str, delivery: str) -> JetStreamSettings:
    return JetStreamSettings(
        url=nats.url,
        stream=stream,
        subject=f"{stream.lower()}.{{collection}}.{{operation}}",
        delivery=delivery,
        timeout=TIMEOUT,
    )


@pytest.mark.parametrize("delivery", ["exactly-once", "deduplicated"])
def test_a_pause_between_writes_is_no_fault(
    nats: Nats, stream: str, batch_of: MakeBatch, delivery: str
) -> None:
    sink = JetStreamSink(settings(nats, stream, delivery))
    told: list[Any] = []
    for commit in range(1, 4):
        sink.write([batch_of(500, commit)], told.append)
        time.sleep(TIMEOUT + 0.1)
    assert [note for note in told if not note.get("connected", True)] == []


@pytest.mark.parametrize("delivery", ["exactly-once", "deduplicated"])
def test_a_pause_inside_an_open_end_is_no_fault(
    nats: Nats, stream: str, batch_of: MakeBatch, delivery: str
) -> None:
    def slowly() -> Iterator[pa.RecordBatch]:
        for commit in range(1, 4):
            yield batch_of(500, commit)
            time.sleep(TIMEOUT + 0.1)

    told: list[Any] = []
    JetStreamSink(settings(nats, stream, delivery)).write(slowly(), told.append)
    assert [note for note in told if not note.get("connected", True)] == []


def test_a_process_that_never_wrote_says_nothing_of_a_delivery(
    nats: Nats, stream: str, batch_of: MakeBatch
) -> None:
    sink = JetStreamSink(settings(nats, stream, "auto"))
    assert "delivery" not in sink.write(iter([])).numbers
    assert sink.write([batch_of(1)]).numbers["delivery"] == "exactly-once"
    assert sink.write(iter([])).numbers["delivery"] == "exactly-once"
