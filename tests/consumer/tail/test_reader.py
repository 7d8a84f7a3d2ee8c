"""The reader gives every message once and in order, whatever happens to the server."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta

import orjson
import ormsgpack
import pytest

from penstock.consumer.tail.reader import NEW, Since, Start, TailReader
from penstock.model.errors import Malformed, SettingsError, Unavailable
from penstock.nats.api import JetStream
from penstock.nats.compression import Decompressor
from penstock.nats.connection import Connection
from penstock.nats.settings import NatsSettings
from tests.servers import Nats, free_port

pytestmark = pytest.mark.live

Publish = Callable[..., None]


def change(number: int, **fields: object) -> dict[str, object]:
    return {
        "event_id": f"default:00000000/{number:08X}:0",
        "position": f"00000000/{number:08X}:0",
        "backend": "default",
        "operation": "INSERT",
        "collection": "users",
        "data": {"id": number},
        **fields,
    }


@contextmanager
def api(server: Nats) -> Iterator[JetStream]:
    with closing(Connection(NatsSettings(url=server.url))) as connection:
        connection.open()
        yield JetStream(connection)


def publish(server: Nats, stream: str, bodies: list[bytes], subject: str = "users") -> None:
    with api(server) as js:
        if js.stream(stream) is None:
            js.create({"name": stream, "subjects": [f"{stream}.>"]})
        for body in bodies:
            js.publish(f"{stream}.{subject}", b"NATS/1.0\r\nX-Test: 1\r\n\r\n", body)


def delete_consumers(server: Nats, stream: str) -> None:
    """As the server does with those that nobody uses."""
    with api(server) as js:
        for name in js._call(f"CONSUMER.NAMES.{stream}", {})["consumers"]:
            js._call(f"CONSUMER.DELETE.{stream}.{name}", {})


def read(reader: TailReader, least: int, timeout: float = 60.0, *, count: int = 500) -> list[int]:
    """The ids of the next messages, at least so many; fewer when they do not come in time."""
    ids: list[int] = []
    deadline = time.monotonic() + timeout
    while len(ids) < least and time.monotonic() < deadline:
        ids += [message.body["data"]["id"] for message in reader.fetch(count, timeout=0.5)]
    return ids


@pytest.fixture
def filled(nats: Nats, stream: str) -> Iterator[str]:
    """A stream with the changes 1 to 20."""
    publish(nats, stream, [orjson.dumps(change(number)) for number in range(1, 21)])
    yield stream


@pytest.mark.parametrize(
    ("start", "expected"),
    [(1, range(1, 21)), (5, range(5, 21)), (-3, range(18, 21)), (-99, range(1, 21))],
)
def test_reading_starts_where_it_is_told(
    nats: Nats, filled: str, start: Start, expected: range
) -> None:
    with TailReader(nats.url, filled, start=start) as reader:
        assert read(reader, len(expected)) == list(expected)
        assert reader.fetch(timeout=0.2) == []
        assert reader.sequence == reader.end() == 20


def test_new_is_only_what_comes_after_the_first_fetch(nats: Nats, filled: str) -> None:
    with TailReader(nats.url, filled, start=NEW) as reader:
        assert reader.fetch(timeout=0.2) == []
        publish(nats, filled, [orjson.dumps(change(21))])
        assert read(reader, 1) == [21]


def test_reading_since_a_time_skips_what_is_older(nats: Nats, filled: str) -> None:
    with TailReader(nats.url, filled) as reader:
        stored = []
        while reader.pending != 0:
            stored += [message.stored_at for message in reader.fetch(timeout=5)]
    with TailReader(
        nats.url, filled, start=Since(time=stored[9] + timedelta(microseconds=1))
    ) as reader:
        assert read(reader, 10) == list(range(11, 21))


def test_a_subject_filter_leaves_the_others_out(nats: Nats, filled: str) -> None:
    publish(nats, filled, [orjson.dumps(change(77))], subject="orders.insert")
    with TailReader(nats.url, filled, subject=f"{filled}.orders.>") as reader:
        assert read(reader, 1) == [77]
        assert reader.fetch(timeout=0.2) == []


def test_a_message_says_where_and_when_it_was_stored(nats: Nats, stream: str) -> None:
    before = datetime.now(UTC) - timedelta(milliseconds=5)
    committed = "2026-01-02T03:04:05.000006Z"
    publish(nats, stream, [ormsgpack.packb(change(7, committed_at=committed))])
    with TailReader(nats.url, stream) as reader:
        [message] = reader.fetch(timeout=60)
    assert (message.sequence, message.subject) == (1, f"{stream}.users")
    assert before < message.stored_at < datetime.now(UTC) + timedelta(milliseconds=5)
    assert message.headers["X-Test"] == "1"
    assert message.committed_at == datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    assert message.place == ("00000000/00000007", 0)


def test_a_fetch_is_never_larger_than_asked_for(nats: Nats, filled: str) -> None:
    with TailReader(nats.url, filled) as reader:
        sizes = []
        while reader.pending != 0:
            sizes.append(len(reader.fetch(count=7, timeout=0.5)))
    assert max(sizes) <= 7
    assert sum(sizes) == 20


def test_a_server_that_is_killed_while_a_backlog_is_read_costs_no_message(stream: str) -> None:
    bodies = [orjson.dumps(change(number, pad="x" * 20_000)) for number in range(1, 2001)]
    with Nats() as server:
        publish(server, stream, bodies)
        with TailReader(server.url, stream) as reader:
            found = read(reader, 300)
            server.kill()
            found += read(reader, 2000, timeout=1)  # what had arrived
            server.start()
            found += read(reader, 2000 - len(found))
            assert found == list(range(1, 2001))
            assert reader.fetch(timeout=0.2) == []


def test_a_reader_that_pauses_keeps_its_place(filled: str, nats: Nats) -> None:
    """Longer than its request lasts, and than the server keeps a consumer that is not used."""
    with TailReader(nats.url, filled) as reader:
        assert read(reader, 5, count=5) == [1, 2, 3, 4, 5]
        delete_consumers(nats, filled)
        publish(nats, filled, [orjson.dumps(change(21))])
        assert read(reader, 16) == list(range(6, 22))


def test_a_server_that_does_not_answer_is_left_and_read_again_later(stream: str) -> None:
    with Nats() as server:
        publish(server, stream, [orjson.dumps(change(1))])
        with TailReader(NatsSettings(url=server.url, timeout=2.0), stream) as reader:
            assert read(reader, 1) == [1]
            server.signal(signal.SIGSTOP)
            assert read(reader, 1, timeout=10) == []
            server.signal(signal.SIGCONT)
            publish(server, stream, [orjson.dumps(change(2))])
            assert read(reader, 1) == [2]


def test_a_stream_that_is_deleted_is_a_settings_error(nats: Nats, filled: str) -> None:
    with TailReader(nats.url, filled) as reader, api(nats) as js:
        assert len(read(reader, 20)) == 20
        js._call(f"STREAM.DELETE.{filled}", {})
        with pytest.raises(SettingsError, match=filled):
            read(reader, 1)


def test_the_settings_of_a_connection_may_have_the_login(stream: str) -> None:
    with Nats(config={"authorization": {"token": "s3cr3t"}}) as server:
        settings = NatsSettings(url=server.url, token="s3cr3t")
        with TailReader(settings, stream) as reader, pytest.raises(SettingsError, match=stream):
            reader.fetch()
        with TailReader(server.url, stream) as reader, pytest.raises(SettingsError) as caught:
            reader.fetch()
    assert "credentials" in str(caught.value)


def test_a_missing_stream_is_a_settings_error(nats: Nats) -> None:
    with TailReader(nats.url, "NOWHERE") as reader, pytest.raises(SettingsError, match="NOWHERE"):
        reader.fetch()


def test_a_missing_stream_names_those_that_are_there() -> None:
    with Nats() as nats:
        publish(nats, "SHOP", [b"{}"])
        for ask in (TailReader.end, TailReader.fetch):
            with TailReader(nats.url, "CDC") as reader, pytest.raises(SettingsError) as caught:
                ask(reader)
            assert caught.value.hint.startswith("there are: SHOP. ")


def test_an_absent_server_is_unavailable() -> None:
    url = f"nats://127.0.0.1:{free_port()}"
    with TailReader(url, "CDC") as reader, pytest.raises(Unavailable):
        reader.fetch()


def test_a_wrong_password_is_a_settings_error_and_is_not_printed() -> None:
    config = {"authorization": {"users": [{"user": "reader", "password": "right"}]}}
    with Nats(config=config) as server:
        url = f"nats://reader:wrong-one@127.0.0.1:{server.port}"
        with TailReader(url, "CDC") as reader, pytest.raises(SettingsError) as caught:
            reader.fetch()
    assert "wrong-one" not in str(caught.value)


def test_a_server_without_jetstream_is_a_settings_error_with_a_hint(stream: str) -> None:
    with (
        Nats(config={"jetstream": False}) as server,
        TailReader(server.url, stream) as reader,
        pytest.raises(SettingsError, match="has no JetStream") as caught,
    ):
        reader.fetch()
    assert "enabled" in caught.value.hint


def test_a_message_that_is_no_change_is_malformed_and_loses_none_of_the_others(
    nats: Nats, stream: str
) -> None:
    good = [orjson.dumps(change(number)) for number in (1, 2)]
    publish(nats, stream, [good[0], b"hello", good[1]])
    with TailReader(nats.url, stream) as reader:
        assert read(reader, 1) == [1]
        with pytest.raises(Malformed):
            reader.fetch(timeout=60)
        assert read(reader, 1) == [2]


def test_a_compression_that_cannot_be_read_loses_nothing(
    nats: Nats, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What came before it is returned; then the same message is tried again."""
    bodies = [orjson.dumps(change(number)) for number in (1, 2, 3)]
    publish(nats, stream, bodies)
    refuse = True

    def plain(_: Decompressor, headers: object, data: bytes, *of: str) -> bytes:
        if refuse and b'"id":2' in data:
            raise SettingsError("no such dictionary")
        return data

    monkeypatch.setattr(Decompressor, "plain", plain)
    # Which each message has.
    monkeypatch.setattr("penstock.consumer.tail.bodies.ENCODING", "X-Test")
    with TailReader(nats.url, stream) as reader:
        assert read(reader, 1) == [1]
        for _ in range(2):
            with pytest.raises(SettingsError, match="no such dictionary"):
                reader.fetch(timeout=10)
            assert reader.sequence == 1
        refuse = False
        assert read(reader, 2) == [2, 3]
