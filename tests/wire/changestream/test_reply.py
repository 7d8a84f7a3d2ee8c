"""A reply's cursor, read without its events."""

import bson
import pytest
from bson.int64 import Int64
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import Malformed
from penstock.wire.changestream.events import events
from penstock.wire.changestream.reply import Reply, read_cursor
from tests.wire.changestream.made import event

CURSOR = {
    "nextBatch": [event(1), event(2)],
    "postBatchResumeToken": {"_data": "82"},
    "partialResultsReturned": True,
    "id": Int64(2**62),
    "ns": "shop.$cmd.aggregate",
}


def test_a_reply_has_events_token_cursor_and_collection() -> None:
    reply = read_cursor(bson.encode(CURSOR))
    assert len(events(reply.payload).events) == 2
    assert bson.decode(reply.token) == {"_data": "82"}
    assert reply[2:] == (2**62, "$cmd.aggregate")


def test_a_first_reply_has_another_name_for_its_events() -> None:
    reply = read_cursor(bson.encode({"firstBatch": [], "id": Int64(0), "ns": "a.b"}))
    assert reply == Reply(b"", b"", 0, "b")


@given(st.integers(0, len(bson.encode(CURSOR)) - 1))
def test_any_prefix_is_malformed(size: int) -> None:
    with pytest.raises(Malformed):
        read_cursor(bson.encode(CURSOR)[:size])


@given(st.binary(max_size=100))
def test_garbage_is_malformed_or_a_reply(garbage: bytes) -> None:
    try:
        read_cursor(garbage)
    except Malformed:
        return
