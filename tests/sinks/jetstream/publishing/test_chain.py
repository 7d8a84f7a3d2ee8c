"""Chains of plain messages: what is stored is a prefix, whatever happens in their middle."""

from typing import Any

import pyarrow as pa
import pytest

from penstock.model.errors import Rejected
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSink
from tests.servers import Nats, free_port
from tests.sinks.changes import batch_of, ids_of, interrupted, read
from tests.sinks.jetstream.raw import Raw

BEFORE = "Nats-Expected-Last-Msg-Id"
SEQUENCE = "Nats-Expected-Last-Sequence"
BATCH = "Nats-Batch-Id"


def headers(nats: Nats, stream: str) -> list[dict[str, str]]:
    return [dict(message.headers) for message in read(nats.url, stream)]


def test_each_message_names_the_one_before_it_and_none_is_in_a_batch(
    sink: JetStreamSink, nats: Nats, stream: str
) -> None:
    batches = [batch_of(3, 1), batch_of(2, 2)]
    sink.write(batches, ignore)
    ids = ids_of(*batches)
    found = headers(nats, stream)
    assert all(BATCH not in one for one in found)
    assert [one["Nats-Msg-Id"] for one in found] == ids
    # The first of a write knows the sequence only.
    assert found[0][SEQUENCE] == "0"
    assert BEFORE not in found[0]
    assert [one[BEFORE] for one in found[1:]] == ids[:-1]


def test_the_first_of_the_next_chain_names_both(
    sink: JetStreamSink, nats: Nats, stream: str
) -> None:
    sink.write([batch_of(1000, 1), batch_of(1000, 2)], ignore)
    first = headers(nats, stream)[1000]
    assert (first[SEQUENCE], first[BEFORE]) == ("1000", ids_of(batch_of(1000, 1))[-1])


def test_a_foreign_message_before_a_chain_keeps_it_out_and_is_left_alone(
    sink: JetStreamSink, raw: Raw, nats: Nats, stream: str
) -> None:
    def disturb() -> None:
        # Not under the sink's own subjects: another application of the stream.
        raw.update(stream, subjects=[f"{stream}.*.*", f"{stream}x"])
        raw.connection.request(f"{stream}x", b"{}")

    changes = interrupted(nats.url, stream, disturb, batch_of(5, 1), batch_of(5, 2))
    assert sink.write(changes, ignore).published == 10
    found = [one.get("Nats-Msg-Id") for one in headers(nats, stream)]
    assert found == [*ids_of(batch_of(5, 1)), None, *ids_of(batch_of(5, 2))]


def test_a_message_that_is_refused_in_the_middle_lets_nothing_behind_it_in(
    sink: JetStreamSink, raw: Raw, nats: Nats, stream: str, stored: Any
) -> None:
    """The server says nothing of a message without a reply: the batch after it finds out."""
    small, large = batch_of(5, 1), batch_of(1, 2, document_id="x" * 20_000)
    (whole,) = pa.Table.from_batches([small, large, batch_of(5, 3)]).combine_chunks().to_batches()
    shrink = lambda: raw.update(stream, max_msg_size=10_000)  # noqa: E731
    with pytest.raises(Rejected, match="10054"):
        sink.write(interrupted(nats.url, stream, shrink, batch_of(1, 0), whole), ignore)
    assert stored() == ids_of(batch_of(1, 0), small)


@pytest.mark.parametrize("known", ["monitoring", "assume_synced"])
def test_a_server_that_syncs_each_message_gets_atomic_batches(
    known: str, own_nats: Any, stream: str, sink_of: Any
) -> None:
    port = free_port()
    config = {"http": f"127.0.0.1:{port}", "jetstream": {"sync_interval": "always"}}
    server: Nats = own_nats(config)
    said = {"monitoring": f"http://127.0.0.1:{port}", "assume_synced": True}
    sink_of(server.url, **{known: said[known]}).write([batch_of(3)], ignore)
    assert all(BATCH in one for one in headers(server, stream))
