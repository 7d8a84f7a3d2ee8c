"""Silence is a fault only while an answer is due: an idle sink keeps its connection."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock.model.errors import Unavailable
from penstock.model.position import PartitionId
from penstock.sinks import ignore
from penstock.sinks.jetstream.server import JetStreamServer
from tests.progress import Noted
from tests.servers import Nats
from tests.sinks.changes import batch_of

TIMEOUT = 4.0  # a busy machine takes its time to answer


@pytest.mark.parametrize("inside", [False, True])
def test_a_pause_between_writes_or_inside_one_is_no_fault(
    sink_of: Any, delivery: str, inside: bool
) -> None:
    def slowly() -> Iterator[pa.RecordBatch]:
        for commit in range(1, 3):
            yield batch_of(500, commit)
            time.sleep(TIMEOUT + 0.1)

    sink, told = sink_of(delivery=delivery, timeout=TIMEOUT), Noted()
    for changes in [slowly()] if inside else ([batch] for batch in slowly()):
        sink.write(changes, told)
    assert not told.outages


@pytest.mark.fault
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_a_question_after_the_server_was_restarted_is_answered(
    end: str, own_nats: Callable[..., Nats], stream: str, sink_of: Any
) -> None:
    server = own_nats()
    sink = sink_of(server.url, timeout=TIMEOUT)
    assert JetStreamServer(sink.settings).stream_info(stream) is not None
    for _ in range(2):
        getattr(server, end)()
        server.start()
        assert JetStreamServer(sink.settings).stream_info(stream) is not None
        assert sink.records("default", [PartitionId("shop")])


def test_a_question_while_the_server_is_away_is_unavailable(
    own_nats: Callable[..., Nats], stream: str, sink_of: Any
) -> None:
    server = own_nats()
    sink = sink_of(server.url, timeout=TIMEOUT)
    JetStreamServer(sink.settings).stream_info(stream)
    server.kill()
    with pytest.raises(Unavailable, match="no NATS server can be reached"):
        JetStreamServer(sink.settings).stream_info(stream)


def test_a_process_that_never_wrote_says_nothing_of_a_delivery(sink_of: Any) -> None:
    sink = sink_of()
    assert "delivery" not in sink.write(iter([]), ignore).numbers
    assert sink.write([batch_of(1)], ignore).numbers["delivery"] == "exactly-once"
    assert sink.write(iter([]), ignore).numbers["delivery"] == "exactly-once"
