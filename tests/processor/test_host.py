"""One host and several, driven by hand on a clock that the test moves."""

import json
from typing import Any

import pytest

from penstock.feeds import Gap, Holder
from penstock.leases import replace
from penstock.leases.gaps import Gaps
from penstock.leases.memory import MemoryStore
from penstock.model.errors import LeaseLost, Malformed, SettingsError, Unavailable
from penstock.model.position import START, PartitionId
from penstock.processor.observer import Changes, CloseReason, PartitionContext
from penstock.processor.partition import Abandoned
from tests.feeds.staged import StagedFeed
from tests.processor.world import World, memory
from tests.reading.made import FaultyStore


def place(row: Any) -> str:
    return str(json.loads(row.continuation)["place"])


def test_one_open_then_every_change_in_order_then_one_close() -> None:
    world = World()
    host = world.host("a", memory(partitions=3))
    world.pass_time(5, host)
    world.leave(host)
    for name in ("p0", "p1", "p2"):
        assert world.calls(name) == ["open", 10, 10, 10, "SHUTDOWN"]
        assert world.numbers[name] == list(range(30))
    for row in world.rows().values():
        assert row.owner == "" and place(row).endswith(":9")
    assert not world.errors


def test_a_stop_in_order_repeats_nothing() -> None:
    world = World()
    feed = memory(partitions=2)
    first = world.host("a", feed, checkpoint={"interval": 1000, "event_count": 1000})
    first.node.tick()
    for _ in range(7):  # some batches
        first.node.take_turn(first.node.turns.next(), 0.0)
        first.node.tick()
    world.leave(first)
    done = {name: list(numbers) for name, numbers in world.numbers.items()}
    assert any(done.values())
    second = world.host("b", memory(partitions=2))
    world.pass_time(5, second)
    assert world.numbers == {name: list(range(30)) for name in ("p0", "p1")}


@pytest.mark.slow
def test_a_host_that_leaves_is_replaced_at_once_and_one_that_dies_after_its_term() -> None:
    world = World()
    a, b, c = (world.host(name, memory(partitions=6)) for name in "abc")
    world.pass_time(120, a, b, c)
    assert sorted(map(len, (each.partitions for each in (a, b, c)))) == [2, 2, 2]
    world.leave(a)
    world.pass_time(14, b, c)
    assert len(b.partitions) + len(c.partitions) == 6
    dead = set(b.partitions)  # b is not driven any more: it was killed
    world.pass_time(50, c)
    assert dead.isdisjoint(c.partitions)
    world.pass_time(30, c)
    assert len(c.partitions) == 6


def test_the_users_properties_are_copied_to_children() -> None:
    world = World()
    host = world.host("a", memory(generations=1))
    host.node.take_turn(host.node.turns.next(), 0.0)  # begins, and takes nothing
    row = world.rows()["p0"]
    world.store.put(replace(row, properties={"region": "north"}))
    again = world.host("a", memory(changes=5, generations=1), poll=1)
    world.pass_time(30, again)
    world.leave(again)
    assert world.rows()["p0.0"].properties["region"] == "north"


def test_an_observer_error_closes_it_and_the_same_batch_comes_again() -> None:
    world = World()
    failing = [3]

    def fail(changes: Changes, context: PartitionContext) -> None:
        if changes.first.endswith("1:0") and failing[0]:
            failing[0] -= 1
            raise RuntimeError("not now")

    world.fail = fail
    host = world.host("a")
    world.pass_time(30, host)
    once = ["OBSERVER_ERROR", "open", 10]
    assert world.calls("p0") == ["open", 10, 10, *once, *once, *once, 10]
    assert world.numbers["p0"] == list(range(30))
    assert world.errors == ["RuntimeError: not now"] * 3


def test_tries_are_counted_over_all_hosts_and_then_the_processor_stops() -> None:
    world = World()

    def fail(changes: Changes, context: PartitionContext) -> None:
        raise RuntimeError("never")

    world.fail = fail
    for name in "ab":
        host = world.host(name, retries=2)
        world.pass_time(0.4, host, step=0.1)  # one try: the next comes after half a second
        world.leave(host)
        assert host._error is None
    host = world.host("c", retries=2)
    world.pass_time(1, host)
    assert "failed 3 times" in str(host._error) and "RuntimeError" in str(host._error)
    assert len(world.errors) == 3


def test_then_or_the_batch_is_set_aside_and_the_next_one_follows(tmp_path: Any) -> None:
    import pyarrow as pa

    world = World()

    def fail(changes: Changes, context: PartitionContext) -> None:
        if changes.first.endswith("1:0"):
            raise RuntimeError("never")

    world.fail = fail
    host = world.host("a", retries=1, exhausted="dead-letter", dead_letters=tmp_path)
    world.pass_time(30, host)
    assert world.numbers["p0"] == [*range(10), *range(20, 30)]
    (file,) = tmp_path.iterdir()
    with pa.ipc.open_stream(file.read_bytes()) as stream:
        table = stream.read_all()
    assert table.num_rows == 10 and table.schema.metadata[b"error"] == b"RuntimeError"


def test_a_batch_that_cannot_be_decoded_is_set_aside_where_that_stops_processing(
    tmp_path: Any,
) -> None:
    world = World()
    given = {"unreadable": "stop", "exhausted": "dead-letter", "dead_letters": tmp_path}
    host = world.host("a", retries=1, **given)
    work = host.node._work

    def read(page: Any) -> Any:
        if str(page.first).endswith("1:0"):
            raise Malformed("the change 10 cannot be read")
        return work.read(page)

    class Decoder:
        def decode(self, page: Any) -> Any:
            raise Malformed("the change 10 cannot be read")

    broken = work._replace(read=read, decoder=Decoder())  # type: ignore[arg-type]
    host.node._work = broken
    world.pass_time(30, host)
    assert world.numbers["p0"] == [*range(10), *range(20, 30)]
    assert len(list(tmp_path.iterdir())) == 1


def test_an_observer_whose_close_fails_after_an_error_has_nothing_saved() -> None:
    world, rows = World(), list[str]()

    def fail(changes: Changes, context: PartitionContext) -> None:
        if changes.first.endswith("2:0"):
            raise ValueError("batch 3")

    def close(context: PartitionContext, reason: CloseReason) -> None:
        rows.append(str(json.loads(world.rows()["p0"].continuation)["place"]))
        if len(rows) == 1:
            raise ValueError("what was buffered could not be written")

    world.fail, world.on_close = fail, close
    host = world.host("a", checkpoint={"interval": 3600, "event_count": 10**6})
    world.pass_time(5, host)
    assert rows[:2] == ["None", "None"], "after the first close nothing was saved"
    assert world.numbers["p0"][:40] == [*range(20), *range(20)], "all of it comes again"
    assert place(world.rows()["p0"]).endswith("1:9"), "this time close went well"


def test_explicit_checkpoints_are_the_observers_alone() -> None:
    world = World()
    host = world.host("a", checkpoint="explicit")

    def fail(changes: Changes, context: PartitionContext) -> None:
        if changes.first.endswith("1:0"):
            context.checkpoint()

    world.fail = fail
    world.pass_time(20, host)
    world.leave(host)
    assert place(world.rows()["p0"]).endswith("1:9")
    again = world.host("b", checkpoint="explicit")
    world.pass_time(20, again)
    assert world.numbers["p0"] == [*range(30), *range(20, 30)]


def test_an_ended_partition_whose_end_is_not_checkpointed_comes_again() -> None:
    world = World()
    host = world.host("a", memory(generations=1), checkpoint="explicit")
    world.pass_time(15, host)
    assert "p0.0" not in world.rows() and "has ended" in world.errors[0]

    def checkpoint(context: PartitionContext, reason: CloseReason) -> None:
        context.checkpoint()

    world.on_close = checkpoint
    world.pass_time(40, host)
    assert world.numbers["p0.0"] == list(range(30))


@pytest.mark.parametrize(
    ("policy", "saves"), [("batch", 30), ({"event_count": 50, "interval": 1000}, 6)]
)
def test_checkpoints_come_by_batch_or_by_count(policy: Any, saves: int) -> None:
    store = FaultyStore()
    world = World(store)
    host = world.host("a", memory(changes=300), checkpoint=policy)
    host.node.tick()
    host.node.take_turn(host.node.turns.next(), 0.0)
    host.node.take_turn(host.node.turns.next(), 0.0)
    host.node.tick()
    before = store.calls
    while len(world.numbers.get("p0", ())) < 300:
        host.node.take_turn(host.node.turns.next(), 0.0)
    assert 0 <= store.calls - before - saves <= 4


def test_checkpoints_come_by_time() -> None:
    world = World()
    host = world.host("a", memory(), checkpoint={"event_count": 10_000, "interval": "20s"}, poll=1)
    world.pass_time(3, host)
    assert world.numbers["p0"] == list(range(30))
    assert place(world.rows()["p0"]) == "None"
    world.pass_time(20, host)
    assert place(world.rows()["p0"]).endswith("2:9")


def test_lost_history_is_recorded_and_told_and_closes_the_observer() -> None:
    world = World()
    world.pass_time(3, first := world.host("a", memory(changes=5)))
    world.leave(first)
    world.log.clear()
    host = world.host("a", memory(trimmed=20))
    world.pass_time(100, host)
    assert world.calls("p0") == ["open", "GONE"]
    assert len(world.errors) == 1 and "p0 begins at change 20" in world.errors[0]
    assert host.partitions == ["p0"]  # every other host would find the same
    assert place(world.rows()["p0"]).endswith("0:4")
    gaps = Gaps(world.store, "test").rows()["memory/p0"]
    assert gaps["stale"] and gaps["counts"] == {"trimmed": 1}


def test_after_lost_history_it_goes_on_if_it_is_told_to() -> None:
    world = World()
    host = world.host("a", memory(trimmed=20, on_gap="continue"))
    world.pass_time(10, host)
    assert world.numbers["p0"] == list(range(20, 30))
    assert world.calls("p0")[0] == "open" and len(world.errors) == 1
    assert Gaps(world.store, "test").rows()["memory/p0"]["counts"] == {"trimmed": 1}


def test_a_read_that_hangs_gives_its_lease_up() -> None:
    world = World()
    a, b = world.host("a", memory(), read_timeout=100), world.host("b", memory())
    world.pass_time(3, a)
    part = a.node.owned["p0"]  # type: ignore[index]
    part.reading_since = world.clock.now
    world.clock.now += 50
    for _ in range(8):
        world.clock.now += 10
        a.node.tick()
    assert a.partitions == []
    assert "UNKNOWN" not in world.calls("p0"), "no observer is called where leases are renewed"
    world.pass_time(14, b)
    assert b.partitions == [], "it was not closed yet"
    world.drive(a)
    assert world.calls("p0")[-1] == "UNKNOWN"
    world.pass_time(14, b)
    assert b.partitions == ["p0"]
    assert part.turn(0.0) is None


@pytest.mark.slow
def test_of_two_hosts_with_one_name_one_processes_and_the_other_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    twins = [world.host("a", memory(partitions=3)) for _ in range(2)]
    for changes in range(30, 200, 10):
        for each in twins:
            each.feed.settings = memory(partitions=3, changes=changes).settings  # type: ignore[attr-defined]
        world.pass_time(6, *twins)
    assert [len(each.partitions) for each in twins] == [3, 0]
    assert world.numbers == {f"p{n}": list(range(190)) for n in range(3)}
    assert "3 leases are of another process with the name of this host, a" in caplog.text
    world.pass_time(60 + 2 * 13, twins[1])  # the first is frozen
    assert len(twins[1].partitions) == 3
    world.pass_time(20, *twins)
    assert [len(each.partitions) for each in twins] == [0, 3]
    assert {"LEASE_LOST"} == {what for _, _, what in world.log if isinstance(what, str)} - {"open"}


def test_a_wrong_beginning_ends_the_processor() -> None:
    world = World()
    host = world.host("a", memory())

    def begin(at: Any = None) -> Any:
        raise SettingsError("no such place")

    host.feed.begin = begin  # type: ignore[method-assign]
    world.pass_time(1, host)
    assert "no such place" in str(host._error)


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"renew": 40}, "expire must be at least twice"),
        ({"renew": "often"}, "'renew'"),
        ({"acquired": 1}, "'acquired'.*acquire"),
        ({"min_partitions": 3, "max_partitions": 2}, "min_partitions is more"),
        ({"threads": 0}, "'threads'"),
        ({"exhausted": "dead-letter"}, "dead_letters"),
    ],
)
def test_wrong_settings_are_named(keywords: dict[str, Any], text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        World().host("a", **keywords)


def test_what_was_given_back_for_a_host_that_does_not_come_is_taken_by_another() -> None:
    world = World()
    a, b = world.host("a", memory(partitions=2)), world.host("b", memory(partitions=2))
    world.pass_time(20, a)
    world.drive(b)  # begins
    world.pass_time(1, b)  # asks, and is killed
    assert [row.properties.get("asked_by") for row in world.rows().values()].count("b") == 1
    world.pass_time(20, a)
    assert len(a.partitions) == 1
    world.pass_time(30, a)
    assert len(a.partitions) == 2


def test_a_dead_hosts_leases_expire_after_the_term_however_rarely_others_look() -> None:
    world = World()
    intervals = {"renew": 2, "acquire": 25, "expire": 60}
    world.pass_time(5, world.host("a", memory(), **intervals))  # and it was killed
    b = world.host("b", memory(), **intervals)
    world.pass_time(60 + 2 * 25, b)
    assert b.partitions == ["p0"]


@pytest.mark.parametrize("close_fails", [False, True])
def test_a_stop_while_the_store_is_away_repeats_nothing(close_fails: bool) -> None:
    store = FaultyStore()
    world = World(store)
    host = world.host("a", memory(), checkpoint={"interval": 1000, "event_count": 1000})
    world.pass_time(3, host)

    def close(context: PartitionContext, reason: CloseReason) -> None:
        if close_fails:
            raise RuntimeError("not closed")

    world.on_close = close
    store.away = True
    host.node.leave()
    world.drive(host)
    assert host.partitions == ([] if close_fails else ["p0"])
    store.away = False
    world.pass_time(2, host)
    assert host.partitions == [] and world.calls("p0").count("SHUTDOWN") == 1
    assert place(world.rows()["p0"]).endswith("None" if close_fails else "2:9")


def test_a_read_that_returns_after_it_was_given_up_delivers_nothing_and_disconnects() -> None:
    world = World()
    host = world.host("a", memory(), read_timeout=100)
    host.node._on_hung = lambda: world.errors.append("hung")
    world.pass_time(3, host)
    part = host.node.owned["p0"]  # type: ignore[index]
    step = part.reader.step

    def hang(timeout: float, **keywords: Any) -> Any:
        world.clock.now += 101
        host.node.tick()  # the thread that ticks gives it up, and another one closes it
        for job in list(iter(host.node.turns.next, None)):
            if isinstance(job, Abandoned):
                host.node.take_turn(job, 0.0)
            else:
                host.node.turns.done(job, 0.0)
        assert world.calls("p0")[-1] == "UNKNOWN"
        return step(timeout, **keywords)

    part.reader.step = hang  # type: ignore[method-assign]
    calls = len(world.calls("p0"))
    assert part.turn(0.0) == 0.0 and part.reader.is_connected
    assert not host.node.owned and world.errors == ["hung"]
    part.reader.step = step  # type: ignore[method-assign]
    assert host.node.turns.next() is part
    assert not host.node.take_turn(part, 0.0)  # the thread that was one too many ends
    assert not part.reader.is_connected
    assert len(world.calls("p0")) == calls + 1
    assert not part.abandon()  # no read hangs


def test_failures_to_open_are_forgotten_when_it_opens() -> None:
    world = World()
    for name in "ab":
        host = world.host(name, memory(), retries=1)
        make, fails = host.node._work.observer, [True]

        def observer(make: Any = make, fails: list[bool] = fails) -> Any:
            if fails:
                fails.clear()
                raise OSError("no disk")
            return make()

        host.node._work = host.node._work._replace(observer=observer)
        world.pass_time(20, host)
        world.leave(host)
        assert host._error is None
    assert world.errors == ["OSError: no disk"] * 2
    assert world.calls("p0") == ["open", 10, 10, 10, "SHUTDOWN", "open", "SHUTDOWN"]


def test_a_lease_that_a_checkpoint_finds_lost_is_no_error_of_the_observer(tmp_path: Any) -> None:
    world = World()
    a, b = (
        world.host(name, memory(), retries=0, exhausted="dead-letter", dead_letters=tmp_path)
        for name in "ab"
    )

    def freeze(changes: Changes, context: PartitionContext) -> None:
        if context.host == "a":
            world.pass_time(120, b)  # a hangs in its observer, and renews nothing
            before = world.rows()["p0"]
            try:
                context.checkpoint()
            finally:
                assert world.rows()["p0"] == before

    world.fail = freeze
    world.pass_time(3, a)
    world.pass_time(3, a, b)
    assert [what for host, _, what in world.log if host == "a"] == ["open", 10, "LEASE_LOST"]
    assert b.partitions == ["p0"] and not a.node.owned
    assert not world.errors and not list(tmp_path.iterdir()) and a._error is None
    assert place(world.rows()["p0"]).endswith("2:9")


def test_a_gap_that_is_found_after_the_lease_was_lost_is_not_recorded() -> None:
    world = World()
    frozen, other = world.host("a", memory()), world.host("b", memory())
    world.pass_time(3, frozen)
    world.pass_time(120, other)  # the first hangs
    assert other.partitions == ["p0"]
    gap = Gap(cause="trimmed", after="", detail="test", policy="continue")
    with pytest.raises(LeaseLost):
        frozen.gaps.lost(PartitionId("p0"), gap, START)
    assert Gaps(world.store, "test").rows() == {}


class Contended(StagedFeed):
    """A feed whose partitions have one reader, which another host may have; its server is away
    while `is_away`."""

    is_away = False

    def holders(self) -> list[Holder]:
        return [Holder(partition=PartitionId("p0"), reader="17", text="another")]

    def evict(self, holder: Holder) -> None:
        if self.is_away:
            raise Unavailable("the server is away")
        self.evicted.append(holder.reader)

    evicted: list[str]


def test_an_eviction_that_fails_is_tried_again() -> None:
    world = World()
    feed = Contended(memory().settings)
    feed.evicted, feed.is_away = [], True
    host = world.host("a", feed)
    world.pass_time(3, host)
    host.node._work.leases.predecessors[PartitionId("p0")] = "17"
    host.gaps.verify(PartitionId("p0"))
    assert feed.evicted == []
    feed.is_away = False
    for _ in range(2):
        host.gaps.verify(PartitionId("p0"))
    assert feed.evicted == ["17"]


def test_a_checkpoint_never_goes_back() -> None:
    world = World()
    host = world.host("a", memory(changes=10), poll=1)

    def fail(changes: Changes, context: PartitionContext) -> None:
        context.checkpoint()
        raise RuntimeError("after the checkpoint")

    world.fail = fail
    world.pass_time(10, host)
    world.leave(host)
    assert world.calls("p0")[:3] == ["open", 10, "OBSERVER_ERROR"] and len(world.errors) == 1
    assert place(world.rows()["p0"]).endswith("0:9")


def test_a_position_that_cannot_be_read_keeps_no_host_from_taking_the_others() -> None:
    world = World()
    world.pass_time(3, first := world.host("a", memory(partitions=3)))
    world.leave(first)
    row = world.rows()["p1"]
    world.store.put(replace(row, continuation="?"))
    again = world.host("b", memory(partitions=3))
    world.pass_time(20, again)
    assert sorted(again.partitions) == ["p0", "p2"]
    assert "'test/memory/p1' can't be read" in again.positions.unreadable
    world.store.put(replace(world.rows()["p1"], continuation=row.continuation))
    world.pass_time(20, again)
    assert (len(again.partitions), again.positions.unreadable) == (3, "")


@pytest.mark.parametrize("error", [Unavailable("away"), SettingsError("403 for a while")])
@pytest.mark.parametrize("checkpoint", ["batch", "explicit"])
def test_a_store_that_refuses_a_checkpoint_delays_it_and_ends_nothing(
    error: Exception, checkpoint: str
) -> None:
    class Refusing(MemoryStore):
        refuses = False

        def put_all(self, leases: Any) -> Any:
            if self.refuses:
                raise error
            return super().put_all(leases)

    world = World(store := Refusing())
    if checkpoint == "explicit":
        world.fail = lambda _changes, context: context.checkpoint()
    host = world.host("a", memory(changes=0), checkpoint=checkpoint, retries=0)
    world.pass_time(3, host)
    store.refuses = True
    host.feed.settings = memory().settings  # type: ignore[attr-defined]
    world.pass_time(10, host)
    store.refuses = False
    world.pass_time(60, host)
    assert host._error is None
    assert place(world.rows()["p0"]).endswith("2:9")
