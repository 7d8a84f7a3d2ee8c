"""Pull consumers: every message once and in order, whatever its size, and an end that is named."""

from typing import Any

import orjson
import pytest

from penstock.model.errors import SettingsError, Unavailable
from penstock.nats.api import JetStream
from penstock.nats.connection import Connection
from penstock.nats.consumers import Delivered, PullConsumer
from penstock.nats.settings import NatsSettings

ALL = {"deliver_policy": "all"}


@pytest.fixture
def filled(connection: Connection, stream: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A stream with 1,200 messages, which are asked for in three parts."""
    monkeypatch.setattr("penstock.nats.consumers._BATCH", 500)
    JetStream(connection).create({"name": stream, "subjects": [f"{stream}.>"], "storage": "memory"})
    put(connection, stream, *(b"%d" % number for number in range(1, 1201)))
    return stream


def put(connection: Connection, stream: str, *bodies: bytes) -> None:
    for at in range(0, len(bodies), 400):
        asked = [(f"{stream}.a", body, b"") for body in bodies[at : at + 400]]
        for answer in connection.requests(asked):
            assert "seq" in orjson.loads(answer.payload), answer.payload


def numbers(found: list[Delivered]) -> list[int]:
    return [one.sequence for one in found]


def test_the_rest_is_all_that_there_is(connection: Connection, filled: str) -> None:
    consumer = PullConsumer(connection, filled, ALL)
    assert consumer.pending == 1200
    found = consumer.rest()
    assert numbers(found) == list(range(1, 1201))
    assert [one.payload for one in found[-2:]] == [b"1199", b"1200"]
    assert (found[-1].pending, consumer.pending, consumer.rest()) == (0, 0, [])
    assert connection.receive(0) == []


def test_what_is_pending_counts_from_what_was_returned(connection: Connection, filled: str) -> None:
    consumer = PullConsumer(connection, filled, ALL)
    found = consumer.next(30, 7)
    assert numbers(found) == list(range(1, 8))
    assert consumer.pending == 1193
    assert found[0].stored_at <= found[1].stored_at


def test_more_is_asked_for_while_the_caller_works(connection: Connection, filled: str) -> None:
    consumer = PullConsumer(connection, filled, ALL)
    found: list[Delivered] = []
    while len(found) < 500:
        found += consumer.next(30, 500 - len(found))
    assert connection._wait(write=False, timeout=30)
    while len(found) < 1200:
        found += consumer.next(30)
    assert numbers(found) == list(range(1, 1201))


def test_nothing_new_is_an_empty_list_in_time(connection: Connection, filled: str) -> None:
    consumer = PullConsumer(connection, filled, {"deliver_policy": "new"})
    assert (consumer.pending, consumer.rest(), consumer.next(0.1)) == (0, [], [])
    put(connection, filled, b"more")
    assert numbers(consumer.next(30)) == [1201]


def test_messages_that_are_deleted_meanwhile_are_no_rest(
    connection: Connection, filled: str
) -> None:
    consumer = PullConsumer(connection, filled, ALL)
    connection.request(f"$JS.API.STREAM.PURGE.{filled}")
    assert consumer.rest() == []


@pytest.mark.parametrize("size", [10_000, 10_000_000])
def test_messages_of_any_size_come(size: int, own_nats: Any, stream: str) -> None:
    """A request asks for a bounded number of bytes: a message may have more."""
    connection = Connection(NatsSettings.model_validate({"url": own_nats({
        "max_payload": 12_000_000,
    }).url, "timeout": 60}))  # fmt: skip
    connection.open()
    JetStream(connection).create({"name": stream, "subjects": [f"{stream}.>"]})
    put(connection, stream, b"x" * size, b"y", b"z" * size)
    consumer = PullConsumer(connection, stream, ALL)
    found: list[Delivered] = []
    while len(found) < 3 and (some := consumer.next(60)):
        found += some
    assert [len(one.payload) for one in found] == [size, 1, size]
    connection.close()


def test_a_request_is_bounded_in_bytes(connection: Connection, stream: str) -> None:
    JetStream(connection).create({"name": stream, "subjects": [f"{stream}.>"]})
    put(connection, stream, *([b"x" * 1_000_000] * 20))
    consumer = PullConsumer(connection, stream, ALL)
    found: list[list[Delivered]] = []
    while consumer.pending and (some := consumer.next(30)):
        found.append(some)
    assert max(map(len, found)) <= 8
    assert numbers([one for some in found for one in some]) == list(range(1, 21))


def test_what_arrived_before_the_end_is_returned_before_it_is_raised(
    connection: Connection, filled: str
) -> None:
    consumer = PullConsumer(connection, filled, ALL)
    assert len(consumer.next(30, 1)) == 1
    (name,) = orjson.loads(connection.request(f"$JS.API.CONSUMER.NAMES.{filled}").payload)[
        "consumers"
    ]
    connection.request(f"$JS.API.CONSUMER.DELETE.{filled}.{name}")
    found = []
    with pytest.raises(Unavailable, match="has ended"):
        for _ in range(1200):
            found += consumer.next(30)
    assert numbers(found) == list(range(2, len(found) + 2))


def test_two_consumers_share_a_connection(connection: Connection, filled: str) -> None:
    one, other = (PullConsumer(connection, filled, ALL) for _ in range(2))
    found: dict[PullConsumer, list[Delivered]] = {one: [], other: []}
    while min(map(len, found.values())) < 1200:
        for consumer, messages in found.items():
            messages += consumer.next(30 if len(messages) < 1200 else 0, 100)
    assert [numbers(messages) for messages in found.values()] == [list(range(1, 1201))] * 2


def test_a_missing_stream_is_a_settings_error_with_the_hint(connection: Connection) -> None:
    with pytest.raises(SettingsError, match="NOWHERE") as caught:
        PullConsumer(connection, "NOWHERE", ALL, hint="make it")
    assert caught.value.hint.endswith("make it")
