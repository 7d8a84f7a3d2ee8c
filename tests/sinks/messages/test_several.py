"""`messages: batch` on a real server: whatever crashes where, each change is stored once."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import orjson
import pyarrow as pa
import pytest

from penstock.consumer.tail.bodies import changes_of
from penstock.model.errors import Rejected
from penstock.model.position import PartitionId, Place
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSettings, JetStreamSink
from penstock.sinks.jetstream.publishing.atomic import Atomic
from penstock.sinks.jetstream.publishing.flight import FlightBatch, FlightLimits
from penstock.sinks.rows.flow import Flow
from penstock.sinks.rows.loop import Tally
from penstock.sinks.subject import parse_template
from tests.servers import Nats
from tests.sinks.changes import batch_of, encoded, ids_of, read

pytestmark = pytest.mark.live

Change = dict[str, Any]
ENCODINGS = ["msgpack", "json", "arrow"]


@pytest.fixture
def make(sink_of: Any) -> Callable[..., JetStreamSink]:
    def sink(**fields: Any) -> JetStreamSink:
        chosen = {"messages": "batch", "delivery": "exactly-once", **fields}
        return sink_of(**chosen)

    return sink


@pytest.fixture
def messages(nats: Nats, stream: str) -> Callable[[], list[Any]]:
    """The stream's messages and the changes in each."""
    return lambda: [(one, changes_of(one.headers, one.data)) for one in read(nats.url, stream)]


@pytest.fixture
def source() -> Callable[[int], list[pa.RecordBatch]]:
    """`source(size)`: the same 96 changes of three tables and a logical message now and then, in
    transactions of eight, cut into batches of `size`."""
    operations = ["INSERT", "INSERT", "UPDATE", "INSERT", "DELETE", "UPDATE", "INSERT", "MESSAGE"]
    tables = ["a", "b", "a", "c", "b", "a", "a", "p"]
    schema: list[str | None] = [*["public"] * 7, None]
    whole = pa.Table.from_batches(
        batch_of(
            8, n, operation=operations, collection=tables, namespace=schema,
            after=[orjson.dumps({"n": n, "i": i}).decode() for i in range(8)],
        )
        for n in range(1, 13)
    ).combine_chunks()  # fmt: skip
    return lambda size: whole.to_batches(max_chunksize=size)


def test_a_message_holds_changes_of_one_kind(make: Any, messages: Any, stream: str) -> None:
    batch = batch_of(6, 9, collection=["a", "b", "a", "b", "a", "a"])
    receipt = make().write([batch], ignore)
    assert (receipt.published, receipt.duplicates) == (6, 0)
    assert receipt.position == {PartitionId("shop"): Place("00000000/00000009", 5)}
    found = messages()
    assert [message.subject for message, _ in found] == [f"{stream}.b.insert", f"{stream}.a.insert"]
    assert [[change["position"][-1] for change in changes] for _, changes in found] == [
        ["1", "3"], ["0", "2", "4", "5"],
    ]  # fmt: skip
    message, _ = found[0]
    del message.headers["Nats-Batch-Id"]
    assert message.headers == {
        "Nats-Msg-Id": "default:00000000/00000009:3",
        "Penstock-Position": "default shop 00000000/00000009:3",
        "Penstock-Count": "2",
        "Penstock-Schema": "1",
        "Content-Type": "application/msgpack",
        "Nats-Batch-Sequence": "1",
        "Nats-Expected-Last-Sequence": "0",
    }


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_the_limits_of_a_batch_are_those_of_a_message(
    encoding: str, make: Any, messages: Any
) -> None:
    batch = batch_of(1000, 1, images="json" if encoding == "json" else "msgpack")
    make(encoding=encoding, batch={"max_size": 300}).write([batch], ignore)
    assert [len(changes) for _, changes in messages()] == [300, 300, 300, 100]
    large = batch_of(20, 2, document_id="x" * 3000)
    make(encoding=encoding, batch={"max_bytes": 10_000}).write([large], ignore)
    assert [len(changes) for _, changes in messages()[4:]] == [3] * 6 + [2]
    said = [change["event_id"] for _, changes in messages() for change in changes]
    assert said == ids_of(batch, large)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_messages_stay_below_what_the_server_takes(encoding: str, make: Any, messages: Any) -> None:
    """Its max_payload is 1 MiB; the settings would allow more."""
    batches = [batch_of(500, n, document_id="x" * 5000) for n in range(1, 4)]
    make(encoding=encoding, batch={"max_bytes": "64MiB"}).write(batches, ignore)
    found = messages()
    assert sum(len(changes) for _, changes in found) == 1500
    assert max(len(message.data) for message, _ in found) > 900_000


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_change_that_is_too_large_alone_is_rejected_by_its_place(
    encoding: str, make: Any
) -> None:
    ids = ["small", "s3cret" * 200_000, "small"]
    with pytest.raises(Rejected, match="00000000/00000009:1 of shop") as caught:
        make(encoding=encoding).write([batch_of(3, 9, document_id=ids)], ignore)
    assert "s3cret" not in str(caught.value)


def check_order(changes: list[Change], expected: list[Change]) -> None:
    """Each change once, in order per table, and none passed a logical message."""
    assert sorted(map(_place, changes)) == list(map(_place, expected))
    for table in ("a", "b", "c", "p"):
        mine = [_place(one) for one in changes if one["collection"] == table]
        assert mine == sorted(mine)
    for number, one in enumerate(changes):
        if one["operation"] == "MESSAGE":
            assert sorted(map(_place, changes[:number])) == list(map(_place, expected[:number]))


def at_rest(messages: Any) -> Any:
    """What was on its way has arrived: the server tells of a batch that it is just storing."""
    found = messages()
    while len(again := messages()) > len(found):
        found = again
    return again


def _place(change: Change) -> str:
    return str(change["position"])


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_after_a_crash_anywhere_every_change_is_stored_once(
    encoding: str, make: Any, messages: Any, source: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer dies after every few changes, and the next one cuts them otherwise."""

    def small(*args: Any, **fields: Any) -> Atomic:
        # As few messages in a batch as can be: each end where one may end is used.
        return Atomic(*args, **{**fields, "limits": FlightLimits(size=1)})

    monkeypatch.setattr("penstock.sinks.jetstream.session.Atomic", small)
    everything = [
        {"position": f"{row['cursor']}:{row['ordinal']}"}
        for batch in source(96)
        for row in batch.to_pylist()
    ]
    reached = crashes = 0
    for size in (7, 5, 11, 3, 13, 6, 96):
        sink = make(encoding=encoding)
        sink.prepare()

        def dying(size: int = size, reached: int = reached) -> Iterator[pa.RecordBatch]:
            given = 0
            for batch in source(size):
                yield batch
                given += len(batch)
                if size < 96 and given > reached + 9:
                    # Something of it is stored, and perhaps more is on its way.
                    while sum(len(changes) for _, changes in messages()) <= reached:
                        yield batch[:0]
                    raise OSError("killed")

        receipt = None
        with suppress(OSError):
            receipt = sink.write(dying(), ignore)
        found = at_rest(messages)
        changes = [change for _, one in found for change in one]
        # What is there is a prefix, and the last message says where it ends.
        last = found[-1][0].headers["Penstock-Position"].rpartition(" ")[2]
        check_order(changes, everything[: len(changes)])
        assert last == everything[len(changes) - 1]["position"]
        if receipt is not None:
            assert receipt.published + receipt.duplicates == 96
            # What was still on its way when the one before died may have arrived meanwhile.
            assert receipt.duplicates >= reached
        reached, crashes = len(changes), crashes + (receipt is None)
    assert reached == 96
    assert crashes >= 2


def test_a_lost_acknowledgement_does_not_repeat_a_change(
    proxy: Any, messages: Any, source: Any, sink_of: Any
) -> None:
    between = proxy(trigger=b'{"stream":', remaining=1)
    sink = sink_of(between.url, delivery="exactly-once", messages="batch")
    receipt = sink.write(source(10), ignore)
    assert between.lost == 1
    assert (receipt.published, receipt.duplicates) == (96, 0)
    assert sum(len(changes) for _, changes in messages()) == 96


@pytest.mark.parametrize("delivery", ["deduplicated", "at-least-once"])
def test_single_acknowledgements_count_changes(delivery: str, make: Any, messages: Any) -> None:
    batches = [batch_of(40, n) for n in range(1, 6)]
    receipt = make(delivery=delivery, batch={"max_size": 7}).write(batches, ignore)
    assert (receipt.published, receipt.duplicates) == (200, 0)
    found = [change["event_id"] for _, changes in messages() for change in changes]
    assert found == ids_of(*batches)
    if delivery == "deduplicated":
        again = make(delivery=delivery, batch={"max_size": 7}, window=1).write(batches, ignore)
        assert (again.published, again.duplicates) == (0, 200)


def test_messages_wait_for_more_while_the_server_is_busy() -> None:
    """Each batch costs the server its time, whatever is in it."""
    settings = JetStreamSettings(url="nats://h", messages="batch")
    template = parse_template(settings.subject)
    messages = encoded(batch_of(500), settings.subject, messages="batch")
    size = int(messages.sizes.sum())
    atomic = Atomic(
        Tally(),
        Flow(settings.pressure, settings.breaker),
        stream="CDC",
        template=template,
        limits=FlightLimits(fill=3 * size),
    )
    assert not atomic._is_ready
    atomic.add(messages)
    assert atomic._is_ready  # the server has nothing to do
    atomic._flight.append(FlightBatch(1, [messages]))
    atomic._queue.take(1000, 1 << 30)
    atomic.add(messages)
    assert not atomic._is_ready
    atomic.add(messages)
    atomic.add(messages)
    assert atomic._is_ready  # there is enough of it
