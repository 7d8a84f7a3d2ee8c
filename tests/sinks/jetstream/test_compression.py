"""Compressed messages on a real server: stored once, and read by everything of ours that reads."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from penstock.consumer.tail.reader import Message, TailReader
from penstock.model.change import ERROR
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSink
from tests.servers import Nats
from tests.sinks.changes import batch_of

pytestmark = pytest.mark.live

Make = Callable[..., JetStreamSink]
LONG = orjson.dumps({"text": "all work and no play " * 40}).decode()


@pytest.fixture
def make(sink_of: Any) -> Make:
    return lambda **fields: sink_of(compression="zstd", **fields)


@pytest.fixture
def changes(nats: Nats, stream: str) -> Callable[[int], list[Message]]:
    """All that the stream has, at least so many."""

    def read(least: int) -> list[Message]:
        found: list[Message] = []
        with TailReader(nats.url, stream) as reader:
            while len(found) < least:
                before = len(found)
                found += reader.fetch(timeout=30)
                assert len(found) > before
            return found + reader.fetch(timeout=0.1)

    return read


@pytest.mark.parametrize(
    ("form", "delivery"),
    [
        ({"encoding": "msgpack"}, "exactly-once"),
        ({"encoding": "msgpack"}, "deduplicated"),
        ({"encoding": "json", "messages": "batch"}, "exactly-once"),
        ({"encoding": "arrow", "messages": "batch"}, "exactly-once"),
    ],
)
def test_each_change_is_stored_once(
    form: Any, delivery: str, make: Make, changes: Callable[[int], list[Message]]
) -> None:
    after = [LONG, '{"id":1}', LONG]
    batches = [batch_of(3, n, after=after, collection=["a", "b", "a"]) for n in range(1, 5)]
    make(**form, delivery=delivery).write(batches[:3], ignore)
    make(**form, delivery=delivery).write(batches, ignore)
    found = changes(12)
    # With `messages: batch` those of another table may pass.
    assert sorted(one.event_id for one in found) == [
        f"default:00000000/{n:08X}:{place}" for n in range(1, 5) for place in range(3)
    ]
    by_id = {one.event_id: one for one in found}
    assert by_id["default:00000000/00000004:2"].body["data"] == orjson.loads(LONG)
    assert "zstd" in {one.headers.get("Content-Encoding") for one in found}


def test_a_replayed_dead_letter_is_read(
    make: Make, changes: Callable[[int], list[Message]]
) -> None:
    why = orjson.dumps({"reason": "not-utf8", "error": "e", "raw": "cmF3", "context": "Yw=="})
    bad = batch_of(
        2, after=[LONG, why.decode()], key=['{"id":0}', None], operation=["INSERT", ERROR]
    )
    sink = make(on_error="dead-letter")
    sink.write([bad], ignore)
    (letter,) = sink.dead_letters()
    sink.replay(letter["event_id"], lambda _: [batch_of(2, after=LONG).slice(1, 1)])
    found = changes(2)
    assert [one.event_id[-1] for one in found] == ["0", "1"]
    for one in found:
        assert one.headers["Content-Encoding"] == "zstd"
        assert one.body["data"] == orjson.loads(LONG)
    assert found[1].headers["Penstock-Replayed"] == letter["position"]


def test_a_change_that_is_too_large_as_it_is_may_fit(
    make: Make, changes: Callable[[int], list[Message]]
) -> None:
    large = orjson.dumps({"text": "x" * (2 << 20)}).decode()
    make().write([batch_of(2, after=[large, "{}"])], ignore)
    assert [len(one.body["data"].get("text", "")) for one in changes(2)] == [2 << 20, 0]
