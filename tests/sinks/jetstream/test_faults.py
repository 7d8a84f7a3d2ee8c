"""A server that stops, dies, hangs or refuses: everything arrives, once, and the reason is told."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock.model.errors import Rejected, SettingsError, Unavailable
from penstock.nats.api import JetStream
from penstock.sinks import ignore
from tests.progress import Noted
from tests.servers import Nats
from tests.sinks.changes import batch_of, ids_in, ids_of, interrupted, read
from tests.sinks.jetstream.raw import Raw, mending
from tests.waiting import until

pytestmark = pytest.mark.fault

BATCHES = [batch_of(400, n) for n in range(1, 13)]


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_server_that_is_restarted_in_the_middle(
    delivery: str, end: str, own_nats: Any, stream: str, sink_of: Any
) -> None:
    server: Nats = own_nats()
    sink, told = sink_of(server.url, delivery=delivery, timeout="30s"), mending(server.start)
    sink.prepare()
    changes = interrupted(server.url, stream, getattr(server, end), *BATCHES)
    receipt = sink.write(changes, told)
    assert "can be reached" in told.outages[1]
    attempts = [note["attempts"] for note in told if note.get("connected") is False]
    assert attempts == [*range(1, len(attempts) + 1)]
    assert ids_in(server.url, stream) == ids_of(*BATCHES)
    assert receipt.published + receipt.duplicates >= 4800
    assert [note["connected"] for note in told if "connected" in note][-1] is True


def test_a_server_that_hangs_is_noticed(
    delivery: str, own_nats: Any, stream: str, sink_of: Any
) -> None:
    server: Nats = own_nats()
    told = mending(lambda: os.kill(server.pid, signal.SIGCONT))
    hang = lambda: os.kill(server.pid, signal.SIGSTOP)  # noqa: E731
    sink = sink_of(server.url, delivery=delivery, timeout="5s")
    sink.prepare()
    sink.write(interrupted(server.url, stream, hang, *BATCHES), told)
    assert ids_in(server.url, stream) == ids_of(*BATCHES)
    assert len(told.outages) >= 2


def test_a_network_that_freezes_and_never_comes_back(
    delivery: str, proxy: Any, nats: Nats, stream: str, stored: Any, sink_of: Any
) -> None:
    """Nothing is closed: packets just stop. The second address is the way out."""
    between, told = proxy(), Noted()
    sink = sink_of(f"{between.url},{nats.url}", delivery=delivery, timeout="5s")
    sink.prepare()
    sink.write(interrupted(nats.url, stream, between.frozen.set, *BATCHES), told)
    assert told.outages
    assert stored() == ids_of(*BATCHES)


@pytest.mark.parametrize("losing", [1, 2])
def test_lost_acknowledgements_of_single_messages_are_settled_by_ids(
    losing: int, proxy: Any, stored: Any, sink_of: Any
) -> None:
    between = proxy(trigger=b'"seq":1', remaining=losing)
    # A slow machine is no outage: only what the proxy cuts is.
    sink = sink_of(between.url, delivery="deduplicated", timeout="60s")
    batches = [batch_of(700, n) for n in range(1, 5)]
    receipt = sink.write(iter(batches), ignore)
    assert between.lost == losing
    assert receipt.published + receipt.duplicates == 2800
    assert receipt.duplicates > 0
    assert receipt.numbers["resent"] > 0
    assert stored() == ids_of(*batches)


def losing(
    between: Any, trigger: bytes, batches: list[pa.RecordBatch], told: Noted
) -> Iterator[pa.RecordBatch]:
    """The batches; once half of them are acknowledged, answers with `trigger` are lost."""
    half = len(batches) // 2
    yield from batches[:half]
    last = batches[half - 1].column("cursor")[-1].as_py()
    until(lambda: "shop" in told.position and told.position["shop"].cursor == last)
    between.trigger, between.remaining = trigger, 10**6
    yield from batches[half:]


def with_a_stranger(api: JetStream, subject: str, between: Any) -> Noted:
    """A progress: when the answer and one about what is stored are lost, somebody else's message
    is the last, and answers come again."""

    def meanwhile() -> None:
        time.sleep(0.3)  # longer than the stream's duplicate window
        api.publish(subject, b"", b"hello")
        between.remaining = 0

    return mending(meanwhile)


def test_who_is_no_longer_alone_sends_nothing_again_that_the_server_forgot(
    proxy: Any, nats: Nats, stream: str, sink_of: Any, api: JetStream
) -> None:
    """Stored, but the acknowledgement is lost; and when we look, somebody else's is the last."""
    between = proxy()
    told = with_a_stranger(api, f"{stream}.not.ours", between)
    sink = sink_of(between.url, delivery="auto", timeout="60s")
    sink.write(losing(between, b'"seq":', BATCHES, told), told)
    assert between.lost > 1
    assert [note["delivery"] for note in told if "delivery" in note][-1] == "deduplicated"
    ours = [message.event_id for message in read(nats.url, stream) if message.headers]
    assert ours == ids_of(*BATCHES)


def test_who_is_no_longer_alone_in_one_shard_sends_nothing_of_another_again(
    proxy: Any, nats: Nats, stream: str, sink_of: Any, api: JetStream
) -> None:
    between = proxy()
    told = with_a_stranger(api, f"{stream}.a.shop.not.ours", between)
    subject = f"{stream}.{{backend}}.{{source_partition}}.{{collection}}.{{operation}}"
    sink = sink_of(between.url, delivery="auto", timeout="60s", subject=subject)
    batches = [batch_of(300, n, backend="ab"[n % 2]) for n in range(8)]
    # `last_seq` too: what is stored is asked for by the stream's state.
    sink.write(losing(between, b'seq":', batches, told), told)
    assert between.lost > 1
    ours = [message.event_id for message in read(nats.url, stream) if message.headers]
    assert sorted(ours) == sorted(ids_of(*batches))
    for backend in "ab":
        assert [one for one in ours if one.startswith(backend)] == [
            one for one in ids_of(*batches) if one.startswith(backend)
        ]


def test_an_idle_connection_that_the_server_closed_is_opened_again(
    own_nats: Any, sink_of: Any
) -> None:
    server: Nats = own_nats()
    sink = sink_of(server.url)
    sink.write([batch_of(1, 1)], ignore)
    server.stop()
    server.start()
    told = Noted()
    assert sink.write([batch_of(1, 2)], told).published == 1
    assert not told.outages


@pytest.mark.parametrize("delivery", ["exactly-once", "deduplicated", "at-least-once"])
def test_a_change_larger_than_the_server_takes_is_rejected_by_its_place(
    delivery: str, own_nats: Any, sink_of: Any
) -> None:
    server: Nats = own_nats({"max_payload": 4096})
    sink = sink_of(server.url, delivery=delivery)
    images = ["{}", '{"a":"' + "s3cret" * 1000 + '"}', "{}"]
    with pytest.raises(Rejected) as caught:
        sink.write([batch_of(3, 7, after=images)], ignore)
    assert "00000000/00000007:1 of shop" in str(caught.value)
    assert "max_payload" in caught.value.hint
    assert "s3cret" not in str(caught.value)
    assert sink.write([batch_of(1, 8)], ignore).published == 1


def test_a_change_larger_than_the_stream_takes_is_rejected(
    nats: Nats, stream: str, sink_of: Any
) -> None:
    Raw(nats.url).make(stream, max_msg_size=2000)
    sink = sink_of(encoding="json")
    with pytest.raises(Rejected, match="00000000/00000007:0 of shop"):
        sink.write([batch_of(1, 7, after='{"a":"' + "x" * 3000 + '"}')], ignore)


SECRET = "s3cret-p4ss"  # the password of the servers below
USERS: dict[str, Any] = {
    "authorization": {
        "users": [
            {"user": "writer", "password": SECRET},
            {"user": "reader", "password": SECRET, "permissions": {"publish": ["$JS.API.>"]}},
            {
                "user": "mute", "password": SECRET,
                "permissions": {"publish": {"deny": ["$JS.API.>"]}},
            },
            {
                "user": "deaf", "password": SECRET,
                "permissions": {"publish": ">", "subscribe": {"deny": "_INBOX.>"}},
            },
        ]
    }
}  # fmt: skip


@pytest.fixture(scope="module")
def guarded() -> Iterator[Nats]:
    with Nats(config=USERS) as server:
        yield server


def of(user: str, server: Nats, password: str = SECRET) -> str:
    return server.url.replace("//", f"//{user}:{password}@")


@pytest.mark.parametrize(
    ("user", "password", "says"),
    [
        ("writer", "wr0ng-one", "refuses the credentials"),
        ("nobody", "wr0ng-one", "refuses the credentials"),
        ("mute", SECRET, "denies what penstock needs"),
        ("deaf", SECRET, "denies what penstock needs"),
        ("reader", SECRET, "denies what penstock needs"),
    ],
)
def test_what_the_server_denies_is_a_settings_error_without_secrets(
    user: str, password: str, says: str, guarded: Nats, sink_of: Any
) -> None:
    sink = sink_of(of(user, guarded, password))
    told = Noted()
    with pytest.raises(SettingsError) as caught:
        sink.write([batch_of(10)], told)
    assert says in str(caught.value)
    assert caught.value.hint
    findings = [finding for finding in sink.check() if finding.level == "error"]
    assert findings
    assert findings[0].remedy
    for text in (str(caught.value), repr(sink.settings), str(told), str(findings)):
        assert SECRET not in text
        assert "wr0ng-one" not in text


def test_no_server_at_all_is_unavailable_and_names_the_addresses(sink_of: Any) -> None:
    sink = sink_of("nats://u:s3cret@127.0.0.1:1,nats://127.0.0.1:2")
    with pytest.raises(Unavailable) as caught:
        sink.prepare()
    assert "127.0.0.1:1" in str(caught.value)
    assert "127.0.0.1:2" in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert [finding.level for finding in sink.check()] == ["error"]
