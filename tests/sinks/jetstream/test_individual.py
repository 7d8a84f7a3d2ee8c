"""Publishing one by one: the window, message ids, and delivery without them."""

from typing import Any

import pytest

from penstock.demo.servers import Nats
from penstock.sinks.jetstream import JetStreamSink

pytestmark = pytest.mark.live


@pytest.mark.parametrize("delivery", ["deduplicated", "at-least-once"])
@pytest.mark.parametrize(
    "window", [{"window": 1}, {"window": 7}, {"window_bytes": 1}, {"window_bytes": "2KiB"}, {}]
)
def test_order_holds_in_any_window(
    delivery: str,
    window: dict[str, Any],
    nats: Nats,
    stream: str,
    settings_of: Any,
    batch_of: Any,
    ids_of: Any,
    read: Any,
) -> None:
    sink = JetStreamSink(settings_of(nats.url, delivery=delivery, **window))
    batches = [batch_of(60, n) for n in range(1, 6)]
    assert sink.write(batches).published == 300
    assert [message.event_id for message in read(nats.url, stream)] == ids_of(*batches)


def test_the_event_id_is_the_message_id(
    nats: Nats, stream: str, settings_of: Any, batch_of: Any, read: Any
) -> None:
    JetStreamSink(settings_of(nats.url, delivery="deduplicated")).write([batch_of(1, 9)])
    (message,) = read(nats.url, stream)
    assert message.headers == {
        "Nats-Msg-Id": "default:00000000/00000009:0",
        "Penstock-Position": "default shop 00000000/00000009:0",
        "Penstock-Schema": "1",
        "Content-Type": "application/msgpack",
    }
    assert message.subject == f"{stream}.items.insert"


def test_without_ids_a_replay_is_stored_again(
    nats: Nats, stream: str, settings_of: Any, batch_of: Any, read: Any
) -> None:
    sink = JetStreamSink(settings_of(nats.url, delivery="at-least-once"))
    sink.write([batch_of(3)])
    assert sink.write([batch_of(3)]).published == 3
    stored = read(nats.url, stream)
    assert len(stored) == 6
    assert not [message for message in stored if "Nats-Msg-Id" in message.headers]


def test_a_replay_inside_the_duplicate_window_is_counted(
    nats: Nats, settings_of: Any, batch_of: Any
) -> None:
    sink = JetStreamSink(settings_of(nats.url, delivery="deduplicated"))
    sink.write([batch_of(900, 1)])
    receipt = sink.write([batch_of(900, 1), batch_of(50, 2)])
    assert (receipt.published, receipt.duplicates) == (50, 900)
    assert receipt.numbers["delivery"] == "deduplicated"
    assert receipt.numbers["reason"] == "as configured"


def test_the_streams_of_both_deliveries_have_the_same_bodies(
    nats: Nats, stream: str, settings_of: Any, batch_of: Any, read: Any
) -> None:
    bodies = []
    for delivery in ("deduplicated", "exactly-once"):
        name = f"{stream}{delivery[:1].upper()}"
        settings = settings_of(
            nats.url, delivery=delivery, stream=name, subject=f"{name}.{{collection}}"
        )
        JetStreamSink(settings).write([batch_of(20, 1)])
        bodies.append([message.data for message in read(nats.url, name)])
    assert bodies[0] == bodies[1]
    assert len(bodies[0]) == 20
