"""Many partitions in one stream, each with subjects of its own: one chain for all of them."""

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import orjson
import pyarrow as pa
import pytest

from penstock.model.position import PartitionId, Place
from penstock.nats.api import JetStream
from penstock.nats.connection import Connection
from penstock.sinks import Receipt, ignore
from penstock.sinks.jetstream import JetStreamSink
from tests.progress import Noted
from tests.servers import Nats
from tests.sinks.changes import batch_of, ids_of, read
from tests.sinks.jetstream.raw import publishing

MakeBatch = Callable[..., pa.RecordBatch]
MakeSink = Callable[..., JetStreamSink]
# What makes batches chains, or atomic ones.
SYNCED: dict[str, Any] = {"chain": {}, "atomic": {"durability": "fsync", "assume_synced": True}}


@pytest.fixture
def subject(stream: str) -> str:
    return f"{stream}.{{backend}}.{{source_partition}}.{{collection}}"


@pytest.fixture
def make(nats: Nats, subject: str, sink_of: Any) -> MakeSink:
    def made(url: str = nats.url, **settings: Any) -> JetStreamSink:
        fields = {"subject": subject, "delivery": "exactly-once", **settings}
        sink = sink_of(url, **fields)
        sink.prepare()
        return sink

    return made


@pytest.fixture
def order_of(stream: str, nats: Nats) -> Callable[[], dict[str, list[str]]]:
    """The event ids of each partition in the stream's order, by `backend.partition`."""

    def made() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for message in read(nats.url, stream):
            _, backend, partition, _ = message.subject.split(".")
            found.setdefault(f"{backend}.{partition}", []).append(message.event_id)
        return found

    return made


def pages(
    *, partitions: int, rounds: int, rows: int = 2, backend: str = "default"
) -> list[pa.RecordBatch]:
    """A page of some rows of each partition, round after round."""
    return [
        batch_of(rows, number * 10_000 + n, partition=f"p{n:04}", backend=backend)
        for number in range(1, rounds + 1)
        for n in range(partitions)
    ]


def expected(*batches: pa.RecordBatch) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for batch in batches:
        backend, partition = batch.column("backend")[0], batch.column("partition")[0]
        found.setdefault(f"{backend}.{partition}", []).extend(batch.column("event_id").to_pylist())
    return found


@pytest.mark.parametrize("form", ["change", "batch", "arrow"])
def test_small_pages_of_many_partitions_go_out_together(
    form: str, make: MakeSink, order_of: Any, stream: str, nats: Any
) -> None:
    settings = {
        "change": {}, "batch": {"messages": "batch"},
        "arrow": {"messages": "batch", "encoding": "arrow"},
    }[form]  # fmt: skip
    sink = make(**settings)
    given = pages(partitions=200, rounds=5)
    receipt = sink.write(given, ignore)
    assert (receipt.published, receipt.duplicates) == (2000, 0)
    assert receipt.numbers["batches"] < 100, "2,000 changes in 1,000 pages"
    assert receipt.position[PartitionId("p0007")] == Place("00000000/0000C357", 1)
    assert len(receipt.position) == 200
    if form == "change":
        assert order_of() == expected(*given)
    again = sink.write(given, ignore)
    assert (again.published, again.duplicates) == (0, 2000)
    stored = read(nats.url, stream)
    assert sum(int(message.headers.get("Penstock-Count", 1)) for message in stored) == 2000
    if form != "change":
        assert len(stored) <= 1000, "a partition's changes of one batch share a message"


@pytest.mark.parametrize("messages", ["change", "batch"])
def test_a_restart_in_the_middle_stores_the_rest_of_each_partition(
    messages: str, make: MakeSink, order_of: Any
) -> None:
    given = pages(partitions=30, rounds=4)
    make(messages=messages).write(given[:47], ignore)
    receipt = make(messages=messages, window=1).write(given, ignore)
    assert (receipt.published, receipt.duplicates) == (240 - 94, 94)
    if messages == "change":
        assert order_of() == expected(*given)


def test_the_places_of_many_partitions_are_read_in_a_few_requests(
    make: MakeSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make()
    given = pages(partitions=300, rounds=1)
    sink.write(given, ignore)
    asked: list[str] = []
    requests, many = Connection.requests, Connection.request_many

    def counted(self: Connection, questions: Any, *args: Any, **more: Any) -> Any:
        asked.extend(subject for subject, *_ in questions)
        return requests(self, questions, *args, **more)

    def counted_many(self: Connection, subject: str, *args: Any) -> Any:
        asked.append(subject)
        return many(self, subject, *args)

    monkeypatch.setattr(Connection, "requests", counted)
    monkeypatch.setattr(Connection, "request_many", counted_many)
    found = sink.records("default", [PartitionId(f"p{n:04}") for n in range(300)])
    assert all(record.begun and record.bookmark for record in found.values())
    assert len(asked) <= 4, asked
    asked.clear()
    joined = pa.Table.from_batches(given).combine_chunks().to_batches()
    assert sink.write(joined, ignore).duplicates == 600
    assert len(asked) <= 8, asked


def test_places_are_read_where_the_stream_allows_no_direct_requests(
    api: JetStream, stream: str, make: MakeSink
) -> None:
    api.create({"name": stream, "subjects": [f"{stream}.>"], "allow_atomic": True})
    given = pages(partitions=40, rounds=1)
    make().write(given, ignore)
    assert make(window=1).write(given, ignore).duplicates == 80


def test_places_are_read_by_an_account_that_may_not_ask_directly(
    own_nats: Callable[..., Nats], settings_of: Any, subject: str
) -> None:
    denied = {"deny": "$JS.API.DIRECT.GET.>"}
    user = {"user": "u", "password": "p", "permissions": {"publish": denied}}
    server = own_nats({"authorization": {"users": [user]}})
    url = server.url.replace("//", "//u:p@")
    given = pages(partitions=40, rounds=3)
    for window in (8000, 1):
        settings = settings_of(url, subject=subject, delivery="exactly-once", window=window)
        receipt = JetStreamSink(settings).write(given, ignore)
    assert (receipt.published, receipt.duplicates) == (0, 240)


def test_a_shard_of_more_subjects_than_one_answer_holds_is_read(make: MakeSink) -> None:
    many = batch_of(1100, 1, partition="a", collection=[f"t{n}" for n in range(1100)])
    given = [many, batch_of(3, 2, partition="b"), batch_of(3, 3, partition="c")]
    make().write(given, ignore)
    assert make(window=1).write(given, ignore).duplicates == 1106


def test_new_partitions_join_while_batches_are_in_flight(make: MakeSink, order_of: Any) -> None:
    given = [
        batch_of(2, number * 100 + n, partition=f"p{n:04}")
        for number in range(1, 60)
        for n in range(number)
    ]
    receipt = make(batch={"max_size": 10}).write(given, ignore)
    assert receipt.published == 2 * len(given)
    assert order_of() == expected(*given)


@pytest.mark.parametrize("losing", [1, 3])
@pytest.mark.parametrize("form", ["chain", "atomic"])
def test_lost_acknowledgements_are_settled_for_every_partition(
    losing: int, form: str, proxy: Any, make: MakeSink, order_of: Any
) -> None:
    between = proxy(trigger=b'{"stream":', remaining=losing)
    sink = make(between.url, timeout="60s", **SYNCED[form])
    given = pages(partitions=150, rounds=12, rows=4)
    receipt = sink.write(given, ignore)
    assert between.lost == losing
    assert (receipt.published, receipt.duplicates) == (7200, 0)
    assert receipt.numbers["resent"] > 0
    assert order_of() == expected(*given)
    assert receipt.position[PartitionId("p0149")] == Place("00000000/0001D555", 3)


def test_several_backends_share_a_stream(make: MakeSink, order_of: Any) -> None:
    """Each has a writer of its own, so nobody's batches follow each other on the stream."""
    given = {
        name: pages(partitions=40, rounds=12, rows=5, backend=name)
        for name in ("one", "two", "three")
    }
    found: dict[str, Receipt] = {}
    sinks = {name: make(window=n) for n, name in enumerate(given, 1)}

    def write(name: str) -> None:
        found[name] = sinks[name].write(given[name], ignore)

    threads = [threading.Thread(target=write, args=(name,)) for name in given]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: (one.published, one.duplicates) for name, one in found.items()} == dict.fromkeys(
        given, (2400, 0)
    )
    assert order_of() == expected(*(batch for batches in given.values() for batch in batches))


@pytest.mark.parametrize("tokens", ["{backend}.x", "{backend}.{source_partition}"])
@pytest.mark.parametrize("form", ["chain", "atomic"])
def test_as_many_messages_of_another_backend_do_not_let_the_next_batch_pass(
    tokens: str, form: str, nats: Nats, stream: str, settings_of: Any, order_of: Any
) -> None:
    """Two batches are in flight, and another backend stores as many messages as the first has: it
    is refused, and the stream is now where the second expects it."""
    fields = {"delivery": "exactly-once", "subject": f"{stream}.{tokens}.{{collection}}"}
    settings = settings_of(nats.url, **fields, **SYNCED[form])
    batches = [batch_of(1000, n, partition="x") for n in range(1, 5)]
    with publishing(settings, *batches) as publisher:
        publisher._read_back()
        JetStreamSink(settings).write([batch_of(1000, 1, backend="other", partition="x")], ignore)
        publisher.pump(drain=True)
    assert order_of()["default.x"] == expected(*batches)["default.x"]


def test_what_another_attempt_stored_is_not_stored_again(make: MakeSink, order_of: Any) -> None:
    given = pages(partitions=20, rounds=3)
    first, second = make(), make(window=1)

    def held_up() -> Iterator[pa.RecordBatch]:
        yield from given[:20]
        while len(order_of()) < 20:
            yield batch_of(0)
        second.write(given, ignore)
        yield from given[20:]

    receipt = first.write(held_up(), ignore)
    assert (receipt.published, receipt.duplicates) == (40, 80)
    assert order_of() == expected(*given)


def test_only_what_is_new_of_the_position_is_reported(
    make: MakeSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.sinks.rows.loop._PROGRESS", 0.0)
    progress = Noted()

    def slow() -> Iterator[pa.RecordBatch]:
        yield from pages(partitions=50, rounds=1)
        while len(progress.position) < 50:
            yield batch_of(0)
        progress.position.clear()
        yield batch_of(1, 99_999, partition="p0003")
        while not progress.position:
            yield batch_of(0)

    make().write(slow(), progress)
    assert progress.position == {"p0003": Place("00000000/0001869F", 0)}


def test_a_change_that_cannot_be_stored_is_set_aside_for_its_partition_alone(
    make: MakeSink, order_of: Any
) -> None:
    given = pages(partitions=10, rounds=2)
    bad = batch_of(3, 90_000, partition="p0004", after=["{}", "x" * 2_000_000, "{}"])
    sink = make(on_error="dead-letter")
    receipt = sink.write([*given, bad], ignore)
    assert receipt.position[PartitionId("p0004")] == Place("00000000/00015F90", 2)
    found = order_of()
    assert len(found["default.p0004"]) == 4 + 2
    assert sum(map(len, found.values())) == 42
    (letter,) = sink.dead_letters()
    assert (letter["partition"], letter["position"]) == ("p0004", "00000000/00015F90:1")
    assert orjson.dumps(letter)


def test_hash_partitions_are_one_chain_in_the_sources_order(
    nats: Nats, stream: str, sink_of: Any
) -> None:
    given = {"subject": f"{stream}.{{partition}}.{{collection}}", "delivery": "exactly-once"}
    sink = sink_of(**given)
    sink.prepare()
    routes = [number * 5 % 16 for number in range(60)]
    batches = [batch_of(60, commit, route=routes) for commit in range(1, 6)]
    sink.write(batches[:3], ignore)
    receipt = sink_of(timeout=4, **given).write(batches, ignore)
    assert (receipt.published, receipt.duplicates) == (120, 180)
    stored = read(nats.url, stream)
    assert [message.event_id for message in stored] == ids_of(*batches)
    assert [message.subject for message in stored] == [
        f"{stream}.{route}.items" for _ in batches for route in routes
    ]
    starts = [
        message.sequence
        for before, message in pairwise(stored)
        if message.headers.get("Nats-Expected-Last-Msg-Id") != before.event_id
        and "Nats-Batch-Id" not in message.headers
    ]
    assert starts == [181], "the second writer's first message, behind the fence"


# Several changes a message, too: full messages, and what is stored is a prefix.

PARTITIONS, ROWS = 16, 6000


def of_documents(commit: int, operations: list[str], rows: int = ROWS) -> Any:
    """Changes of 97 documents in turns, with these operations in turns."""
    documents = [n % 97 for n in range(rows)]
    return batch_of(
        rows, commit,
        document_id=[str(one) for one in documents],
        key=[orjson.dumps({"id": one}).decode() for one in documents],
        operation=[operations[n // 97 % len(operations)] for n in range(rows)],
        route=[one % PARTITIONS for one in documents],
    )  # fmt: skip


def changes_of(message: Any) -> list[dict[str, Any]]:
    body = orjson.loads(message.data)
    return [dict(zip(body["fields"], change, strict=True)) for change in body["changes"]]


@pytest.mark.parametrize("operations", [["UPDATE"], ["INSERT", "UPDATE"]], ids=["one", "two"])
def test_each_document_is_in_order_and_a_repeat_adds_nothing(
    operations: list[str], make: MakeSink, nats: Nats, stream: str
) -> None:
    """Two operations in turns make thousands of messages of a part: more than may be stored
    together."""
    sink = make(subject=f"{stream}.{{partition}}", messages="batch", encoding="json")
    batches = [of_documents(commit, operations) for commit in (1, 2)]
    sink.write(iter(batches), ignore)
    found = read(nats.url, stream)
    sink.write(iter(batches), ignore)
    assert len(read(nats.url, stream)) == len(found)
    changes = [change for message in found for change in changes_of(message)]
    ids = [change["event_id"] for change in changes]
    assert len(ids) == len(set(ids))
    assert set(ids) == set(ids_of(*batches))
    at = {event: number for number, event in enumerate(ids)}
    for document in range(97):
        mine = [
            at[event]
            for batch in batches
            for event in batch.column("event_id").to_pylist()[document::97]
        ]
        assert mine == sorted(mine)
    for message in found:
        wanted = message.subject.rpartition(".")[2]
        assert {str(int(c["document_id"]) % PARTITIONS) for c in changes_of(message)} == {wanted}


def test_messages_are_as_full_as_without_hash_partitions(
    make: MakeSink, nats: Nats, stream: str
) -> None:
    """A backlog of pages of 500 changes: each message has more than a sixteenth of a page."""
    sink = make(subject=f"{stream}.{{partition}}", messages="batch", encoding="json")
    given = [of_documents(commit, ["UPDATE"], 500) for commit in range(1, 61)]
    sink.write(given, ignore)
    sizes = [len(changes_of(message)) for message in read(nats.url, stream)]
    assert sum(sizes) == 30_000
    # 500 changes would be 16 messages of 31.
    assert len(sizes) < 30_000 / 31 / 4
