"""A task that reads the source by itself, over a real page server: partitions join, end and leave
while the epoch is open, and what is stored comes back as bookmarks."""

import pickle
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from penstock.leases.memory import MemoryStore
from penstock.microbatch.assignments import Assignments
from penstock.microbatch.epochs import AssignedEpochs, Lengths
from penstock.microbatch.follower import Follower
from penstock.microbatch.ticket import Request, Ticket
from penstock.model.errors import PositionLost
from penstock.model.position import Bookmark, PartitionId
from penstock.reading.gaps import GapLog
from penstock.reading.positions import Positions
from penstock.reading.roster import Roster
from tests.feeds.staged import StagedFeed, StagedSettings
from tests.microbatch.opened import Opened
from tests.reading.made import P0, options_of, place, positions_of
from tests.waiting import until

P1 = PartitionId("p1")


class World:
    """A reader process for a polled feed, and tasks that store what they read."""

    def __init__(self, feed: StagedFeed, positions: Positions | None = None) -> None:
        self.feed = feed
        self.positions = positions or positions_of()
        self.gaps = GapLog(self.positions)
        self.assignments = Assignments(1 << 20)
        roster, lengths = Roster(feed), Lengths(options_of(epoch=600.0))
        self.epochs = AssignedEpochs(
            self.assignments, roster, self.positions, lengths, gaps=self.gaps, clock=lambda: 0.0
        )
        if not self.positions.load():
            self.positions.begin(feed.begin())
        self.epochs.begin(self.positions.load())
        self.reading = Opened(self.epochs)
        self.over = self.reading.over
        self.got: list[str] = []

    def ticket(self, group: int = 0, groups: int = 1) -> Ticket:
        return Ticket(
            address=self.reading.address,
            key=self.reading.key,
            request=Request(group=group, groups=groups, seconds=600.0, most=600.0),
            feed=pickle.dumps(self.feed),
            buffer=1 << 20,
        )

    def task(self, count: int, group: int = 0, groups: int = 1) -> None:
        """Reads and stores until there are `count` changes in all, then waits for the end."""
        client = Follower(self.ticket(group, groups))
        decoder = self.feed.decoder("json")
        try:
            for page in client.pages():
                if len(self.got) >= count:
                    continue  # as if it was never written
                batches = list(decoder.decode(page))
                client.handed_on(page, batches)
                self.got += [e for batch in batches for e in batch.column("event_id").to_pylist()]
                client.stored({page.partition: page.last})
                if len(self.got) >= count:
                    self.over.set()
            client.finish()
        finally:
            client.close()


@contextmanager
def world(settings: dict[str, Any], positions: Positions | None = None) -> Iterator[World]:
    given = {"changes": 100, "page": 10, "unit": 1, "polled": True, **settings}
    made = World(StagedFeed(StagedSettings.model_validate(given)), positions)
    try:
        yield made
    finally:
        made.over.set()
        made.reading.stop(5.0)


def events(partition: str, count: int = 100) -> list[str]:
    return [f"memory:{place(n, partition)}" for n in range(count)]


@pytest.mark.slow
def test_a_task_reads_all_partitions_of_its_group_in_order() -> None:
    with world({"partitions": 30}) as made:
        made.task(3_000)
        assert sorted(made.got) == sorted(e for n in range(30) for e in events(f"p{n}"))
        for n in range(30):
            assert [e for e in made.got if e.startswith(f"memory:p{n}-")] == events(f"p{n}")
        made.epochs.save()
        assert all(each.place == place(99, name) for name, each in made.epochs.durable.items())
        assert made.positions.load() == made.epochs.durable


def test_what_tasks_count_is_summed_over_tasks_and_epochs() -> None:
    with world({"partitions": 4}) as made:
        for number in (1, 2):
            tasks = [
                threading.Thread(target=made.task, args=(200 * number, group, 2))
                for group in range(2)
            ]
            for task in tasks:
                task.start()
            for task in tasks:
                task.join(60)
            made.over.clear()
            made.epochs.plan(number + 1)
        assert len(made.got) == len(set(made.got)) == 400
        counts = made.assignments.counts
        assert 400 <= counts["events"] == counts["pages"] * 10 == made.assignments.drawn


def test_partitions_are_spread_evenly_and_keep_their_task() -> None:
    assignments = Assignments(1 << 20)
    names = [PartitionId(f"shard-{n}") for n in range(8)]
    for name in names[:6]:
        assignments.open(name, Bookmark())
    groups = [set(assignments.of(group, 4)) for group in range(4)]
    assert sorted(map(len, groups)) == [1, 1, 2, 2]
    assert set().union(*groups) == set(names[:6])
    gone = next(iter(groups[3]))
    assignments.close(gone)
    for name in names[6:]:
        assignments.open(name, Bookmark())
    later = [set(assignments.of(group, 4)) for group in range(4)]
    assert sorted(map(len, later)) == [1, 2, 2, 2]
    assert all(before - {gone} <= after for before, after in zip(groups, later, strict=True))
    assert [len(assignments.of(group, 2)) for group in range(2)] == [4, 3]


@pytest.mark.parametrize("settings", [{"generations": 3}, {"partitions": 4, "chained": True}])
def test_children_join_while_the_epoch_is_open(settings: dict[str, Any]) -> None:
    with world(settings) as made:
        total = 100 * len(made.feed.lineage)
        made.task(total)
        assert len(made.got) == len(set(made.got)) == total
        first = {name: made.got.index(events(name)[0]) for name in made.feed.lineage}
        last = {name: made.got.index(events(name)[-1]) for name in made.feed.lineage}
        for each in made.feed.lineage.values():
            assert all(last[parent] < first[each.partition] for parent in each.parents)
            if made.feed.ends(each.partition) and each.parents:
                assert made.epochs.durable[each.partition].ended


@pytest.mark.slow
def test_the_status_of_partitions_comes_from_the_task_that_reads_them() -> None:
    with world({"partitions": 2}) as made:
        rows = made.assignments.rows
        assert not any("reconnects" in row for row in rows().values())
        task = threading.Thread(target=made.task, args=(201,))  # one more than there are: it waits
        task.start()
        until(lambda: all("reconnects" in row for row in rows().values()))
        assert {row["connected"] for row in rows().values()} == {True}
        made.over.set()
        task.join(60)


def test_the_next_epoch_goes_on_after_what_was_reported() -> None:
    store = MemoryStore()
    with world({"partitions": 5}, positions_of(store)) as made:
        made.task(200)
        made.epochs.save()
        before = list(made.got)
    with world({"partitions": 5}, positions_of(store)) as made:
        made.task(500 - len(before))
        assert sorted(before + made.got) == sorted(e for n in range(5) for e in events(f"p{n}"))


@pytest.mark.slow
def test_a_gap_that_a_task_finds_is_recorded_before_it_is_obeyed() -> None:
    given = {"trimmed": 40, "on_gap": "continue"}
    with world(given) as made:
        made.task(60)
        assert made.got == events("p0")[40:]
        (gap,) = made.gaps.rows()["p0"]["gaps"]
        assert (gap["cause"], gap["policy"], gap["to"]) == ("trimmed", "continue", "40")


@pytest.mark.slow
def test_a_gap_that_is_not_to_be_passed_ends_the_task() -> None:
    with world({"trimmed": 40}) as made:
        with pytest.raises(PositionLost, match="begins at change 40"):
            made.task(60)
        (gap,) = made.gaps.rows()["p0"]["gaps"]
        assert gap["policy"] == "fail"


@pytest.mark.slow
def test_a_task_whose_partitions_are_all_lost_leaves_those_of_other_tasks_alone() -> None:
    with world({"trimmed": 40, "partitions": 2}) as made:
        client = Follower(made.ticket(0, 2))
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(list(client.pages())))
        thread.start()
        try:
            until(lambda: any(row.get("last_error") for row in made.assignments.rows().values()))
            made.over.set()
            thread.join(30)
            assert found == [[]]  # it raised nothing
            client.finish()
        finally:
            client.close()
        assert made.gaps.rows()["p0"]["gaps"][0]["policy"] == "fail"


def test_a_gap_that_is_recorded_after_the_end_of_the_epoch_is_no_unknown_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with world({"trimmed": 40, "on_gap": "continue"}) as made:
        record, ended = made.gaps.lost, threading.Event()

        def late(*given: Any, **more: Any) -> None:
            made.over.set()
            assert ended.wait(30)
            record(*given, **more)

        monkeypatch.setattr(made.gaps, "lost", late)
        client = Follower(made.ticket())
        try:
            assert list(client.pages()) == []
            ended.set()
            client.finish()
        finally:
            client.close()
        assert made.gaps.rows()["p0"]["gaps"]
        monkeypatch.undo()
        made.over.clear()
        made.epochs.plan(2)
        made.task(60)  # the next task has the connection to itself
        assert made.got == events("p0")[40:]


def test_a_task_that_fails_in_mid_epoch_leaves_no_thread_and_no_conversation() -> None:
    with world({}) as made:
        others = set(threading.enumerate())
        expected = {"reader-0", "(_listen)", "(_serve)", "(_answer)"}

        def started() -> set[str]:
            # Clients and servers of other tests may start threads of theirs, too.
            names = {thread.name for thread in set(threading.enumerate()) - others}
            return {name.rpartition(" ")[2] for name in names} & expected

        client = Follower(made.ticket())
        next(client.pages())
        assert started() == expected
        client.close()
        until(lambda: not started(), problem=threading.enumerate)


def test_late_reports_take_nothing_back() -> None:
    with world({}) as made:
        made.epochs.stored({P0: Bookmark(place(50), {})})
        made.epochs.stored({P0: Bookmark(place(20), {})})
        assert made.epochs.durable[P0].place == place(50)
