"""Publishing one by one: the window, message ids, and delivery without them."""

import threading
from typing import Any

import pytest

from penstock.model.errors import Unavailable
from penstock.nats.api import JetStream
from penstock.nats.connection import Connection
from penstock.nats.protocol import Msg
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSettings, JetStreamSink
from penstock.sinks.jetstream.publishing.individual import Individual
from penstock.sinks.jetstream.stream import ensure
from penstock.sinks.rows.flow import Flow
from penstock.sinks.rows.loop import Tally
from penstock.sinks.settings import BreakerSettings, PressureSettings
from penstock.sinks.subject import parse_template
from tests.progress import Noted
from tests.servers import Nats
from tests.sinks.changes import batch_of, encoded, ids_in, ids_of, read

pytestmark = pytest.mark.live


@pytest.mark.parametrize("delivery", ["deduplicated", "at-least-once"])
@pytest.mark.parametrize(
    "window", [{"window": 1}, {"window": 7}, {"window_bytes": 1}, {"window_bytes": "2KiB"}, {}]
)
def test_order_holds_in_any_window(
    delivery: str, window: dict[str, Any], sink_of: Any, stored: Any
) -> None:
    sink = sink_of(delivery=delivery, **window)
    batches = [batch_of(60, n) for n in range(1, 6)]
    assert sink.write(batches, ignore).published == 300
    assert stored() == ids_of(*batches)


def test_the_event_id_is_the_message_id(nats: Nats, stream: str, sink_of: Any) -> None:
    sink_of(delivery="deduplicated").write([batch_of(1, 9)], ignore)
    (message,) = read(nats.url, stream)
    assert message.headers == {
        "Nats-Msg-Id": "default:00000000/00000009:0",
        "Penstock-Position": "default shop 00000000/00000009:0",
        "Penstock-Schema": "1",
        "Content-Type": "application/msgpack",
    }
    assert message.subject == f"{stream}.items.insert"


def test_without_ids_a_replay_is_stored_again(nats: Nats, stream: str, sink_of: Any) -> None:
    sink = sink_of(delivery="at-least-once")
    sink.write([batch_of(3)], ignore)
    assert sink.write([batch_of(3)], ignore).published == 3
    stored = read(nats.url, stream)
    assert len(stored) == 6
    assert not [message for message in stored if "Nats-Msg-Id" in message.headers]


def test_the_streams_of_both_deliveries_have_the_same_bodies(
    nats: Nats, stream: str, settings_of: Any
) -> None:
    bodies = []
    for delivery in ("deduplicated", "exactly-once"):
        name = f"{stream}{delivery[:1].upper()}"
        settings = settings_of(
            nats.url, delivery=delivery, stream=name, subject=f"{name}.{{collection}}"
        )
        JetStreamSink(settings).write([batch_of(20, 1)], ignore)
        bodies.append([message.data for message in read(nats.url, name)])
    assert bodies[0] == bodies[1]
    assert len(bodies[0]) == 20


def test_what_is_behind_a_refused_message_is_not_stored_before_it(
    own_nats: Any, stream: str, settings_of: Any
) -> None:
    """The stream has room for the small changes behind a large one, and not for that."""
    server: Nats = own_nats()
    settings = settings_of(server.url, delivery="deduplicated", encoding="json")
    connection = Connection(settings)
    connection.open()
    api = JetStream(connection)
    config = {"name": stream, "subjects": [f"{stream}.>"], "discard": "new"}
    api.create({**config, "max_bytes": 20_000})
    images = ['{"a":"x"}'] * 12
    images[5] = '{"a":"' + "x" * 30_000 + '"}'
    batch = batch_of(12, after=images)
    told: list[Any] = []

    def notify(note: Any) -> None:
        if note.get("connected") is False:
            told.append(note)
        if len(told) == 2 and note is told[-1]:
            assert ids_in(server.url, stream) == ids_of(batch)[:5]
            api._call(f"STREAM.UPDATE.{stream}", {**config, "max_bytes": -1})

    JetStreamSink(settings).write([batch], Noted(notify))
    connection.close()
    assert ids_in(server.url, stream) == ids_of(batch)


def test_others_that_write_between_cost_a_few_chains_and_no_change(
    nats: Nats, stream: str, settings_of: Any
) -> None:
    settings = settings_of(nats.url, delivery="deduplicated", window=20)
    JetStreamSink(settings).prepare()
    connection = Connection(settings)
    connection.open()
    end = threading.Event()

    def disturb() -> None:
        while not end.is_set():
            connection.request(f"{stream}.other.x", b"not ours")

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        batches = [batch_of(300, n) for n in range(1, 6)]
        receipt = JetStreamSink(settings).write(batches, ignore)
    finally:
        end.set()
        thread.join()
    connection.close()
    assert receipt.published == 1500
    assert receipt.numbers["resent"] > 0
    ours = [m.headers["Nats-Msg-Id"] for m in read(nats.url, stream) if "Nats-Msg-Id" in m.headers]
    assert sorted(ours) == sorted(ids_of(*batches))


def test_a_replay_of_stored_changes_is_answered_as_duplicates_in_one_go(sink_of: Any) -> None:
    sink = sink_of(delivery="deduplicated")
    sink.write([batch_of(500, 1)], ignore)
    receipt = sink.write([batch_of(500, 1), batch_of(100, 2)], ignore)
    assert (receipt.published, receipt.duplicates, receipt.numbers["resent"]) == (100, 500, 0)
    assert receipt.numbers["delivery"] == "deduplicated"
    assert receipt.numbers["details"]["reason"] == "as configured"


def test_a_duplicate_that_is_not_stored_yet_is_sent_again() -> None:
    """What 2.10 says on a replicated stream while, or because, the first attempt was refused."""
    publisher = Individual(
        Tally(), Flow(PressureSettings(), BreakerSettings()), window=9, window_bytes=9
    )
    connection = Connection(JetStreamSettings(url="nats://h"))
    answer = Msg(
        f"{connection.inbox}.0".encode(), b"", b"", b'{"stream":"S", "seq":0,"duplicate": true}'
    )
    with pytest.raises(Unavailable, match="not stored yet"):
        publisher._count(connection, [answer])


def test_what_is_not_acknowledged_is_released(nats: Nats, settings_of: Any) -> None:
    """The first of two parts is stored, the second was not sent yet."""
    settings = settings_of(nats.url, delivery="deduplicated")
    template = parse_template(settings.subject)
    connection = Connection(settings)
    connection.open()
    api = JetStream(connection)
    ensure(connection, api, settings, template)
    publisher = Individual(
        Tally(), Flow(settings.pressure, settings.breaker), window=8000, window_bytes=1 << 20
    )
    publisher.resume(connection, api)
    first, second = batch_of(3, 1), batch_of(4, 2)
    publisher.add(encoded(first, settings.subject))
    publisher.pump(drain=True)
    publisher.add(encoded(second, settings.subject))
    released = publisher.release(api)
    assert [one for messages in released for one in messages.keys.ids.to_pylist()] == ids_of(second)
    connection.close()
