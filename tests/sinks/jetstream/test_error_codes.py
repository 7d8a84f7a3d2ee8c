"""Every error code of JetStream that the sink handles, provoked on one server.

Here or in test_atomic: 10002 10023 10037 10039 10054 10058 10059 10065 10071 10074 10077 10109
10174 10176 10201 10210, status 503, and what the server says before it ends a connection.
In test_cluster: 10005 10164.

Not provoked: 10076 (a server whose JetStream was shut down while it ran, by a failing disk;
without JetStream from the start nobody answers, which is tested), and 10175, 10179, 10199 and
10200, which a batch of the sink cannot cause: `test_batches` pins them.
"""

import re
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock.model.errors import PenstockError, Rejected, SettingsError
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSink
from tests.chaos.proxy import Proxy, Weather
from tests.progress import Noted
from tests.servers import Nats
from tests.sinks.changes import batch_of, ids_in, ids_of, interrupted, read
from tests.sinks.jetstream.raw import Raw, mending, reload

pytestmark = pytest.mark.fault

# With it every batch is an atomic one; else, on one server, a chain of plain messages.
SHARDED = "{source_partition}.{collection}"
# An open breaker would only make these tests longer.
BREAKER = {"timeout": "2s"}


@pytest.fixture(params=["exactly-once", "deduplicated"])
def delivery(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("limit", ["max_bytes", "max_msgs"])
def test_10077_a_full_stream_is_waited_for(
    delivery: str, limit: str, stream: str, raw: Raw, stored: Any, sink_of: Any
) -> None:
    raw.make(stream, discard="new", **{limit: 30_000 if limit == "max_bytes" else 100})
    told = mending(lambda: raw.update(stream, **{limit: -1}))
    batches = [batch_of(50, n) for n in range(1, 9)]
    sink_of(delivery=delivery, breaker=BREAKER).write(batches, told)
    assert any("10077" in error and "the stream is full" in error for error in told.outages)
    assert stored() == ids_of(*batches)


@pytest.mark.parametrize(
    ("delivery", "tokens"),
    [("exactly-once", SHARDED), ("exactly-once", "{collection}"), ("deduplicated", "{collection}")],
)
@pytest.mark.parametrize(
    ("code", "config"),
    [
        (10002, {"accounts": {"A": {"users": [{"user": "a", "password": "p"}],
                                    "jetstream": {"max_file": 200_000}}}}),
        (10023, {"jetstream": {"max_file": 200_000}}),
    ],
    ids=["account", "server"],
)  # fmt: skip
def test_a_full_account_and_a_full_server_are_waited_for(
    delivery: str, tokens: str, code: int, config: Any, stream: str, own_nats: Any, sink_of: Any
) -> None:
    url = own_nats(config).url
    if "accounts" in config:
        url = url.replace("//", "//a:p@")
    raw = Raw(url)
    raw.make("OTHER", allow_atomic=False)
    raw.publish("OTHER.x", {}, b"x" * 180_000)
    assert raw.codes(1) == [0]
    told = mending(lambda: raw.api._call("STREAM.PURGE.OTHER", {}), after=3)
    batches = [batch_of(10, n) for n in range(1, 11)]
    sink = sink_of(url, delivery=delivery, timeout="3s", subject=f"{stream}.{tokens}")
    sink.write(batches, told)
    # A batch that hits the limit while it is stored is not answered at all.
    assert any(str(code) in error and "is full" in error for error in told.outages)
    assert ids_in(url, stream) == ids_of(*batches)


@pytest.mark.parametrize(
    ("change", "images", "error", "says"),
    [
        ({"sealed": True}, "{}", SettingsError, r"10109.*sealed"),
        ({"max_msg_size": 1000}, '{"a":"' + "x" * 2000 + '"}', Rejected, "00000000/00000002"),
    ],
    ids=["10109 sealed", "10054 too large"],
)
def test_a_stream_that_is_changed_under_us_refuses_what_it_takes_no_more(
    delivery: str,
    change: Any,
    images: str,
    error: type[PenstockError],
    says: str,
    nats: Nats,
    stream: str,
    raw: Raw,
    sink_of: Any,
) -> None:
    raw.make(stream)
    batches = [batch_of(3, 1), batch_of(3, 2, after=images)]
    sink = sink_of(delivery=delivery)
    with pytest.raises(error) as caught:
        sink.write(
            interrupted(nats.url, stream, lambda: raw.update(stream, **change), *batches), ignore
        )
    assert re.search(says, f"{caught.value} {caught.value.hint}")


@pytest.mark.parametrize("count", [pytest.param(1, marks=pytest.mark.thorough), 100])
def test_10210_too_many_batches_of_others_are_waited_for(
    count: int, stream: str, raw: Raw, stored: Any, nats: Nats, settings_of: Any
) -> None:
    """Fifty a stream may be open, and the server gives the others' up after ten seconds. The first
    message is refused for it; the last one then may be of an unknown batch (10176)."""
    raw.make(stream)
    for number in range(50):
        raw.publish(f"{stream}.x", {"Nats-Batch-Id": f"b{number}", "Nats-Batch-Sequence": 1})
    assert raw.codes(50) == [0] * 50
    told = Noted()
    settings = settings_of(
        nats.url, delivery="exactly-once", durability="fsync", assume_synced=True, breaker=BREAKER
    )
    receipt = JetStreamSink(settings).write([batch_of(count, 1)], told)
    assert receipt.numbers["resent"] > 0
    assert "10210" in told.outages[0] or "10176" in told.outages[0]
    assert stored() == ids_of(batch_of(count, 1))


def test_10176_a_batch_that_the_server_gave_up_is_sent_again(
    nats: Nats, stream: str, settings_of: Any
) -> None:
    """The network stalls in the middle of a batch for longer than the server's ten seconds."""
    proxy = Proxy(nats.host, nats.port)
    settings = settings_of(
        f"nats://127.0.0.1:{proxy.port}",
        delivery="exactly-once",
        durability="fsync",
        assume_synced=True,
        timeout="30s",
    )
    sink = JetStreamSink(settings)
    sink.prepare()
    calming = threading.Timer(15.0, lambda: setattr(proxy, "weather", Weather()))

    def stall(after: int) -> None:
        while proxy.asked < after:
            time.sleep(0.01)
        proxy.weather = Weather(stalled=True)
        calming.start()

    def changes() -> Iterator[pa.RecordBatch]:
        yield batch_of(1, 1)
        while not read(nats.url, stream):
            yield batch_of(0)
        proxy.weather = Weather(rate=20_000)  # a thousand messages take many seconds
        threading.Thread(target=stall, args=(proxy.asked + 20_000,), daemon=True).start()
        yield batch_of(1000, 2)

    told = Noted()
    receipt = sink.write(changes(), told)
    proxy.close()
    assert receipt.numbers["resent"] == 1000
    assert ids_in(nats.url, stream) == ids_of(batch_of(1, 1), batch_of(1000, 2))


def test_503_a_stream_that_is_deleted_under_us_is_made_again(
    delivery: str, nats: Nats, stream: str, raw: Raw, sink_of: Any, stored: Any
) -> None:
    delete = lambda: raw.api._call(f"STREAM.DELETE.{stream}", {})  # noqa: E731
    sink = sink_of(delivery=delivery)
    sink.prepare()
    told = Noted()
    batches = [batch_of(10, 1), batch_of(10, 2)]
    sink.write(interrupted(nats.url, stream, delete, *batches), told)
    assert len(told.outages) == 1
    assert stored() == ids_of(batches[1])
    assert any(note.get("details", {}).get("stream_made") for note in told)


@pytest.mark.parametrize(
    ("settings", "code", "remedy"),
    [
        ({"replicas": 3}, 10074, "cluster"),
        ({"stream": "OVERLAPPING"}, 10065, "change the sink's subject"),
    ],
)
def test_a_stream_that_cannot_be_made_is_a_settings_error(
    settings: dict[str, Any], code: int, remedy: str, stream: str, raw: Raw, sink_of: Any
) -> None:
    if "stream" in settings:
        raw.make(stream)
    with pytest.raises(SettingsError, match=str(code)) as caught:
        sink_of(**settings).prepare()
    assert remedy in caught.value.hint


def test_10058_a_stream_that_somebody_else_made_meanwhile(stream: str, raw: Raw) -> None:
    raw.make(stream)
    with pytest.raises(SettingsError, match="10058"):
        raw.make(stream, subjects=["another"])


def test_10039_an_account_without_jetstream_is_a_settings_error(
    own_nats: Any, sink_of: Any
) -> None:
    users = {"users": [{"user": "a", "password": "p"}]}
    server: Nats = own_nats({"accounts": {"A": users, "B": {"jetstream": "enabled"}}})
    sink = sink_of(server.url.replace("//", "//a:p@"))
    with pytest.raises(SettingsError, match="10039") as caught:
        sink.prepare()
    assert "enable JetStream" in caught.value.hint


def test_what_is_not_there_is_none(stream: str, raw: Raw) -> None:
    """10059 and 10037."""
    assert raw.api.stream(stream) is None
    raw.make(stream)
    assert raw.api.last(stream, f"{stream}.>") is None


def test_a_batch_is_not_whole_when_the_server_runs_out_of_its_limit(own_nats: Any) -> None:
    """nats-server 2.15.1 keeps the beginning and answers nothing; see `Atomic._guard`."""
    raw = Raw(own_nats({"jetstream": {"max_file": 60_000}}).url)
    raw.make("FULL")
    for number in range(1, 101):
        headers = {"Nats-Batch-Id": "b", "Nats-Batch-Sequence": number}
        end = {"Nats-Batch-Commit": 1} if number == 100 else {}
        raw.publish("FULL.x", headers | end, b"x" * 1000)
    assert raw.codes(99) == [0] * 99
    assert not raw.connection.receive(2)
    assert 0 < raw.info("FULL")["state"]["messages"] < 100


def test_a_max_payload_that_is_lowered_under_us_is_said_and_loses_nothing(
    delivery: str, stream: str, own_nats: Any, sink_of: Any
) -> None:
    server: Nats = own_nats({"max_payload": 65536})

    def change(limit: int) -> None:
        says = f"max_payload = {limit}"
        reload(server, {"max_payload": limit}, lambda: server.log.count(says) > 0)

    sink = sink_of(server.url, delivery=delivery)
    sink.prepare()
    batches = [batch_of(3, 1), batch_of(1, 2, after='{"a":"' + "x" * 20000 + '"}')]
    told = mending(lambda: change(65536))
    sink.write(interrupted(server.url, stream, lambda: change(4096), *batches), told)
    assert "Maximum Payload Violation" in " ".join(told.outages)
    assert ids_in(server.url, stream) == ids_of(*batches)


def login(**user: Any) -> dict[str, Any]:
    reader = {"user": "reader", "password": "reader"}
    return {"authorization": {"users": [reader, {"user": "u", "password": "s3cret", **user}]}}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"password": "an0ther"}, "refuses the credentials"),
        ({"permissions": {"publish": ["$JS.API.>"]}}, "denies what penstock needs"),
    ],
    ids=["password", "permission"],
)
def test_credentials_that_end_under_us_are_a_settings_error(
    delivery: str,
    change: dict[str, Any],
    says: str,
    stream: str,
    own_nats: Any,
    sink_of: Any,
) -> None:
    server: Nats = own_nats(login())

    def revoke() -> None:
        reload(server, login(**change), lambda: "Reloaded server configuration" in server.log)

    url = server.url.replace("//", "//u:s3cret@")
    reader = server.url.replace("//", "//reader:reader@")
    sink = sink_of(url, delivery=delivery)
    sink.prepare()
    with pytest.raises(SettingsError, match=says) as caught:
        sink.write(interrupted(reader, stream, revoke, batch_of(3, 1), batch_of(3, 2)), ignore)
    assert caught.value.hint
    assert "s3cret" not in str(caught.value)
