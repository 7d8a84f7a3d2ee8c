"""Three servers: the stream has three copies, its leader dies or steps down, the quorum is lost.

The codes of one server are in test_error_codes; here are those that need three.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import orjson
import pyarrow as pa
import pytest

from penstock.model.errors import LeaseLost, SettingsError
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSink
from tests.servers import Nats
from tests.sinks.changes import batch_of, ids_in, ids_of, interrupted, read
from tests.sinks.jetstream.raw import Raw, mending, prepared, three_servers

pytestmark = pytest.mark.fault


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[Nats]]:
    with three_servers() as servers:
        yield servers


def test_the_leader_dies_in_the_middle_of_a_write(
    delivery: str, cluster: list[Nats], settings_of: Any
) -> None:
    url = ",".join(server.url for server in cluster)
    settings = settings_of(url, delivery=delivery, replicas=3, timeout="2s")
    sink = JetStreamSink(settings)
    prepared(sink)
    batches = [batch_of(500, n) for n in range(1, 31)]
    leader = Raw(cluster[0].url).leader(settings.stream)
    victim = cluster[int(leader.removeprefix("node"))]

    def killed() -> Iterator[pa.RecordBatch]:
        yield from batches[:10]
        victim.kill()
        yield from batches[10:]

    receipt = sink.write(killed(), ignore)
    victim.start()
    assert receipt.published + receipt.duplicates >= 15_000
    assert receipt.numbers["delivery"] == delivery
    survivor = cluster[cluster.index(victim) - 1]
    assert ids_in(survivor.url, settings.stream) == ids_of(*batches)
    again = sink.write(batches[-3:], ignore)
    assert (again.published, again.duplicates) == (0, 1500)


def urls(cluster: list[Nats]) -> str:
    return ",".join(server.url for server in cluster)


@pytest.fixture
def three(cluster: list[Nats], sink_of: Any) -> Callable[..., JetStreamSink]:
    """A sink over a stream with three copies, which is there."""

    def make(**settings: Any) -> JetStreamSink:
        fields = {"replicas": 3, "timeout": "2s", "delivery": "exactly-once", **settings}
        sink = sink_of(urls(cluster), **fields)
        prepared(sink)
        return sink

    return make


def test_the_leader_steps_down_in_the_middle_of_a_write(
    delivery: str, cluster: list[Nats], three: Any
) -> None:
    sink = three(delivery=delivery)
    batches = [batch_of(500, n) for n in range(1, 21)]

    def led_by_others() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            yield batch
            if number % 5 == 4:
                raw = Raw(cluster[0].url)
                raw.step_down(sink.settings.stream)
                raw.connection.close()

    sink.write(led_by_others(), ignore)
    stored = ids_in(cluster[0].url, sink.settings.stream)
    # Single messages in flight that the old leader drops are stored behind those that the new one
    # already has: only batches behind a fence keep the order then.
    assert sorted(stored) == sorted(ids_of(*batches))
    if delivery == "exactly-once":
        assert stored == ids_of(*batches)


def test_without_a_quorum_nothing_is_acknowledged_and_all_of_it_arrives_later(
    delivery: str, cluster: list[Nats], three: Any
) -> None:
    sink = three(delivery=delivery, breaker={"timeout": "2s"})
    batches = [batch_of(200, n) for n in range(1, 11)]

    def without_two() -> Iterator[pa.RecordBatch]:
        yield from batches[:5]
        for server in cluster[:2]:
            server.kill()
        yield from batches[5:]

    def mend() -> None:
        for server in cluster[:2]:
            server.start()

    told = mending(mend, after=3)
    sink.write(without_two(), told)
    assert len(told.outages) >= 3
    assert ids_in(cluster[2].url, sink.settings.stream) == ids_of(*batches)


@pytest.mark.parametrize("tokens", ["{collection}", "{backend}.{source_partition}.{collection}"])
def test_10071_a_zombie_is_fenced_on_three_servers_too(
    tokens: str, cluster: list[Nats], stream: str, three: Any
) -> None:
    subject = f"{stream}.{tokens}"
    zombie, owner = (three(subject=subject, window=window) for window in (8000, 1))
    url, meanwhile = cluster[0].url, lambda: owner.write([batch_of(5, 2)], ignore)
    with pytest.raises(LeaseLost):
        zombie.write(interrupted(url, stream, meanwhile, batch_of(10, 1), batch_of(10, 3)), ignore)
    assert ids_in(url, stream) == ids_of(batch_of(10, 1), batch_of(5, 2))


def test_10201_ids_that_are_remembered_do_not_stop_a_batch_on_three_servers(
    cluster: list[Nats], stream: str, three: Any
) -> None:
    sink = three()
    sink.write([batch_of(10, 1)], ignore)
    Raw(cluster[0].url).api._call(f"STREAM.PURGE.{stream}", {})
    assert sink.write([batch_of(10, 1), batch_of(10, 2)], ignore).published == 20
    assert ids_in(cluster[0].url, stream) == ids_of(batch_of(10, 1), batch_of(10, 2))


def test_10164_a_second_expectation_while_the_first_is_in_process(
    cluster: list[Nats], stream: str, three: Any
) -> None:
    """Why the sink has one batch of a shard in flight, and chains on the stream's sequence."""
    three()
    raw = Raw(cluster[0].url)
    subject = f"{stream}.items.insert"
    expected = {"Nats-Expected-Last-Subject-Sequence": 0}
    seen: set[int] = set()
    deadline = time.monotonic() + 60
    while 10164 not in seen:
        assert time.monotonic() < deadline, seen
        raw.api._call(f"STREAM.PURGE.{stream}", {})
        for _ in range(20):
            raw.publish(subject, expected)
        seen |= set(raw.codes(20))
    assert seen <= {0, 10164, 10071}


def test_10005_more_copies_than_servers_is_a_settings_error(three: Any, stream: str) -> None:
    three()
    with pytest.raises(SettingsError, match="10005") as caught:
        three(stream=f"{stream}5", subject=f"{stream}5.x.{{collection}}", replicas=5)
    assert "too few servers" in caught.value.hint


def test_10176_a_batch_that_its_leader_lost_is_sent_again(
    cluster: list[Nats], stream: str, three: Any
) -> None:
    """A leader keeps the messages of an open batch; the next leader knows nothing of it."""
    three()
    raw = Raw(cluster[0].url)
    subject = f"{stream}.other.thing"
    raw.publish(subject, {"Nats-Batch-Id": "open", "Nats-Batch-Sequence": 1})
    assert raw.codes(1) == [0]
    raw.step_down(stream)
    commit = {"Nats-Batch-Id": "open", "Nats-Batch-Sequence": 2, "Nats-Batch-Commit": 1}
    codes: list[int] = []
    deadline = time.monotonic() + 60
    while codes != [10176]:
        assert time.monotonic() < deadline, codes
        due = raw.publish(subject, commit)
        answers = [one for one in raw.connection.receive(1) if one.payload and one.subject == due]
        codes = [orjson.loads(one.payload)["error"]["err_code"] for one in answers][-1:]
    assert read(cluster[0].url, stream) == []
