"""A server that stops, dies, hangs or refuses: everything arrives, once, and the reason is told."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock.model.errors import Rejected, SettingsError, Unavailable
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSink
from tests.progress import Noted
from tests.servers import Nats
from tests.sinks.changes import batch_of, frozen, ids_in, ids_of, read, wait_until
from tests.sinks.jetstream.raw import Raw

pytestmark = [pytest.mark.live, pytest.mark.fault]

BATCHES = 12


def messages_in(api: Any, stream: str) -> int:
    info = api.stream(stream)
    return int(info["state"]["messages"]) if info else 0


class Story:
    """A write in a thread, whose source does something in its middle."""

    def __init__(self, sink: JetStreamSink, batches: list[pa.RecordBatch]) -> None:
        self.told = Noted()
        self.middle = threading.Event()
        self.go_on = threading.Event()
        self.sink, self.batches = sink, batches
        self.receipt: Any = None
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _changes(self) -> Iterator[pa.RecordBatch]:
        half = len(self.batches) // 2
        yield from self.batches[:half]
        self.middle.set()
        assert self.go_on.wait(60)
        yield from self.batches[half:]

    def _run(self) -> None:
        self.receipt = self.sink.write(self._changes(), self.told)

    @property
    def outages(self) -> list[Any]:
        return [note for note in self.told if note.get("connected") is False]

    def finish(self) -> Any:
        self.go_on.set()
        self.thread.join(60)
        assert self.receipt is not None, self.told
        return self.receipt


@pytest.fixture
def story(sink_of: Any) -> Callable[..., Story]:
    def make(url: str, **settings: Any) -> Story:
        sink = sink_of(url, **{"timeout": "5s", **settings})
        one = Story(sink, [batch_of(400, n) for n in range(1, BATCHES + 1)])
        one.thread.start()
        return one

    return make


def arrived(story: Story, url: str) -> None:
    """Every change is in the stream once, and in order."""
    assert ids_in(url, story.sink.settings.stream) == ids_of(*story.batches)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_server_that_is_restarted_in_the_middle(
    delivery: str, end: str, own_nats: Any, story: Any
) -> None:
    server: Nats = own_nats()
    writing = story(server.url, delivery=delivery, timeout="30s")
    assert writing.middle.wait(60)
    getattr(server, end)()
    writing.go_on.set()
    wait_until(lambda: len(writing.outages) >= 2)
    assert "can be reached" in writing.outages[-1]["error"]
    assert [note["attempts"] for note in writing.outages] == [*range(1, len(writing.outages) + 1)]
    server.start()
    receipt = writing.finish()
    arrived(writing, server.url)
    assert receipt.published + receipt.duplicates >= 400 * BATCHES
    assert [note["connected"] for note in writing.told if "connected" in note][-1] is True


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_restarted_server_that_remembers_no_id_is_written_to_exactly_once(
    end: str, own_nats: Any, sink_of: Any
) -> None:
    server: Nats = own_nats()
    sink = sink_of(server.url, delivery="exactly-once")
    batches = [batch_of(30, n) for n in range(1, 4)]
    sink.write([batches[0]], ignore)
    getattr(server, end)()
    server.start()
    time.sleep(0.3)  # longer than its duplicate window
    told = Noted()
    sink.write([batches[0], batches[1]], told)
    sink_of(server.url, delivery="exactly-once", timeout="4s").write(batches, ignore)
    assert ids_in(server.url, sink.settings.stream) == ids_of(*batches)
    assert {note["delivery"] for note in told if "delivery" in note} == {"exactly-once"}


def test_a_server_that_is_killed_again_and_again_under_load(
    delivery: str, own_nats: Any, sink_of: Any
) -> None:
    server: Nats = own_nats()
    sink = sink_of(server.url, delivery=delivery, timeout="1s")
    batches = [batch_of(500, n) for n in range(1, 121)]
    writing = Story(sink, batches)
    writing.go_on.set()
    writing.thread.start()
    for _ in range(3):
        writing.told.clear()
        server.kill()
        server.start()
        wait_until(lambda: writing.told or not writing.thread.is_alive())
    writing.finish()
    arrived(writing, server.url)


def test_a_server_that_hangs_is_noticed(delivery: str, own_nats: Any, story: Any) -> None:
    server: Nats = own_nats()
    writing = story(server.url, delivery=delivery)
    assert writing.middle.wait(60)
    with frozen(server.pid):
        writing.go_on.set()
        wait_until(lambda: len(writing.outages) >= 2)
    writing.finish()
    arrived(writing, server.url)


def test_a_network_that_freezes_and_never_comes_back(
    delivery: str, proxy: Any, nats: Nats, story: Any
) -> None:
    """Nothing is closed: packets just stop. The second address is the way out."""
    between = proxy()
    writing = story(f"{between.url},{nats.url}", delivery=delivery)
    assert writing.middle.wait(60)
    assert not writing.outages
    between.frozen.set()
    writing.finish()
    assert writing.outages
    arrived(writing, nats.url)


@pytest.mark.parametrize("losing", [1, 2])
def test_lost_acknowledgements_of_single_messages_are_settled_by_ids(
    losing: int, proxy: Any, nats: Nats, sink_of: Any
) -> None:
    between = proxy(trigger=b'"seq":1', remaining=losing)
    writing = Story(
        # A slow machine is no outage: only what the proxy cuts is.
        sink_of(between.url, delivery="deduplicated", timeout="60s"),
        [batch_of(700, n) for n in range(1, 5)],
    )
    writing.thread.start()
    receipt = writing.finish()
    assert between.lost == losing
    assert receipt.published + receipt.duplicates == 2800
    assert receipt.duplicates > 0
    assert receipt.numbers["resent"] > 0
    arrived(writing, nats.url)


def test_who_is_no_longer_alone_sends_nothing_again_that_the_server_forgot(
    proxy: Any, nats: Nats, story: Any, api: Any
) -> None:
    """Stored, but the acknowledgement is lost; and when we look, somebody else's is the last."""
    between = proxy()
    writing = story(between.url, delivery="auto", timeout="60s")
    assert writing.middle.wait(60)
    stream = writing.sink.settings.stream
    half = 400 * BATCHES // 2
    wait_until(lambda: messages_in(api, stream) == half)
    between.trigger, between.remaining = b'"seq":', 10**6
    writing.go_on.set()
    wait_until(lambda: between.lost > 1)  # the answer, and one about what is stored
    time.sleep(0.3)  # longer than the stream's duplicate window
    api.publish(f"{stream}.not.ours", b"", b"hello")
    between.remaining = 0
    writing.finish()
    assert [note["delivery"] for note in writing.told if "delivery" in note][-1] == "deduplicated"
    ours = [message for message in read(nats.url, stream) if message.headers]
    assert [message.event_id for message in ours] == ids_of(*writing.batches)


def test_who_is_no_longer_alone_in_one_shard_sends_nothing_of_another_again(
    proxy: Any, nats: Nats, settings_of: Any, api: Any
) -> None:
    between = proxy()
    settings = settings_of(between.url, delivery="auto", timeout="60s")
    stream = settings.stream
    subject = f"{stream}.{{backend}}.{{source_partition}}.{{collection}}.{{operation}}"
    sink = JetStreamSink(settings.model_copy(update={"subject": subject}))
    batches = [batch_of(300, n, backend="ab"[n % 2]) for n in range(8)]
    writing = Story(sink, batches)
    writing.thread.start()
    assert writing.middle.wait(60)
    wait_until(lambda: messages_in(api, stream) == 1200)
    # `last_seq` too: what is stored is asked for by the stream's state.
    between.trigger, between.remaining = b'seq":', 10**6
    writing.go_on.set()
    wait_until(lambda: between.lost > 1 and messages_in(api, stream) > 1200)
    time.sleep(0.3)  # longer than the stream's duplicate window
    api.publish(f"{stream}.a.shop.not.ours", b"", b"hello")
    between.remaining = 0
    writing.finish()
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
        ("writer", "wr0ng-one", "refuses our credentials"),
        ("nobody", "wr0ng-one", "refuses our credentials"),
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
