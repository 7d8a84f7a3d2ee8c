"""Gathering, pulling and ordering: what happens to batches before they are messages."""

import math
import os
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from penstock.model.change import images_of
from penstock.model.errors import SettingsError
from penstock.model.position import Place
from penstock.sinks.poison.dead_letter import Letter, row_letter, row_of
from penstock.sinks.poison.faults import marked
from penstock.sinks.rows.flow import Pace
from penstock.sinks.rows.intake import Gather, Order, Prefetch
from penstock.sinks.rows.part import Part
from penstock.sinks.settings import BatchSettings
from penstock.wire.hash_partitions import routed
from tests.sinks.changes import batch_of, ids_of

LIMITS = BatchSettings(max_size=10, max_wait=1.0, max_bytes=1 << 30)


def test_nothing_is_never_due() -> None:
    assert not Gather(LIMITS).is_due(now=1e9)
    assert Gather(LIMITS).take() == []


def test_a_batch_is_due_by_size() -> None:
    gather = Gather(LIMITS)
    gather.add(batch_of(9, 1), now=0)
    assert not gather.is_due(now=0.5)
    gather.add(batch_of(1, 2), now=0.5)
    assert gather.is_due(now=0.5)


def test_a_batch_is_due_by_the_wait_of_its_first_change() -> None:
    gather = Gather(LIMITS)
    gather.add(batch_of(1, 1), now=5)
    gather.add(batch_of(1, 2), now=5.9)
    assert not gather.is_due(now=5.99)
    assert gather.is_due(now=6)
    gather.take()
    gather.add(batch_of(1, 3), now=7)
    assert not gather.is_due(now=7.9)


def test_a_batch_is_due_by_bytes() -> None:
    gather = Gather(BatchSettings(max_size=1000, max_wait=1.0, max_bytes=50_000))
    gather.add(batch_of(1, 1, after="x" * 40_000), now=0)
    assert not gather.is_due(now=0)
    gather.add(batch_of(1, 2, after="x" * 40_000), now=0)
    assert gather.is_due(now=0)


def test_images_as_text_stay_text_on_their_way_to_a_sink() -> None:
    """Lines and JSON have one type: only the schema's metadata tells them apart."""
    gather = Gather(LIMITS)
    gather.add(batch_of(4, 2, images="text"), now=0)
    assert not gather.takes(batch_of(1, 3))
    gather.add(routed(batch_of(4, 3, images="text"), 4), now=0)
    (whole,) = gather.take()
    (part,) = Order().arrange(whole.take(pa.array([3, 0, 1, 2, 7, 6, 5, 4])))
    rest = part.after({part.runs[0].origin: Place("00000000/00000002", 1)})
    assert rest is not None
    route = part.batch.schema.get_field_index("route")
    other = part.batch.set_column(route, "route", part.batch.column("route").cast(pa.int64()))
    row = whole.slice(1, 1).to_pylist()[0]
    letter = Letter.parse(row_letter(row, "text", "too-large", "e").body(1 << 20))
    for batch in (
        whole, part.batch, *(each.batch for each in part.split()), rest.batch, Part.of(other).batch,
        marked(whole, [0, 2], {}), row_of(letter),
    ):  # fmt: skip
        assert images_of(batch.schema) == "text"
        assert batch.schema.field("route").type == pa.int32()


def test_limits_are_those_of_one_message_where_changes_are_divided() -> None:
    """Sixteen hash partitions: sixteen messages are to be full, and wait no longer."""
    gather = Gather(LIMITS)
    gather.spread = 16
    gather.add(batch_of(159, 1), now=0)
    assert not gather.is_full()
    assert gather.is_due(now=1)
    gather.add(batch_of(1, 2), now=0)
    assert gather.is_full()


def test_what_is_divided_is_gathered_up_to_some_megabytes() -> None:
    gather = Gather(BatchSettings(max_size=1000, max_wait=1.0, max_bytes=1 << 20))
    gather.spread = 1000
    gather.add(batch_of(3, 1, after="x" * (1 << 20)), now=0)
    assert not gather.is_full()
    gather.add(batch_of(1, 2, after="x" * (1 << 20)), now=0)
    assert gather.is_full()
    large = Gather(BatchSettings(max_size=1000, max_wait=1.0, max_bytes=8 << 20))
    large.spread = 2
    large.add(batch_of(7, 1, after="x" * (1 << 20)), now=0)
    assert not large.is_full()


def test_what_gathered_comes_out_as_one_batch_in_order() -> None:
    gather = Gather(LIMITS)
    for n in range(1, 4):
        gather.add(batch_of(2, n), now=0)
    (one,) = gather.take()
    assert ids_of(one) == ids_of(batch_of(2, 1), batch_of(2, 2), batch_of(2, 3))
    assert gather.rows == 0


@pytest.mark.parametrize(("pace", "left"), [(Pace(), 0.95), (Pace(patience=4), 3.95)])
def test_a_first_batch_says_when_it_is_due(pace: Pace, left: float) -> None:
    gather = Gather(LIMITS)
    assert gather.due_in(now=1, pace=pace) == math.inf
    gather.add(batch_of(1, 1), now=1)
    gather.add(batch_of(1, 2), now=1.04)
    assert gather.due_in(now=1.05, pace=pace) == pytest.approx(left)
    assert gather.due_in(now=9, pace=pace) == 0


def test_batches_of_two_encodings_do_not_mix() -> None:
    gather = Gather(LIMITS)
    gather.add(batch_of(1, 1, images="json"), now=0)
    assert gather.takes(batch_of(1, 2, images="json"))
    assert not gather.takes(batch_of(1, 2, images="msgpack"))


@pytest.mark.parametrize("make", [list, iter])
def test_pulling_gives_everything_and_ends(make: Any) -> None:
    batches = [batch_of(1, n) for n in range(1, 20)]
    with Prefetch(make(batches)) as pull:
        found: list[pa.RecordBatch] = []
        while len(found) < len(batches):
            found += pull.take(10)
        assert found == batches
        with pytest.raises(StopIteration):
            pull.take(10)


def test_a_source_that_is_silent_is_not_waited_for() -> None:
    go_on = threading.Event()

    def silent() -> Iterator[pa.RecordBatch]:
        assert go_on.wait(10)
        yield batch_of(1)

    with Prefetch(silent()) as pull:
        assert pull.take(0.01) == []
        go_on.set()
        assert pull.take(None)


def test_a_readable_socket_ends_the_waiting_for_a_silent_source() -> None:
    go_on = threading.Event()
    ours, theirs = socket.socketpair()

    def silent() -> Iterator[pa.RecordBatch]:
        assert go_on.wait(10)
        yield batch_of(1)

    with ours, theirs, Prefetch(silent()) as pull:
        theirs.send(b"an answer")
        assert pull.take(None, ours.fileno()) == []
        ours.recv(100)
        go_on.set()
        assert pull.take(None, ours.fileno())


def test_nothing_stays_open_when_the_source_has_ended() -> None:
    with Prefetch(iter([batch_of(1)])) as pull:
        assert pull.take(10)
    pull._thread.join(10)
    ends = (pull._filled, pull._filling)
    os.fstat(ends[0])
    del pull
    for end in ends:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(end)


def test_what_the_source_raises_is_raised() -> None:
    def broken() -> Iterator[pa.RecordBatch]:
        yield from ()
        raise KeyError("from the source")

    with Prefetch(broken()) as pull, pytest.raises(KeyError, match="from the source"):
        pull.take(10)


@pytest.mark.slow
def test_no_more_than_a_few_are_taken_ahead_and_none_is_lost() -> None:
    taken = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        for taken in range(1, 41):
            yield batch_of(400, taken)

    with Prefetch(counted()) as pull:
        found = []
        for _ in range(40):
            deadline = time.monotonic() + 0.02
            while time.monotonic() < deadline:
                assert taken <= len(found) + 5  # four, and one in its hand
            (batch,) = pull.take(10)
            found.append(batch.column("cursor")[0].as_py())
        with pytest.raises(StopIteration):
            pull.take(10)
    assert found == [batch_of(1, number).column("cursor")[0].as_py() for number in range(1, 41)]


@pytest.mark.slow
def test_small_batches_that_are_there_are_taken_together() -> None:
    batches = [batch_of(3, number) for number in range(1, 1001)]
    waiting = threading.Event()

    def source() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == 600:  # of 664 that four lists hold
                waiting.set()
            yield batch

    with Prefetch(source()) as pull:
        assert waiting.wait(10)
        found: list[list[pa.RecordBatch]] = []
        while sum(map(len, found)) < len(batches):
            found.append(pull.take(10))
    assert ids_of(*(batch for some in found for batch in some)) == ids_of(*batches)
    assert all(sum(map(len, some)) <= 500 for some in found)
    assert len(found[0]) == 166
    assert len(found[1]) == 166


def test_the_thread_ends_when_nobody_wants_more() -> None:
    def endless() -> Iterator[pa.RecordBatch]:
        while True:
            yield batch_of(1)

    with Prefetch(endless()) as pull:
        pull.take(10)
    pull._thread.join(10)
    assert not pull._thread.is_alive()


def arranged(order: Order, *batches: pa.RecordBatch) -> list[pa.RecordBatch]:
    return [part.batch for batch in batches for part in order.arrange(batch)]


def test_a_tidy_batch_stays_as_it_is() -> None:
    batch = batch_of(10)
    assert arranged(Order(), batch) == [batch]


def test_a_large_batch_is_divided() -> None:
    batch = batch_of(2500)
    parts = arranged(Order(), batch)
    assert [len(part) for part in parts] == [1000, 1000, 500]
    assert ids_of(*parts) == ids_of(batch)


@pytest.mark.slow
def test_a_batch_of_large_changes_is_cut_smaller() -> None:
    batch = batch_of(40, after="x" * (1 << 20))
    parts = arranged(Order(), batch)
    assert max(sum(map(len, part.column("after").to_pylist())) for part in parts) <= 4 << 20
    assert ids_of(*parts) == ids_of(batch)


def test_shuffled_rows_are_sorted_and_doubled_ones_dropped() -> None:
    batch = batch_of(50, 3)
    mixed = batch.take(pa.array([*range(49, -1, -1), 7, 7, 30]))
    assert arranged(Order(), mixed) == [batch]


def joined(*batches: pa.RecordBatch) -> pa.RecordBatch:
    return pa.Table.from_batches(batches).combine_chunks().to_batches()[0]


def test_changes_of_many_origins_stay_together_as_they_came() -> None:
    parts = [
        batch_of(3, 5, backend=backend, partition=partition)
        for backend in ("one", "two")
        for partition in ("a", "b")
    ]
    whole, order = joined(*parts[::-1]), Order()
    (part,) = order.arrange(whole)
    assert part.batch == whole
    assert [tuple(run.origin) for run in part.runs] == [
        ("two", "b"), ("two", "a"), ("one", "b"), ("one", "a"),
    ]  # fmt: skip
    # Each has its own place: an earlier cursor of one is no step back of another.
    assert arranged(order, batch_of(1, 4, backend="three"))


def test_an_origin_may_come_again_later_in_a_batch() -> None:
    pages = [batch_of(2, n, partition="ab"[n % 2]) for n in range(1, 5)]
    (part,) = Order().arrange(joined(*pages))
    assert part.batch == joined(*pages)
    assert len(part.runs) == 4


def test_pages_in_the_wrong_order_are_sorted() -> None:
    pages = [batch_of(2, n, partition=name) for n, name in ((3, "a"), (7, "b"), (2, "a"))]
    (part,) = Order().arrange(joined(*pages))
    assert ids_of(part.batch) == ids_of(pages[2], pages[0], pages[1])


@pytest.mark.parametrize("commit", [4, 5])
def test_going_back_is_an_error_that_names_both_places(commit: int) -> None:
    order = Order()
    arranged(order, batch_of(3, 5))
    with pytest.raises(SettingsError) as caught:
        arranged(order, batch_of(3, commit))
    assert f"00000000/0000000{commit}:0 after 00000000/00000005:2" in str(caught.value)
