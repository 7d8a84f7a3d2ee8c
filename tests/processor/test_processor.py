"""The Processor with its threads, on the real clock."""

import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from penstock import Changes, CloseReason, Observer, PartitionContext, Processor, Rejected
from penstock.leases.memory import MemoryStore
from penstock.model.errors import LeaseLost, SettingsError, Unavailable
from penstock.process.processes import StopRequest
from tests.feeds.staged import StagedFeed
from tests.processor.world import memory
from tests.waiting import until

FAST = {"renew": 0.2, "acquire": 0.1, "expire": 1.0, "poll": 0.05}


class Counting(Observer):
    """Notes what it is called with, and that calls of a partition do not overlap."""

    lock = threading.Lock()
    seen: dict[str, list[str]]
    inside: set[str]

    @classmethod
    def fresh(cls) -> type["Counting"]:
        return type("Fresh", (cls,), {"seen": {}, "inside": set()})

    def process(self, changes: Changes, context: PartitionContext) -> None:
        name = context.partition
        with self.lock:
            assert name not in self.inside
            self.inside.add(name)
        self.seen.setdefault(name, []).extend(
            change["meta"]["sequence_number"] for change in changes
        )
        with self.lock:
            self.inside.remove(name)


def start(processor: Processor) -> threading.Thread:
    thread = threading.Thread(target=processor.run)
    thread.start()
    return thread


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_run_in_order(number: int) -> None:
    store, reasons = MemoryStore(), list[CloseReason]()

    class Closing(Counting.fresh()):  # type: ignore[misc]
        def close(self, context: PartitionContext, reason: CloseReason) -> None:
            reasons.append(reason)

    processor = Processor(memory(), leases=store, name="test", observer=Closing, **FAST)
    before = signal.getsignal(number)

    def kill() -> None:
        until(lambda: Closing.seen)  # it is open
        os.kill(os.getpid(), number)

    threading.Thread(target=kill).start()
    processor.run()
    assert signal.getsignal(number) is before
    assert reasons == [CloseReason.SHUTDOWN]
    assert [row.owner for row in store.list("test/")] == [""]


def test_leaving_a_with_stops_the_run_of_another_thread() -> None:
    observer = Counting.fresh()
    with Processor(memory(), leases=MemoryStore(), name="t", observer=observer, **FAST) as made:
        thread = start(made)
        until(lambda: observer.seen)
    thread.join(30)
    assert not thread.is_alive()


def test_run_raises_what_the_operator_must_act_on() -> None:
    class Failing(Observer):
        def process(self, changes: Changes, context: PartitionContext) -> None:
            raise ValueError("never")

    processor = Processor(
        memory(), leases=MemoryStore(), name="t", observer=Failing, retries=0, **FAST
    )
    with pytest.raises(Rejected, match="ValueError") as caught:
        processor.run()
    assert isinstance(caught.value.__cause__, ValueError)


def test_the_batch_and_the_records_are_of_the_same_changes() -> None:
    found: list[Any] = []

    class Both(Observer):
        def process(self, changes: Changes, context: PartitionContext) -> None:
            records = [each["meta"]["event"]["id"] for each in changes]
            found.append((records, changes.batch.column("event_id").to_pylist(), len(changes)))

    with Processor(memory(), leases=MemoryStore(), name="t", observer=Both, **FAST) as made:
        thread = start(made)
        until(lambda: len(found) == 3)
    thread.join(30)
    assert all(records == ids and len(ids) == count for records, ids, count in found)


@pytest.mark.slow
def test_a_feed_is_named_with_its_settings(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/leases.db"
    observer = Counting.fresh()
    with Processor("memory", {"changes": 7}, leases=url, name="t", observer=observer) as made:
        thread = start(made)
        until(lambda: len(observer.seen.get("p0", ())) == 7)
    thread.join(30)


class Snapshotting(StagedFeed):
    """Of a feed that takes snapshots after gaps."""

    on_gap = "resnapshot"  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"kind": "memori"}, "memori.*memory"),
        ({"kind": "memory", "settings": {"chanches": 1}}, "chanches.*changes"),
        ({"kind": "memory", "name": "a/b"}, "invalid processor name"),
        ({"kind": Snapshotting(memory().settings)}, "on_gap: resnapshot"),
        ({"kind": "memory", "leases": "elsewhere:"}, "elsewhere"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        Processor(**{"leases": "memory:", "name": "t", "observer": Counting, **arguments})


def test_what_an_observer_must_not_raise_ends_the_processor() -> None:
    class Exiting(Observer):
        def process(self, changes: Changes, context: PartitionContext) -> None:
            raise SystemExit(3)

    processor = Processor(
        memory(partitions=2), leases=MemoryStore(), name="t", observer=Exiting, **FAST
    )
    with pytest.raises(SystemExit):
        processor.run()


@pytest.mark.slow
def test_a_long_call_keeps_the_connection_alive() -> None:
    feed, kept, go_on = memory(changes=10), list[str](), threading.Event()
    follow = feed.follow

    def followed(*arguments: Any, **keywords: Any) -> Any:
        following = follow(*arguments, **keywords)
        following.keep_alive = lambda: kept.append("kept") or ()  # type: ignore[func-returns-value]
        return following

    feed.follow = followed  # type: ignore[method-assign]

    class Slow(Observer):
        def process(self, changes: Changes, context: PartitionContext) -> None:
            go_on.wait(30)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.processor.host._BUSY", 0.1)
        with Processor(feed, leases=MemoryStore(), name="t", observer=Slow, **FAST) as made:
            thread = start(made)
            until(lambda: kept)
            go_on.set()
    thread.join(30)


@pytest.mark.slow
def test_a_read_that_hangs_costs_no_thread() -> None:
    feed, hangs, go_on = memory(partitions=2), threading.Event(), threading.Event()
    follow = feed.follow

    def followed(partition: Any, *arguments: Any, **keywords: Any) -> Any:
        if partition == "p0" and not hangs.is_set():
            hangs.set()
            go_on.wait(30)
        return follow(partition, *arguments, **keywords)

    feed.follow = followed  # type: ignore[method-assign]
    observer, intervals = Counting.fresh(), {**FAST, "read_timeout": 0.3, "threads": 1}
    with Processor(feed, leases=MemoryStore(), name="t", observer=observer, **intervals) as made:
        thread = start(made)
        until(lambda: hangs.is_set() and len(observer.seen.get("p1", ())) == 30)
        go_on.set()
        until(lambda: len(observer.seen.get("p0", ())) == 30)
        until(lambda: [each.is_alive() for each in made._threads].count(True) == 1)
    thread.join(30)


def test_a_slow_close_after_a_read_that_hangs_costs_no_lease() -> None:
    feed, store, go_on = memory(partitions=4), MemoryStore(), threading.Event()
    follow, closing = feed.follow, threading.Event()

    def followed(partition: Any, *arguments: Any, **keywords: Any) -> Any:
        if partition == "p0":
            go_on.wait(60)
        return follow(partition, *arguments, **keywords)

    feed.follow = followed  # type: ignore[method-assign]

    class Slow(Observer):
        def process(self, changes: Changes, context: PartitionContext) -> None:
            pass

        def close(self, context: PartitionContext, reason: CloseReason) -> None:
            if reason is CloseReason.UNKNOWN:
                closing.set()
                go_on.wait(60)

    intervals = {**FAST, "read_timeout": 0.3}
    with Processor(feed, leases=store, name="t", observer=Slow, **intervals) as made:
        thread = start(made)
        until(closing.is_set)
        revisions = {row.name: row.revision for row in store.list("t/")}
        until(lambda: all(row.revision != revisions[row.name] for row in store.list("t/")))
        assert {row.owner for row in store.list("t/")} == {made.host}
        go_on.set()
    thread.join(60)


def test_what_an_observer_does_after_a_stop_gave_up_on_it_is_not_saved() -> None:
    store, go_on, raised = MemoryStore(), threading.Event(), list[Exception]()

    class Slow(Observer):
        def process(self, changes: Changes, context: PartitionContext) -> None:
            go_on.wait(30)
            try:
                context.checkpoint()
            except LeaseLost as error:
                raised.append(error)

    made = Processor(memory(), leases=store, name="t", observer=Slow, patience=0.2, **FAST)
    thread = start(made)
    until(lambda: [part.calls.busy_since for part in made.node.owned.values()] not in ([], [None]))
    made.stop()
    thread.join(30)
    before = store.list("")
    with pytest.raises(Unavailable):
        made._store.list("")
    go_on.set()
    until(lambda: not any(each.is_alive() for each in made._threads))
    assert raised and store.list("") == before


def test_a_stop_within_a_wait_of_the_same_thread_is_safe() -> None:
    """As a signal handler sets it."""
    request = StopRequest()
    before = signal.signal(signal.SIGALRM, lambda *_: request.set())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        assert request.wait(30)
        assert request.wait(0) and request.is_set()
    finally:
        signal.signal(signal.SIGALRM, before)


class Slow(MemoryStore):
    """30 ms for each call; counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def get(self, name: str) -> Any:
        self._call("get")
        return super().get(name)

    def list(self, prefix: str) -> Any:
        self._call("list")
        return super().list(prefix)

    def put_all(self, leases: Any) -> Any:
        self._call("put_all")
        return super().put_all(leases)

    def _call(self, name: str) -> None:
        self.calls[name] += 1
        time.sleep(0.03)


@pytest.mark.slow
def test_a_thousand_partitions_begin_and_end_with_few_calls_of_a_slow_store() -> None:
    store, closed = Slow(), list[str]()

    class Noting(Observer):
        def process(self, changes: Changes, context: PartitionContext) -> None:
            pass

        def close(self, context: PartitionContext, reason: CloseReason) -> None:
            closed.append(context.partition)

    feed = memory(partitions=1000, changes=10, polled=True)
    made = Processor(feed, leases=store, name="t", observer=Noting, patience=60)
    thread = start(made)
    until(lambda: made.node.counts["events"] == 10_000)
    assert store.calls["get"] < 10, "leases that were just taken are not read again"
    store.calls.clear()
    made.stop()
    thread.join(90)
    assert len(closed) == 1000
    assert {row.owner for row in store.list("t/")} == {""}
    assert store.calls["put_all"] < 50, "leases are released together"
