"""The planner over the memory feed: every change once, the same splits again, in order."""

import time
from typing import Any

import pytest

from penstock.feeds import Following, Gap, HistoryLost
from penstock.leases.memory import MemoryStore
from penstock.microbatch.planned import IDLE, PlannedReading
from penstock.microbatch.ticket import Split, bounded
from penstock.model.errors import PositionLost
from penstock.model.position import Bookmark, PartitionId, Place
from tests.feeds.staged import StagedFeed, StagedFollowing, StagedSettings
from tests.reading.made import P0, made, positions_of
from tests.waiting import until

Offset = dict[PartitionId, Bookmark]


def ids(feed: StagedFeed, splits: list[Split]) -> list[str]:
    decoder = feed.decoder("json")
    return [
        event
        for split in splits
        for pages, after, until in split.parts
        for page in pages
        for batch in bounded(page, decoder.decode(page), after, until)
        for event in batch.column("event_id").to_pylist()
    ]


def expected(settings: StagedSettings, partition: str = "p0") -> list[str]:
    return [
        f"memory:{partition}-{n // settings.unit:012d}:{n % settings.unit}"
        for n in range(settings.changes)
    ]


def drain(
    planner: PlannedReading,
    feed: StagedFeed,
    batches: list[tuple[Offset, Offset]],
    total: int | None = None,
) -> list[str]:
    """Runs micro-batches until one is empty, as Spark does; notes their offsets."""
    got: list[str] = []
    start: Offset = {}
    total = feed.settings.changes * feed.settings.partitions if total is None else total
    while True:
        end = planner.advance(start, patience=60.0 if len(got) < total else 0.5)
        if end == start:
            return got
        got += ids(feed, planner.splits(start, end))
        batches.append((start, dict(end)))
        start = dict(end)


@pytest.mark.parametrize(("most", "batches"), [(300, 8), (10, 24)], ids=["some pages", "a page"])
def test_every_change_is_in_exactly_one_batch_in_order(most: int, batches: int) -> None:
    """A batch is bounded, but never empty: a page always passes."""
    settings = StagedSettings(changes=2_345, page=100, unit=7)
    feed = StagedFeed(settings)
    with made(feed, max_events=most, patience=0.5) as parts:
        found: list[tuple[Offset, Offset]] = []
        assert drain(parts.planner, feed, found) == expected(settings)
    assert len(found) >= batches


@pytest.mark.parametrize("is_record", [True, False], ids=["offsets", "positions"])
def test_a_child_is_read_when_its_parents_end_and_its_beginning_are_durable(
    is_record: bool,
) -> None:
    """After a crash its parent may be trimmed, and a listing no longer says whose child it is."""
    durable: Offset = {}

    class Noting(StagedFeed):
        def follow(self, partition: PartitionId, *where: Any, **more: Any) -> StagedFollowing:
            stored = durable if positions is None else positions_of(store).load()
            parents = self.lineage[partition].parents
            assert partition in stored or not parents
            assert all(stored[each].ended for each in parents)
            return super().follow(partition, *where, **more)

    feed = Noting(StagedSettings(changes=40, page=5, generations=3))
    store = MemoryStore()
    positions = None if is_record else positions_of(store)
    got: list[str] = []
    with made(feed, positions=positions) as parts:
        while len(got) < 40 * 6:
            end = parts.planner.advance(durable, patience=60.0)
            got += ids(feed, parts.planner.splits(durable, end))
            durable.clear()
            durable.update(end)
    assert len(set(got)) == len(got)


@pytest.mark.slow
def test_a_cold_planner_builds_the_same_batches_from_other_pages() -> None:
    settings = StagedSettings(changes=500, page=40, unit=3)
    feed = StagedFeed(settings)
    batches: list[tuple[Offset, Offset]] = []
    with made(feed, max_events=90, patience=0.5) as parts:
        drain(parts.planner, feed, batches)
    other = StagedFeed(StagedSettings(changes=500, page=17, unit=3))
    for start, end in batches:
        with made(other) as parts:
            got = ids(other, parts.planner.splits(start, end))
        low = (start[P0].place if start else None) or Place("", 0)
        high = end[P0].place
        assert high is not None
        assert got == [event for event in expected(settings) if low < _place(event) <= high]
    assert len(batches) > 3


def _place(event: str) -> Place:
    return Place.parse(event.removeprefix("memory:"))


def test_a_batch_may_begin_in_the_middle_of_a_page_after_a_crash() -> None:
    settings = StagedSettings(changes=100, page=50, unit=10)
    feed = StagedFeed(settings)
    middle = {P0: Bookmark(_place(expected(settings)[24]))}
    with made(feed) as parts:
        first = ids(feed, parts.planner.splits({}, middle))
        end = parts.planner.advance(middle)
        rest = ids(feed, parts.planner.splits(middle, end))
    assert first == expected(settings)[:25]
    assert rest == expected(settings)[25 : 25 + len(rest)]
    assert rest


@pytest.mark.slow
def test_the_buffer_is_bounded_and_then_the_source_is_not_read() -> None:
    feed = StagedFeed(StagedSettings(changes=1_000_000, page=1_000))
    limit = 200_000
    with made(feed, buffer=limit) as parts:
        start: Offset = {}
        end = parts.planner.advance(start)
        most = 0
        deadline = time.monotonic() + 1.5
        while time.monotonic() < deadline:
            most = max(most, parts.row()["buffered_bytes"])
        # One read may return several pages on top of a buffer that is nearly full.
        assert limit <= most < limit + 100_000
        assert parts.planner.splits(start, end)


@pytest.mark.slow
def test_a_planned_batch_is_read_again_however_full_the_buffer_is() -> None:
    settings = StagedSettings(changes=3_000, page=100, partitions=20)
    feed = StagedFeed(settings)
    wide = {"patience": 60.0, "max_events": 10**9, "max_bytes": 10**9, "buffer": 10**9}
    with made(feed, **wide) as parts:
        until(lambda: sum(row["buffered_events"] for row in parts.reservoir.rows().values()) == 0)
        parts.planner.advance({}, patience=0.0)
        until(
            lambda: all(row["buffered_events"] == 3_000 for row in parts.reservoir.rows().values())
        )
        end = parts.planner.advance({})
    with made(feed, buffer=20_000) as parts:
        got = ids(feed, parts.planner.splits({}, end, most=4))
    assert sorted(got) == sorted(e for n in range(20) for e in expected(settings, f"p{n}"))


def test_only_what_is_saved_is_acknowledged() -> None:
    feed = StagedFeed(StagedSettings(changes=300, page=100))

    class Never(type(positions_of())):  # type: ignore[misc]
        is_open = False

        def is_due(self, changes: int) -> bool:
            return bool(super().is_due(changes)) and self.is_open

    saving = Never(MemoryStore(), "shop/default", interval=0, event_count=1, clock=time.monotonic)
    with made(feed, max_events=100, positions=saving) as parts:
        first = parts.planner.advance({})
        parts.planner.splits({}, first)
        second = parts.planner.advance(first)
        assert feed.acknowledged == {}
        saving.is_open = True
        parts.planner.advance(second, patience=0)
        assert feed.acknowledged == {P0: second[P0].place}


def test_an_idle_source_whose_mark_moves_gets_an_offset_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a job of one's own the offset is the record: what it does not have is not acknowledged."""
    monkeypatch.setattr("penstock.microbatch.planned.IDLE", 0.2)
    feed = StagedFeed(StagedSettings(changes=0))
    start = {P0: Bookmark(None, {"old": True})}
    with made(feed) as parts:
        parts.planner.advance(start, patience=0.1)
        until(lambda: parts.planner.advance(start, patience=0.1) == {P0: Bookmark(None, {})})
    assert IDLE >= 5


@pytest.mark.slow
def test_a_partition_that_is_gone_is_a_gap_and_its_children_go_on() -> None:
    stored = {P0: Bookmark(Place("p0-000000000001", 3), {})}
    given = {"changes": 20, "page": 5, "generations": 1, "unlisted": ("p0",)}
    feed = StagedFeed(StagedSettings.model_validate({**given, "on_gap": "continue"}))
    with made(feed, positions=positions_of()) as parts:
        end = parts.planner.advance(stored)
        assert end[P0].ended
        parts.planner.advance(parts.planner.advance(end))
        assert parts.reservoir.open_partitions == ["p0.0", "p0.1"]
        (gap,) = parts.gaps.rows()["p0"]["gaps"]
        assert (gap["cause"], gap["from"]) == ("partition_gone", "p0-000000000001:3")
    failing = StagedFeed(StagedSettings.model_validate(given))
    with made(failing) as parts, pytest.raises(PositionLost, match="no longer lists"):
        parts.planner.advance(stored)


@pytest.mark.slow
@pytest.mark.parametrize("start", [{P0: Bookmark(Place("p0-000000000001", 3), {})}, {}])
def test_a_planned_micro_batch_passes_a_partition_that_is_gone_since_then(start: Offset) -> None:
    """After a crash Spark asks for the planned micro-batch first."""
    end = {P0: Bookmark(Place("p0-000000000002", 3), {})}
    given = {"changes": 40, "page": 5, "generations": 1, "unlisted": ("p0",)}
    feed = StagedFeed(StagedSettings.model_validate({**given, "on_gap": "continue"}))
    with made(feed) as parts:
        assert parts.planner.splits(start, end) == []
        assert parts.gaps.rows()["p0"]["counts"] == {"partition_gone": 1}
        assert parts.planner.advance(end)[P0].ended
    failing = StagedFeed(StagedSettings.model_validate(given))
    with made(failing) as parts, pytest.raises(PositionLost, match="no longer lists"):
        parts.planner.splits(start, end)


@pytest.mark.slow
def test_a_lost_position_is_raised_to_the_trigger() -> None:
    class Gone(StagedFeed):
        def follow(self, *args: object, **more: object) -> Following:
            raise HistoryLost(Gap(cause="c", after="", detail="trimmed", policy="resnapshot"))

    with made(Gone(StagedSettings())) as parts, pytest.raises(PositionLost, match="trimmed"):
        parts.planner.advance({}, patience=60.0)


@pytest.mark.slow
def test_one_partition_that_lost_its_history_does_not_stop_the_others() -> None:
    feed = StagedFeed(StagedSettings(changes=50, page=10, partitions=3, trimmed=5))
    got: list[str] = []
    start: Offset = {}
    with made(feed, positions=positions_of()) as parts:
        while len(got) < 100:
            end = parts.planner.advance(start)
            got += ids(feed, parts.planner.splits(start, end))
            start = dict(end)
        deadline = time.monotonic() + 60
        while "p0" not in parts.gaps.rows():
            assert time.monotonic() < deadline
            parts.planner.advance(start)
        assert parts.gaps.rows()["p0"]["stale"]
    assert sorted(got) == sorted(expected(feed.settings, "p1") + expected(feed.settings, "p2"))
