"""A reply's cursor; where its events begin and end, and what each head says."""

import bson
import pytest
from bson.int64 import Int64
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import Malformed
from penstock.model.position import Place
from penstock.wire.changestream.events import (
    Placer,
    Reply,
    cursor_of,
    cursor_time,
    events,
    read_cursor,
)
from tests.wire.changestream.made import TIME, event, payload

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
def test_any_prefix_of_a_reply_is_malformed(size: int) -> None:
    with pytest.raises(Malformed):
        read_cursor(bson.encode(CURSOR)[:size])


@given(st.binary(max_size=100))
def test_garbage_is_malformed_or_a_reply(garbage: bytes) -> None:
    try:
        read_cursor(garbage)
    except Malformed:
        return


def test_each_event_has_its_token_and_time() -> None:
    run = events(payload(event(4), event(5), event(6)))
    assert [each.time for each in run.events] == [TIME << 32 | number // 2 for number in (4, 5, 6)]
    assert [bson.decode(each.token) for each in run.events] == [
        event(number)["_id"] for number in (4, 5, 6)
    ]
    assert len({each.token for each in run.events}) == 3


def test_fields_in_another_order_are_found_too() -> None:
    usual = event(3)
    odd = {"ns": usual.pop("ns"), **usual}
    typed = event(3, _id={"_data": "82AA", "_typeBits": b"\x01"})
    assert events(payload(odd)).events[0][1:] == events(payload(event(3))).events[0][1:]
    assert bson.decode(events(payload(typed)).events[0].token) == typed["_id"]


def test_what_a_document_holds_is_not_taken_for_an_event_of_its_own() -> None:
    nested = event(1, fullDocument={"splitEvent": {"fragment": 1, "of": 2}, "event": event(9)})
    run = events(payload(nested, event(2)))
    assert len(run.events) == 2
    assert run.events[0].time == TIME << 32


def test_fragments_are_one_event_with_the_first_time_and_the_last_token() -> None:
    first = event(1, splitEvent={"fragment": 1, "of": 2})
    second = {
        "_id": {"_data": "8202"},
        "splitEvent": {"fragment": 2, "of": 2},
        "fullDocument": {"_id": 1},
    }
    whole = payload(event(0), first, second, event(3))
    run = events(whole)
    assert [len(each.documents) for each in run.events] == [1, 2, 1]
    assert bson.decode(run.events[1].token) == second["_id"]
    assert bson.decode(run.events[1].name) == first["_id"]
    assert run.events[1].time == events(payload(event(1))).events[0].time
    assert run.end == len(whole)


def test_an_incomplete_event_waits_for_its_other_fragments() -> None:
    first = event(1, splitEvent={"fragment": 1, "of": 2})
    second = event(2, splitEvent={"fragment": 2, "of": 2})
    begun = payload(event(0), first)
    run = events(begun)
    assert len(run.events) == 1
    assert run.end == len(payload(event(0)))
    rest = begun[run.end :] + payload(second)
    assert len(events(rest).events[0].documents) == 2


def test_an_unsplit_event_that_says_so_is_whole() -> None:
    run = events(payload(event(1, splitEvent={"fragment": 1, "of": 1}), event(2)))
    assert [len(each.documents) for each in run.events] == [1, 1]


def test_an_event_without_time_or_token_is_still_one() -> None:
    run = events(payload({"x": 1}, event(1), event(2, clusterTime=...)))
    assert [bool(each.token) for each in run.events] == [False, True, True]
    assert run.events[2].time == 0


@given(st.integers(0, 400))
def test_any_prefix_is_malformed_or_fewer_events(size: int) -> None:
    whole = payload(event(1), event(2))
    try:
        run = events(whole[:size])
    except Malformed:
        return
    assert len(run.events) == sum(
        size >= len(payload(*found)) for found in ([event(1)], [event(1), event(2)])
    )


@given(st.binary(max_size=200))
def test_garbage_is_malformed_or_events(garbage: bytes) -> None:
    try:
        events(garbage)
    except Malformed:
        return


def test_places_count_in_the_order_of_arrival() -> None:
    placer = Placer(0, -1)
    assert [placer.next(time) for time in (5, 5, 7, 6, 7, 9)] == [
        (5, 0), (5, 1), (7, 0), (7, 1), (7, 2), (9, 0),
    ]  # fmt: skip


def test_a_counter_goes_on_from_a_bookmarks() -> None:
    place = Place("e0001-" + cursor_of(5), 3)
    assert Placer.before(place, "e0001-").next(5) == (5, 3)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_cursors_compare_as_their_times(one: int, other: int) -> None:
    assert (cursor_of(one) < cursor_of(other)) == (one < other)
    assert cursor_time(cursor_of(one)) == one


@pytest.mark.parametrize("cursor", ["", "1", "x/y", "1/2/3"])
def test_another_cursor_is_malformed(cursor: str) -> None:
    with pytest.raises(Malformed):
        cursor_time(cursor)
