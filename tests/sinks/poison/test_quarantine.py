"""Poison in a stream of changes: each bad one is in the dead letters, once, and the rest flows."""

import base64
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import orjson
import ormsgpack
import pyarrow as pa
import pytest

from penstock.config import parse_pipeline
from penstock.model.change import ERROR
from penstock.model.errors import Rejected, SettingsError, Unavailable
from penstock.nats.connection import Connection
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSink
from penstock.sinks.jetstream.server import JetStreamServer
from penstock.sinks.jetstream.session import borrowed
from penstock.sinks.poison.dead_letter import Letter, row_of
from penstock.sinks.poison.quarantine import now
from penstock.sinks.poison.suspension import Event, Suspension, Table
from tests.progress import Noted
from tests.servers import Nats
from tests.sinks.changes import batch_of, read
from tests.sinks.jetstream.raw import Raw
from tests.waiting import until

RAW = b"I secret\xff"


def image(images: str, **fields: Any) -> Any:
    return ormsgpack.packb(fields) if images == "msgpack" else orjson.dumps(fields).decode()


def error(images: str = "json", reason: str = "not-utf8") -> Any:
    raw: Any = RAW if images == "msgpack" else base64.b64encode(RAW).decode()
    return image(images, reason=reason, error="column v is not UTF-8", raw=raw, context=raw)


@pytest.fixture(params=["exactly-once", "deduplicated"])
def delivery(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sink_of(settings_of: Callable[..., Any], nats: Nats) -> Callable[..., JetStreamSink]:
    """A sink on the shared server that sets poison aside."""
    return lambda **more: JetStreamSink(
        settings_of(more.pop("url", nats.url), **{"on_error": "dead-letter", **more})
    )


@pytest.fixture
def spoilt() -> Callable[..., pa.RecordBatch]:
    """`spoilt(count, rows)`: a batch in which these rows are errors."""

    def make(count: int, rows: set[int], images: str = "json", **more: Any) -> pa.RecordBatch:
        good = batch_of(count, images=images, **more)
        after = [
            error(images) if n in rows else v
            for n, v in enumerate(good.column("after").to_pylist())
        ]
        key = [None if n in rows else v for n, v in enumerate(good.column("key").to_pylist())]
        operation = [ERROR if n in rows else "INSERT" for n in range(count)]
        named = {"after": after, "key": key, "operation": operation, **more}
        return batch_of(count, images=images, **named)

    return make


class Aside:
    """What is in a stream and beside it."""

    def __init__(self, url: str, stream: str) -> None:
        self.url, self.stream = url, stream

    def places(self) -> list[str]:
        """What the stream has, in order: the places, and `!` before a marker."""
        return [
            ("!" if message.subject.endswith(".suspend") else "")
            + message.headers["Penstock-Position"].split()[-1].split(":")[-1]
            for message in read(self.url, self.stream)
        ]

    def letters(self) -> list[Letter]:
        return [Letter.parse(message.data) for message in read(self.url, f"{self.stream}_DLQ")]

    def record(self) -> Suspension:
        return Suspension.parse(read(self.url, f"{self.stream}_TABLES")[-1].data)


@pytest.fixture
def aside(nats: Nats, stream: str) -> Aside:
    return Aside(nats.url, stream)


@pytest.mark.parametrize("images", ["json", "msgpack"])
def test_a_letter_has_nothing_of_the_source_where_that_is_not_wanted(
    sink_of: Callable[..., JetStreamSink],
    spoilt: Callable[..., pa.RecordBatch],
    aside: Aside,
    images: str,
) -> None:
    """Neither one of a change nor one of a snapshot's row, which `set_aside` stores."""
    sink = sink_of(letter_source=False)
    sink.write([spoilt(3, {1}, images)], ignore)
    (letter,) = aside.letters()
    assert (letter.raw, letter.context, letter.raw_bytes, letter.truncated) == (
        b"", b"", len(RAW), True,
    )  # fmt: skip
    assert letter.error == "column v is not UTF-8"
    with closing(Connection(sink.settings)) as connection:
        connection.open()
        row = replace(letter, raw=RAW, context=RAW, partition="a/row", event_id="a:row")
        JetStreamServer(sink.settings).set_aside(connection, [row])
    assert [each.raw for each in aside.letters()] == [b"", b""]


def test_a_transform_decides_whether_letters_have_the_source_unless_that_is_asked_for() -> None:
    def letter_source(sink: str, more: str = "") -> Any:
        text = (
            "backends: [{type: memory}]\nsink: {type: jetstream, url: nats://h"
            + sink
            + "}\n"
            + more
        )
        return getattr(parse_pipeline(text, environment={}).sink.settings, "letter_source", "")

    transform = "transform: [{sql: SELECT * FROM changes}]"
    assert letter_source("") is None
    assert letter_source("", transform) is False
    assert letter_source(", letter_source: true", transform) is True


@pytest.mark.parametrize("images", ["json", "msgpack"])
def test_a_change_that_could_not_be_decoded_is_a_dead_letter(
    delivery: str, images: str, sink_of: Any, spoilt: Any, nats: Nats, stream: str, aside: Aside
) -> None:
    told = Noted()
    sink = sink_of(delivery=delivery)
    receipt = sink.write([spoilt(10, {3, 9}, images)], told)
    assert aside.places() == ["0", "1", "2", "4", "5", "6", "7", "8"]
    first, second = aside.letters()
    assert (first.event_id, first.reason) == ("default:00000000/00000001:3", "not-utf8")
    assert (first.raw, first.context, first.truncated) == (RAW, RAW, False)
    assert (first.table, first.relation_id, first.kind) == ("public.items", 16385, "source")
    assert second.position == "00000000/00000001:9"
    assert str(receipt.position["shop"]) == "00000000/00000001:9"
    assert {"dead_letters": {"not-utf8": 2}} in told
    (message, _) = read(nats.url, f"{stream}_DLQ")
    assert message.subject == f"penstock.dlq.{stream}.default.shop"
    assert message.headers["Nats-Msg-Id"] == first.event_id
    assert message.headers["Penstock-Reason"] == "not-utf8"


def test_a_change_that_is_offered_again_is_one_dead_letter(
    delivery: str, sink_of: Any, spoilt: Any, aside: Aside
) -> None:
    sink = sink_of(delivery=delivery, duplicate_window=0.1)
    batch = spoilt(4, {1, 3})
    sink.write([batch], ignore)
    time.sleep(0.3)  # the duplicate window of both streams is over, or was not theirs
    again = sink_of(delivery=delivery, duplicate_window=0.1, timeout=4)  # another session
    again.write([batch, spoilt(4, {1}, commit=2)], ignore)
    assert [letter.position[-10:] for letter in aside.letters()] == [
        "00000001:1",
        "00000001:3",
        "00000002:1",
    ]


def test_only_poison_moves_the_position_too(sink_of: Any, spoilt: Any) -> None:
    receipt = sink_of().write([spoilt(3, {0, 1, 2})], ignore)
    assert str(receipt.position["shop"]) == "00000000/00000001:2"
    assert receipt.published == 0


def test_a_change_larger_than_the_server_takes_is_a_dead_letter_that_is_cut(
    delivery: str, sink_of: Any, aside: Aside
) -> None:
    big = image("json", id=2, text="x" * 1_200_000)
    after = [image("json", id=n) if n != 2 else big for n in range(5)]
    sink_of(delivery=delivery).write([batch_of(5, after=after)], ignore)
    assert aside.places() == ["0", "1", "3", "4"]
    (letter,) = aside.letters()
    assert (letter.reason, letter.kind, letter.truncated) == ("too-large", "change", True)
    assert letter.raw_bytes > 1_200_000 > len(letter.raw) > 700_000
    assert "the server takes" in letter.error
    assert "xxx" not in letter.error


def test_a_change_too_large_for_the_stream_only_is_a_whole_dead_letter(
    sink_of: Any, stream: str, aside: Aside, nats: Nats
) -> None:
    sink = sink_of()
    sink.prepare()
    Raw(nats.url).update(stream, max_msg_size=3_000)
    after = [image("json", id=n, text="x" * 4_000 * (n == 1)) for n in range(3)]
    batch = batch_of(3, after=after)
    sink_of(timeout=4).write([batch], ignore)  # another session, which looks at the stream anew
    assert aside.places() == ["0", "2"]
    (letter,) = aside.letters()
    assert not letter.truncated
    assert row_of(letter).to_pylist() == batch.slice(1, 1).to_pylist()


def test_a_stream_that_takes_less_than_it_did_is_looked_at_again(
    delivery: str, sink_of: Any, stream: str, aside: Aside, nats: Nats
) -> None:
    sink = sink_of(delivery=delivery)
    sink.write([batch_of(1, 1)], ignore)
    Raw(nats.url).update(stream, max_msg_size=3_000)
    batch = batch_of(3, 2, after=[image("json", t="x" * 4_000 * (n == 1)) for n in range(3)])
    with pytest.raises(Unavailable, match="exceeds maximum"):
        sink.write([batch], ignore)
    sink.write([batch], ignore)  # as the query does that is started again
    assert aside.places() == ["0", "0", "2"]
    assert [letter.reason for letter in aside.letters()] == ["too-large"]


def test_a_change_that_cannot_be_encoded_is_a_dead_letter(sink_of: Any, aside: Aside) -> None:
    after = [image("json", id=n) if n != 1 else '{"id": 1' for n in range(3)]
    batch = batch_of(3, after=after)
    sink_of(encoding="msgpack").write([batch], ignore)
    assert aside.places() == ["0", "2"]
    (letter,) = aside.letters()
    assert letter.reason == "not-encodable"
    assert row_of(letter).to_pylist() == batch.slice(1, 1).to_pylist()


def test_without_leave_nothing_goes_on(
    delivery: str, sink_of: Any, spoilt: Any, aside: Aside
) -> None:
    sink = sink_of(delivery=delivery, on_error="stop")
    with pytest.raises(Rejected, match=r"00000000/00000001:1 of shop .*not UTF-8"):
        sink.write([spoilt(3, {1})], ignore)
    big = image("json", text="x" * 1_200_000)
    with pytest.raises(Rejected, match="the server takes"):
        sink.write([batch_of(1, 5, after=big)], ignore)
    assert aside.places() == []


def test_while_the_dead_letters_cannot_be_stored_nothing_is_acknowledged(
    sink_of: Any, spoilt: Any, stream: str, aside: Aside, nats: Nats
) -> None:
    sink = sink_of()
    sink.write([spoilt(2, {1})], ignore)
    Raw(nats.url).update(f"{stream}_DLQ", max_msgs=1, discard="new")
    told = Noted()
    receipts: list[Any] = []
    batches = [spoilt(3, {1}, commit=2), batch_of(3, 3)]
    writing = threading.Thread(
        target=lambda: receipts.append(sink.write(batches, told)), daemon=True
    )
    writing.start()
    until(lambda: len(told.outages) >= 3)
    assert not receipts
    assert aside.places() == ["0"]
    assert any("dead letter default:00000000/00000002:1" in n.get("error", "") for n in told)
    Raw(nats.url).update(f"{stream}_DLQ", max_msgs=-1)
    writing.join(60)
    (receipt,) = receipts
    assert str(receipt.position["shop"]) == "00000000/00000003:2"
    assert aside.places() == ["0", "0", "2", "0", "1", "2"]
    assert len(aside.letters()) == 2


def test_subjects_that_another_stream_takes_are_named(
    own_nats: Any, spoilt: Any, settings_of: Any, stream: str
) -> None:
    server = own_nats()
    settings = settings_of(server.url, on_error="dead-letter")
    Raw(server.url).api.create({"name": "GREEDY", "subjects": ["penstock.>"]})
    findings = [f for f in JetStreamSink(settings).check() if f.subject == "stream GREEDY"]
    assert [(finding.level, "penstock." in finding.message) for finding in findings] == [
        ("warning", True),
        ("warning", True),
        ("warning", True),
    ]
    with pytest.raises(SettingsError, match=rf"another stream takes penstock\.dlq\.{stream}"):
        JetStreamSink(settings).write([spoilt(2, {1})], ignore)


# Suspended tables.

TABLE = Table("default", "public", "items")


def no_key(count: int, commit: int = 1, **more: Any) -> pa.RecordBatch:
    return batch_of(count, commit, operation="UPDATE", key=[None] * count, **more)


def test_a_table_without_a_key_is_suspended_and_the_others_flow(
    delivery: str, sink_of: Any, nats: Nats, stream: str, aside: Aside
) -> None:
    told = Noted()
    sink = sink_of(delivery=delivery)
    others = batch_of(2, 3, collection="others", relation_id=9)
    sink.write([batch_of(2, 1), no_key(3, 2), others, no_key(2, 4)], told)
    assert aside.places() == ["0", "1", "!0", "0", "1"]
    (letter,) = aside.letters()
    assert (letter.reason, letter.position) == ("no-key", "00000000/00000002:0")
    record = aside.record()
    assert (record.state, record.reason, record.skipped) == ("suspended", "no-key", 5)
    (hole,) = record.holes
    assert (hole.first, hole.last) == ("00000000/00000002:0", "00000000/00000004:1")
    (marker,) = [m for m in read(nats.url, stream) if m.subject.endswith("suspend")]
    body = ormsgpack.unpackb(marker.data)
    assert (body["operation"], body["data"]["reason"]) == ("SUSPEND", "no-key")
    assert body["event_id"] == "default:00000000/00000002:0:suspend"
    (table, *_) = next(note["tables"] for note in told if "tables" in note)
    assert (table["table"], table["state"]) == ("public.items", "suspended")


def test_it_is_followed_again_when_it_has_a_key(delivery: str, sink_of: Any, aside: Aside) -> None:
    sink_of(delivery=delivery).write([no_key(3, 1)], ignore)
    sink = sink_of(delivery=delivery, timeout=4)  # another session: what is known is stored
    sink.write([no_key(2, 2), batch_of(2, 3)], ignore)
    assert aside.places() == ["!0", "0", "1"]
    record = aside.record()
    assert (record.state, record.skipped) == ("following", 5)
    assert [hole.open for hole in record.holes] == [False]


def test_what_is_offered_again_comes_to_the_same(delivery: str, sink_of: Any, aside: Aside) -> None:
    story = [batch_of(1, 1), no_key(3, 2), batch_of(2, 3), no_key(2, 4)]
    sink_of(delivery=delivery).write(story, ignore)
    stored, record = aside.places(), aside.record()
    assert stored == ["0", "!0", "0", "1", "!0"]
    sink_of(delivery=delivery, timeout=4).write(story, ignore)
    assert aside.places() == stored
    assert aside.record().holes == record.holes
    assert len(aside.letters()) == 2


def test_a_table_that_another_process_suspended_is_suspended(sink_of: Any, aside: Aside) -> None:
    one, other = sink_of(), sink_of(timeout=4)
    for sink in (one, other):
        sink.write([batch_of(1, 1 if sink is one else 2)], ignore)  # both sessions are open
    one.write([no_key(1, 3)], ignore)
    other.write([batch_of(1, 4, key=None)], ignore)  # an insert tells nothing of keys
    assert aside.places() == ["0", "0", "!0"]
    assert aside.record().skipped == 2


def test_a_table_resumes_by_command(sink_of: Any, aside: Aside) -> None:
    sink = sink_of(on_error="suspend")
    after = [image("json", id=n) if n != 1 else '{"id": 1' for n in range(3)]
    sink.write([batch_of(3, 1, after=after), batch_of(2, 2)], ignore)
    assert aside.places() == ["0", "!1"]
    with borrowed(sink_of(timeout=4).settings) as session:
        session.open()
        session.poison.suspensions.change(TABLE, lambda known: known.after(Event.ASKED, now()))
    time.sleep(1.1)  # a record is believed for a second
    sink.write([batch_of(2, 3)], ignore)
    assert aside.places() == ["0", "!1", "0", "1"]
    record = aside.record()
    assert (record.state, record.skipped) == ("following", 4)


def test_a_table_that_is_too_large_again_and_again_is_suspended(sink_of: Any, aside: Aside) -> None:
    sink = sink_of(suspend_after=3, batch={"max_bytes": "64MiB"})
    big = image("json", id=1, text="x" * 1_100_000)
    small = image("json", id=1, text="x")
    sink.write([batch_of(3, 1, after=[big, big, small])], ignore)
    sink.write([batch_of(2, 2, after=big)], ignore)
    assert aside.places() == ["2"]
    assert len(aside.letters()) == 4
    sink.write([batch_of(2, 3, after=big), batch_of(1, 4, after=small)], ignore)
    assert aside.places() == ["2", "!0"]
    assert len(aside.letters()) == 5
    # Its columns are others: what was too large may be gone.
    sink.write([batch_of(2, 5, after=image("json", id=1))], ignore)
    assert aside.places() == ["2", "!0", "0", "1"]


def test_a_relation_that_cannot_be_decoded_suspends_its_table_until_it_can(
    sink_of: Any, aside: Aside
) -> None:
    broken = {
        "operation": ERROR,
        "key": None,
        "after": error(reason="broken-relation"),
        "collection": r"caf\xe9",
    }
    sink = sink_of()
    sink.write([batch_of(2, 1, **broken), batch_of(2, 2, collection="x", relation_id=9)], ignore)
    assert aside.places() == ["!0", "0", "1"]
    assert len(aside.letters()) == 1
    sink.write([batch_of(2, 3, collection="cafe")], ignore)  # renamed, with the same number
    assert aside.places() == ["!0", "0", "1", "0", "1"]
    assert aside.record().state == "following"


def test_what_comes_after_the_answer_that_a_table_is_suspended_is_not_published(
    delivery: str, sink_of: Callable[..., JetStreamSink], aside: Aside
) -> None:
    """Also in a write that goes on for long, of a process that knows nothing of the other."""
    operator = sink_of(delivery=delivery)
    operator.prepare()

    def changes() -> Iterator[pa.RecordBatch]:
        yield from (batch_of(2, start=start) for start in range(0, 20, 2))
        until(lambda: "0" in aside.places(), 60)
        assert operator.suspend_table("default", "public.items")["state"] == "suspended"
        yield batch_of(1, commit=2, start=90)
        yield batch_of(1, commit=3, start=91, collection="others")

    sink_of(delivery=delivery, batch={"max_size": 2, "max_wait": 0}).write(changes(), ignore)
    stored = aside.places()
    assert stored[0] == "0"
    assert "90" not in stored
    assert stored[-1] == "91"
    assert aside.record().skipped >= 1
