"""Exactly once: the fence, reading back, lost acknowledgements, and who else writes."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock.leases import Lease
from penstock.model.errors import LeaseLost, SettingsError
from penstock.model.position import Place
from penstock.nats.api import JetStream
from penstock.nats.connection import Connection
from penstock.sinks import ignore
from penstock.sinks.jetstream import JetStreamSink
from penstock.sinks.jetstream.owners import OwnersStore
from tests.progress import Noted
from tests.servers import Nats
from tests.sinks.changes import batch_of, ids_of, interrupted, read
from tests.sinks.jetstream.raw import Raw, publishing


def test_small_batches_join_while_the_server_is_busy(sink: JetStreamSink) -> None:
    receipt = sink.write([batch_of(1, n) for n in range(1, 2001)], ignore)
    assert receipt.published == 2000
    assert receipt.numbers["batches"] < 1500


def test_a_batch_waits_for_more_no_longer_than_it_may(sink: JetStreamSink, stored: Any) -> None:
    """The iterator stops and waits until what it gave is in the stream."""
    seen: list[int] = []

    def slow() -> Iterator[pa.RecordBatch]:
        for n in range(1, 4):
            yield batch_of(3, n)
            arrived = threading.Event()
            for _ in range(200):
                if len(stored()) == 3 * n:
                    arrived.set()
                    break
            seen.append(n if arrived.is_set() else -n)

    sink.write(slow(), ignore)
    assert seen == [1, 2, 3]


def test_an_open_ended_write_says_how_far_it_is(
    sink: JetStreamSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.sinks.rows.loop._PROGRESS", 0.0)
    progress = Noted()

    def slow() -> Iterator[pa.RecordBatch]:
        yield batch_of(3, 1)
        while not progress.position:
            yield batch_of(0)

    sink.write(slow(), progress)
    assert progress.position == {"shop": Place("00000000/00000001", 2)}
    said = next(note for note in progress if "published" in note)
    assert said["latency_p50_ms"] <= said["latency_p99_ms"]


def test_a_replay_longer_than_the_duplicate_window_is_still_once(stored: Any, sink_of: Any) -> None:
    sink = sink_of(delivery="exactly-once", duplicate_window="100ms")
    sink.write([batch_of(1200, 1)], ignore)
    control = sink_of(delivery="deduplicated", duplicate_window="100ms")
    # Until the window has passed for sure: then message ids alone store a change twice.
    last = batch_of(1, 1, start=1199)
    while control.write([last], ignore).duplicates:
        pass
    receipt = sink.write([batch_of(1200, 1), batch_of(5, 2)], ignore)
    assert (receipt.published, receipt.duplicates) == (5, 1200)
    assert stored() == ids_of(batch_of(1200, 1), last, batch_of(5, 2))


@pytest.mark.parametrize("window", ["100ms", "120s"])
def test_a_zombie_that_is_behind_is_stopped(
    stored: Any, window: str, sink_of: Any, nats: Nats, stream: str
) -> None:
    """Its first message is refused by the sequence, or inside a window taken for stored already.
    What else it had in flight can only be stored as the very changes that come next; it stops."""
    zombie, owner = (
        sink_of(delivery="exactly-once", window=n, duplicate_window=window) for n in (8000, 1)
    )
    zombie.prepare()
    OwnersStore(zombie.settings).put(Lease(name="owner:shop", owner="host:7:ab"))

    def meanwhile() -> None:
        owner.write([batch_of(5, 2)], ignore)
        time.sleep(0.5 if window == "100ms" else 0)

    changes = interrupted(nats.url, stream, meanwhile, batch_of(10, 1), batch_of(10, 2))
    with pytest.raises(LeaseLost, match=r"another writer uses it.*: host:7:ab") as caught:
        zombie.write(changes, ignore)
    assert caught.value.hint
    assert stored() == ids_of(batch_of(10, 1), batch_of(10, 2))
    # Started again, it goes on from what is stored.
    receipt = zombie.write([batch_of(10, 2)], ignore)
    assert receipt.published + receipt.duplicates == 10
    assert stored() == ids_of(batch_of(10, 1), batch_of(10, 2))


@pytest.mark.parametrize("tokens", ["{collection}", "{backend}.{source_partition}.{collection}"])
def test_the_fence_holds_where_message_ids_would_let_pass(
    tokens: str, stored: Any, sink_of: Any, stream: str, nats: Nats
) -> None:
    """The zombie's next batch shares no id with what the owner stored: only its expected sequence
    (the stream's in a chain, the shard's with a subject for each partition) keeps it out."""
    subject = f"{stream}.{tokens}"
    zombie, owner = (sink_of(delivery="exactly-once", subject=subject, window=n) for n in (8000, 1))
    zombie.prepare()
    meanwhile = lambda: owner.write([batch_of(5, 2)], ignore)  # noqa: E731
    with pytest.raises(LeaseLost):
        zombie.write(
            interrupted(nats.url, stream, meanwhile, batch_of(10, 1), batch_of(10, 3)), ignore
        )
    assert stored() == ids_of(batch_of(10, 1), batch_of(5, 2))


def test_two_writers_at_once_never_store_a_change_twice_or_out_of_order(
    nats: Nats, settings_of: Any, stored: Any
) -> None:
    batches = [batch_of(37, n) for n in range(1, 60)]
    lost: list[LeaseLost] = []

    def run(window: int, size: int) -> None:
        settings = settings_of(
            nats.url, delivery="exactly-once", window=window, batch={"max_size": size}
        )
        while True:
            try:
                JetStreamSink(settings).write(iter(batches), ignore)
            except LeaseLost as error:
                lost.append(error)
            else:
                return

    threads = [threading.Thread(target=run, args=args) for args in ((8000, 500), (999, 20))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stored() == ids_of(*batches)


def test_others_in_the_stream_do_not_disturb(
    nats: Nats, stream: str, api: JetStream, sink_of: Any
) -> None:
    """Batches chain on the stream's sequence until somebody else is seen to move it."""
    api.create({"name": stream, "subjects": [f"{stream}.>"], "allow_atomic": True})
    mine = sink_of(subject=f"{stream}.mine.{{collection}}", delivery="exactly-once")
    other = sink_of(subject=f"{stream}.other.{{collection}}", delivery="exactly-once")

    def interleaved() -> Iterator[pa.RecordBatch]:
        for n in range(1, 6):
            other.write([batch_of(2, n, backend="other")], ignore)
            yield batch_of(1000, n)

    receipt = mine.write(interleaved(), ignore)
    assert receipt.published == 5000
    messages = read(nats.url, stream)
    ours = [m.event_id for m in messages if m.subject.startswith(f"{stream}.mine.")]
    assert ours == ids_of(*[batch_of(1000, n) for n in range(1, 6)])
    assert len(messages) == 5010


def test_an_answer_that_was_read_while_sending_is_taken_at_once(
    monkeypatch: Any, nats: Nats, settings_of: Any
) -> None:
    """The server's buffer was full, so sending read what was there. No poll shows it any more."""

    def reading(connection: Connection, data: Any) -> None:
        send(connection, data)
        while len(connection._arrived.messages) < answers:
            connection._wait(write=False)
            connection._read()

    with publishing(settings_of(nats.url, delivery="exactly-once"), batch_of(10)) as publisher:
        publisher._read_back()
        send, answers = Connection.send, 2  # to a chain's first message, and to its last
        monkeypatch.setattr(Connection, "send", reading)
        publisher.pump(drain=False)
        assert publisher.is_idle


def two_partitions() -> list[pa.RecordBatch]:
    return [batch_of(9, 1, partition="a"), batch_of(9, 2, partition="b")]


def test_two_partitions_in_one_shard_are_refused_with_the_remedy(sink: JetStreamSink) -> None:
    with pytest.raises(SettingsError) as caught:
        sink.write(two_partitions(), ignore)
    assert "default/a and default/b both write to" in str(caught.value)
    assert "{source_partition}" in caught.value.hint


def test_the_shard_of_another_partition_is_refused(sink: JetStreamSink) -> None:
    sink.write([batch_of(1, partition="before")], ignore)
    with pytest.raises(SettingsError, match="before and default/after"):
        sink.write([batch_of(1, partition="after")], ignore)


def test_auto_uses_message_ids_when_two_partitions_share_a_shard(stored: Any, sink_of: Any) -> None:
    told = Noted()
    sink = sink_of()
    receipt = sink.write(two_partitions(), told)
    assert receipt.published == 18
    assert receipt.numbers["delivery"] == "deduplicated"
    assert "both write to" in receipt.numbers["details"]["reason"]
    assert [each["delivery"] for each in told if "delivery" in each][-1] == "deduplicated"
    again = sink.write(two_partitions(), ignore)
    assert (again.published, again.duplicates) == (0, 18)
    assert len(stored()) == 18


def test_a_shard_with_strangers_messages_is_refused(
    stream: str, api: JetStream, sink_of: Any
) -> None:
    api.create({"name": stream, "subjects": [f"{stream}.>"], "allow_atomic": True})
    api._connection.request(f"{stream}.some.thing", b"not ours")
    with pytest.raises(SettingsError, match="is not from penstock"):
        sink_of(delivery="exactly-once").write([batch_of(1)], ignore)
    receipt = sink_of().write([batch_of(1)], ignore)
    assert receipt.numbers["delivery"] == "deduplicated"


def test_after_a_purge_the_rest_is_stored_although_ids_are_remembered(
    sink: JetStreamSink, stream: str, api: JetStream, stored: Any
) -> None:
    """The server still knows the ids and refuses the batch (10201); the fence is enough."""
    sink.write([batch_of(10, 1)], ignore)
    api._call(f"STREAM.PURGE.{stream}", {})
    receipt = sink.write([batch_of(10, 1), batch_of(10, 2)], ignore)
    assert receipt.published == 20
    assert stored() == ids_of(batch_of(10, 1), batch_of(10, 2))


def test_a_purge_in_the_middle_of_a_write_goes_on(
    sink: JetStreamSink, nats: Nats, stream: str, api: JetStream, stored: Any
) -> None:
    purge = lambda: api._call(f"STREAM.PURGE.{stream}", {})  # noqa: E731
    changes = interrupted(nats.url, stream, purge, batch_of(10, 1), batch_of(10, 2))
    assert sink.write(changes, ignore).published == 20
    assert stored() == ids_of(batch_of(10, 2))


def test_batches_that_are_switched_off_in_the_middle_are_a_settings_error(
    sink: JetStreamSink, stream: str, raw: Raw, stored: Any
) -> None:
    """A chain needs no batches; what must be an atomic batch is refused."""
    sink.write([batch_of(10, 1)], ignore)
    raw.update(stream, allow_atomic=False)
    sink.write([batch_of(10, 2)], ignore)
    assert len(stored()) == 20
    raw.api._call(f"STREAM.PURGE.{stream}", {})
    with pytest.raises(SettingsError, match="10174") as caught:
        sink.write([batch_of(10, 1)], ignore)
    assert "--allow-batch" in caught.value.hint


def test_changes_out_of_order_are_refused_before_they_are_stored(
    sink: JetStreamSink, stored: Any
) -> None:
    with pytest.raises(SettingsError, match="out of order") as caught:
        sink.write([batch_of(500, 2), batch_of(500, 1)], ignore)  # too many to be sorted together
    assert "shuffle" in caught.value.hint
    # It may be on its way, and the server tells of a batch that it is just storing.
    found = stored()
    assert found == ids_of(batch_of(500, 2))[: len(found)]
