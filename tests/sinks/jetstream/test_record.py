"""What the sink knows of a partition by its stream alone: how far it is, and if it ever began."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from penstock.model.position import Bookmark, PartitionId, Place
from penstock.sinks import Record, ReportsPositions, ignore
from penstock.sinks.jetstream import JetStreamSettings, JetStreamSink
from tests.servers import Nats
from tests.sinks.changes import batch_of
from tests.sinks.jetstream.raw import Raw

pytestmark = pytest.mark.live

SHOP = PartitionId("shop")
MakeBatch = Callable[..., pa.RecordBatch]


def sink_of(nats: Nats, stream: str, **settings: Any) -> JetStreamSink:
    given = {"url": nats.url, "stream": stream, "subject": f"{stream}.{{collection}}", **settings}
    return JetStreamSink(JetStreamSettings.model_validate(given))


def record_of(sink: JetStreamSink, backend: str = "default") -> Record:
    return sink.records(backend, [SHOP])[SHOP]


@pytest.fixture
def sink(nats: Nats, stream: str) -> JetStreamSink:
    made = sink_of(nats, stream)
    made.prepare()
    return made


def test_a_new_stream_has_no_record(sink: JetStreamSink) -> None:
    assert isinstance(sink, ReportsPositions)
    assert record_of(sink) == Record()


def test_the_last_message_says_how_far_a_partition_is(sink: JetStreamSink) -> None:
    sink.write([batch_of(3, 7)], ignore)
    place = Place("00000000/00000007", 2)
    assert record_of(sink) == Record(bookmark=Bookmark(place, {}), begun=True)
    assert record_of(sink, "another") == Record(), "the stream is not its own"


def test_a_stream_that_was_emptied_is_no_new_one(
    sink: JetStreamSink, nats: Nats, stream: str
) -> None:
    sink.write([batch_of(3, 7)], ignore)
    Raw(nats.url).api._call(f"STREAM.PURGE.{stream}", {})
    assert record_of(sink) == Record(begun=True, emptied=True)


@pytest.mark.parametrize("delivery", ["deduplicated", "at-least-once"])
def test_where_a_change_may_be_stored_behind_later_ones_the_last_says_nothing(
    nats: Nats, stream: str, delivery: str
) -> None:
    sink = sink_of(nats, stream, delivery=delivery)
    sink.write([batch_of(3, 7)], ignore)
    assert record_of(sink) == Record(begun=True)
