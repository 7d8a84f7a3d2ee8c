"""The reader gives every message once and in order, whatever happens to the server."""

import asyncio
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import nats as client
import orjson
import ormsgpack
import pytest
from nats.js.api import StreamConfig

from penstock.errors import Malformed, SettingsError, Unavailable
from penstock.tail.reader import TailReader
from penstock.tail.start import NEW, Since, Start
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


def publish(server: Nats, stream: str, bodies: list[bytes], subject: str = "users") -> None:
    async def work() -> None:
        connection = await client.connect(server.url)
        js = connection.jetstream()
        await js.add_stream(StreamConfig(name=stream, subjects=[f"{stream}.>"]))
        for body in bodies:
            await js.publish(f"{stream}.{subject}", body, headers={"X-Test": "1"})
        await connection.close()

    asyncio.run(work())


def read(reader: TailReader, count: int, timeout: float = 60.0) -> list[int]:
    """The ids of the next `count` messages; fewer when they do not come in time."""
    ids: list[int] = []
    deadline = time.monotonic() + timeout
    while len(ids) < count and time.monotonic() < deadline:
        ids += [message.body["data"]["id"] for message in reader.fetch(timeout=0.5)]
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


def test_every_message_comes_once_although_the_server_is_killed(stream: str) -> None:
    with Nats() as server:
        publish(server, stream, [orjson.dumps(change(number)) for number in range(1, 11)])
        with TailReader(server.url, stream) as reader:
            assert read(reader, 10) == list(range(1, 11))
            server.kill()
            assert reader.fetch(timeout=0.2) == []
            server.start()
            publish(server, stream, [orjson.dumps(change(number)) for number in range(11, 16)])
            assert read(reader, 5) == list(range(11, 16))
            assert reader.fetch(timeout=0.2) == []


def test_a_consumer_that_the_server_forgot_is_made_again(nats: Nats, filled: str) -> None:
    async def forget() -> None:
        connection = await client.connect(nats.url)
        js = connection.jetstream()
        for consumer in await js.consumers_info(filled):
            await js.delete_consumer(filled, consumer.name)
        await connection.close()

    with TailReader(nats.url, filled) as reader:
        assert len(read(reader, 20)) == 20
        asyncio.run(forget())
        publish(nats, filled, [orjson.dumps(change(21))])
        assert read(reader, 1) == [21]


def test_a_missing_stream_is_a_settings_error(nats: Nats) -> None:
    with TailReader(nats.url, "NOWHERE") as reader, pytest.raises(SettingsError, match="NOWHERE"):
        reader.fetch()


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


def test_a_server_without_jetstream_is_unavailable_with_a_hint(stream: str) -> None:
    with (
        Nats(config={"jetstream": False}) as server,
        TailReader(server.url, stream) as reader,
        pytest.raises(Unavailable, match="enabled"),
    ):
        reader.fetch()


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
