"""Dead letters that are published after all: with their own id, and without disturbing anybody."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pytest

from penstock.model.change import ERROR
from penstock.model.errors import Malformed, Rejected, SettingsError
from penstock.model.page import Page
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSink
from tests.servers import Nats
from tests.sinks.changes import batch_of, read


@pytest.fixture(params=["exactly-once", "deduplicated"])
def delivery(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sink_of(settings_of: Callable[..., Any], nats: Nats) -> Callable[..., JetStreamSink]:
    return lambda **more: JetStreamSink(
        settings_of(nats.url, **{"on_error": "dead-letter", "encoding": "json", **more})
    )


def spoilt(commit: int = 1) -> pa.RecordBatch:
    """Three changes, the second an error."""
    good = batch_of(3, commit)
    why = orjson.dumps({"reason": "not-utf8", "error": "e", "raw": "cmF3", "context": "Yw=="})
    after = good.column("after").to_pylist()
    after[1] = why.decode()
    key = [None if n == 1 else v for n, v in enumerate(good.column("key").to_pylist())]
    return batch_of(3, commit, after=after, key=key, operation=["INSERT", ERROR, "INSERT"])


class Feed:
    """What decodes a page with one change; `good` is what it reads then."""

    def __init__(self, good: pa.RecordBatch | None) -> None:
        self.good = good
        self.pages: list[Page] = []

    def decode(self, page: Page) -> Sequence[pa.RecordBatch]:
        self.pages.append(page)
        if self.good is None:
            raise Malformed("column v of public.t is not UTF-8")
        return [self.good]


def placed(nats: Nats, stream: str) -> list[tuple[str, str]]:
    """(event id, the place that the header says), without what they share."""
    return [
        (message.event_id[-10:], message.headers["Penstock-Position"][-10:])
        for message in read(nats.url, stream)
    ]


def test_a_replayed_change_has_its_id_and_does_not_move_the_record(
    delivery: str, sink_of: Any, nats: Nats, stream: str
) -> None:
    sink = sink_of(delivery=delivery)
    sink.write([spoilt(), batch_of(1, 2)], ignore)
    (letter,) = sink.dead_letters()
    feed = Feed(batch_of(3).slice(1, 1))
    done = sink.replay(letter["event_id"], feed.decode)
    assert (done["sequence"], done["duplicate"]) == (4, False)
    (page,) = feed.pages
    assert (page.payload, page.context, str(page.first)) == (b"raw", b"c", letter["position"])
    assert list(sink.dead_letters()) == []
    # A session that was open goes on, and a new one begins behind what was stored.
    sink.write([batch_of(1, 3)], ignore)
    sink_of(delivery=delivery, timeout=4).write([spoilt(), batch_of(1, 3), batch_of(1, 4)], ignore)
    ids = [event for event, _ in placed(nats, stream)]
    assert ids == [
        "00000001:0", "00000001:2", "00000002:0", "00000001:1", "00000003:0", "00000004:0",
    ]  # fmt: skip
    replayed = read(nats.url, stream)[3]
    assert replayed.headers["Penstock-Replayed"] == letter["position"]
    assert orjson.loads(replayed.data)["position"] == letter["position"]
    if delivery == "exactly-once":
        assert placed(nats, stream)[3][1] == "00000002:0"


def test_a_replayed_change_does_not_move_the_mark_either(
    sink_of: Any, nats: Nats, stream: str
) -> None:
    sink = sink_of()
    bad = spoilt()
    marks = pa.array(['{"token":"0"}', '{"token":"1"}', '{"token":"2"}'])
    bad = bad.set_column(bad.schema.get_field_index("mark"), bad.schema.field("mark"), marks)
    sink.write([bad], ignore)
    before = sink.records("default", ["shop"])
    (letter,) = sink.dead_letters()
    good = batch_of(3, mark=marks.to_pylist()).slice(1, 1)
    sink.replay(letter["event_id"], Feed(good).decode)
    assert len(read(nats.url, stream)) == 3
    assert sink.records("default", ["shop"]) == before
    assert before["shop"].bookmark.mark == {"token": "2"}


def test_what_was_replayed_is_not_set_aside_again(sink_of: Any, nats: Nats, stream: str) -> None:
    sink_of().write([spoilt()], ignore)
    (letter,) = sink_of().dead_letters()
    sink_of().replay(str(letter["id"]), Feed(batch_of(3).slice(1, 1)).decode)
    sink_of(timeout=4).write([spoilt()], ignore)
    assert list(sink_of().dead_letters()) == []
    (note,) = read(nats.url, f"{stream}_DLQ")
    assert orjson.loads(note.data)["replayed"] == letter["event_id"]


def test_what_still_cannot_be_read_stays(sink_of: Any) -> None:
    sink = sink_of()
    sink.write([spoilt()], ignore)
    (letter,) = sink.dead_letters()
    with pytest.raises(Malformed, match="not UTF-8"):
        sink.replay(str(letter["id"]), Feed(None).decode)
    assert list(sink.dead_letters()) == [letter]


def test_what_was_cut_cannot_be_replayed(sink_of: Any) -> None:
    sink = sink_of()
    sink.write([batch_of(1, after=orjson.dumps({"t": "x" * 1_200_000}).decode())], ignore)
    (letter,) = sink.dead_letters()
    assert letter["truncated"]
    with pytest.raises(Rejected, match="holds the first"):
        sink.replay(str(letter["id"]), Feed(None).decode)


def test_a_change_that_could_not_be_encoded_is_replayed_when_it_can(
    sink_of: Any, nats: Nats, stream: str
) -> None:
    after = '{"id":1'  # no JSON, so it has no MessagePack; as JSON nobody looks into it
    sink_of(encoding="msgpack").write([batch_of(1, after=after)], ignore)
    (letter,) = sink_of(encoding="msgpack").dead_letters()
    with pytest.raises(Rejected, match="cannot be converted"):
        sink_of(encoding="msgpack").replay(str(letter["id"]), Feed(None).decode)
    sink_of().replay(str(letter["id"]), Feed(None).decode)
    (message,) = read(nats.url, stream)
    assert b'"data":' + after.encode() in message.data
    assert message.event_id == letter["event_id"]


# Dies in the moment between the publishing and taking the letter away.
DYING = """
import os, sys
from penstock.sinks.jetstream import JetStreamSettings, JetStreamSink
from penstock.sinks.jetstream.poison import DeadLetters

DeadLetters.replayed = lambda *_: os._exit(9)
fields = ("url", "stream", "subject", "encoding", "delivery")
settings = JetStreamSettings(**dict(zip(fields, sys.argv[2:])))
JetStreamSink(settings).replay(sys.argv[1], None)
"""


def test_a_replay_that_died_is_not_stored_twice(
    delivery: str, sink_of: Any, nats: Nats, stream: str, stored: Any
) -> None:
    broken = sink_of(encoding="msgpack", delivery=delivery, duplicate_window="100ms")
    broken.write([batch_of(1, after='{"id":1')], ignore)
    (letter,) = broken.dead_letters()
    subject = broken.settings.subject
    command = [sys.executable, "-c", DYING, str(letter["id"]), nats.url, stream, subject, "json"]
    assert subprocess.run([*command, delivery], timeout=60).returncode == 9
    sink = sink_of(delivery=delivery)
    sink.write([batch_of(2, 2)], ignore)
    time.sleep(0.3)  # the server forgot the id
    done = sink.replay(str(letter["id"]), Feed(None).decode)
    assert (done["sequence"], done["duplicate"]) == (1, True)
    assert stored().count(letter["event_id"]) == 1
    assert list(sink.dead_letters()) == []
    assert len(read(nats.url, f"{stream}_DLQ")) == 1  # the note of how far the partition is


def test_a_letter_shows_its_bytes(sink_of: Any) -> None:
    sink = sink_of()
    sink.write([spoilt()], ignore)
    shown = sink.dead_letter("default:00000000/00000001:1")
    assert (shown["raw"], shown["kind"], shown["table"]) == ("cmF3", "source", "public.items")
    for id in ("99", "default:00000000/00000009:9"):
        with pytest.raises(SettingsError, match=f"no dead letter {id}"):
            sink.dead_letter(id)


def test_tables_that_are_not_suspended_cannot_resume(sink_of: Any) -> None:
    sink = sink_of()
    assert list(sink.tables()) == []
    sink.write([batch_of(1, operation="DELETE", key=[None])], ignore)
    with pytest.raises(SettingsError, match=r"no table public\.other is suspended") as error:
        sink.resume_table(None, "public.other")
    assert error.value.hint == "suspended: public.items"
    assert sink.resume_table("default", "public.items")["state"] == "resuming"
    assert sink.resume_table(None, "public.items")["state"] == "resuming"
