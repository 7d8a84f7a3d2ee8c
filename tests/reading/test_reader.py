"""The one reader of a partition: stepped by hand, with a clock of the test's, without threads."""

from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from typing import Any

import pytest

from penstock.feeds import Following, Gap, GapPolicy, HistoryLost
from penstock.feeds.mongodb import MongoFeed, MongoSettings
from penstock.feeds.shared import behind_hole
from penstock.model.errors import LeaseLost, Malformed, PositionLost, Unavailable
from penstock.model.page import Page
from penstock.model.position import START, Bookmark, PartitionId
from penstock.process.backoff import delays
from penstock.reading.gaps import GapLog
from penstock.reading.passed_gaps import BLOCKED, CONFIRMED
from penstock.reading.reader import PartitionReader, Step
from penstock.testing.feeds import confirmed
from tests.feeds.staged import StagedFeed, StagedFollowing, StagedSettings
from tests.reading.made import P0, feed_of, place
from tests.waiting import Clock


class Recorder:
    """A `GapRecorder` that keeps what it is given, in order."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []  # cause, and end
        self.verified = 0
        self.is_lost = False

    def verify(self, partition: PartitionId) -> None:
        self.verified += 1
        if self.is_lost:
            raise LeaseLost("another instance has it")

    def lost(self, partition: PartitionId, gap: Gap, bookmark: Bookmark, *, to: str = "") -> None:
        self.found.append((gap.cause, to))


def reader_of(
    feed: StagedFeed, bookmark: Bookmark = START, clock: Callable[[], float] | None = None
) -> tuple[PartitionReader, Recorder]:
    recorder = Recorder()
    return PartitionReader(feed, P0, bookmark, recorder, clock=clock or Clock()), recorder


def firsts(step: Step) -> list[int]:
    """The number of the first change of each page."""
    assert step.error is None
    return [int(page.first.cursor.rpartition("-")[2]) for page in step.pages]


class Away(StagedFeed):
    """Cannot be followed until it is back."""

    def __init__(self) -> None:
        super().__init__(StagedSettings(changes=10))
        self.is_back = False

    def follow(self, *where: Any, **more: Any) -> StagedFollowing:
        if not self.is_back:
            raise Unavailable("not now")
        return super().follow(*where, **more)


class Patient(Away):
    """Waits 100, 101, 102 seconds."""

    def delays(self) -> Iterator[float]:
        return map(float, count(100))


def test_a_feed_says_how_long_its_source_is_left_alone_and_a_success_begins_anew() -> None:
    feed = Patient()
    reader, _ = reader_of(feed)
    assert [reader.step(0.0).wait for _ in range(3)] == [100.0, 101.0, 102.0]
    assert reader.reconnects == 3
    feed.is_back = True
    step = reader.step(0.0)
    assert (step.wait, step.error, len(step.pages)) == (0.0, None, 1)
    feed.is_back = False
    reader.disconnect()
    assert reader.step(0.0).wait == 100.0
    assert str(reader.status()["last_error"]).startswith("not now")


def test_any_other_source_is_tried_again_soon() -> None:
    reader, _ = reader_of(Away())
    waits = [reader.step(0.0).wait for _ in range(12)]
    assert 0.05 <= waits[0] <= 0.1
    assert 5.0 <= waits[-1] <= 10.0


def test_mongodb_is_left_alone_for_1_to_30_seconds() -> None:
    settings = MongoSettings.model_validate({"connection": "mongodb://h", "database": "shop"})
    waits = list(islice(MongoFeed(settings).delays(), 8))
    most = [1, 2, 4, 8, 16, 30, 30, 30]
    assert all(limit / 2 <= wait <= limit for wait, limit in zip(waits, most, strict=True))
    assert next(delays()) < 0.5 <= waits[0]


def test_it_resumes_after_what_was_read_and_not_after_what_is_durable() -> None:
    reader, _ = reader_of(feed_of(changes=40, fail_at=(20,)))
    assert firsts(reader.step(0.0)) == [0, 10]
    assert isinstance(reader.step(0.0).error, Unavailable)
    assert firsts(reader.step(0.0)) == [20, 30]
    # What became durable meanwhile has the bookmark of the following that read it.
    assert reader.bookmark(place(9)) == Bookmark(place(9), {})


@pytest.mark.parametrize("found", ["follow", "read"])
def test_a_loss_is_recorded_with_its_end_and_passed(found: str) -> None:
    """Whether following finds it or reading."""
    clock, feed = Clock(), feed_of(trimmed=35, on_gap="continue", found=found, changes=60)
    reader, recorder = reader_of(feed, clock=clock)
    assert firsts(confirmed(reader, clock)) == [35, 45, 55]
    assert recorder.found == [("trimmed", ""), ("trimmed", "35")]


@pytest.mark.parametrize("found", ["follow", "read"])
def test_a_loss_that_stops_is_recorded_and_asked_for_again_after_30_seconds(found: str) -> None:
    clock, feed = Clock(), feed_of(trimmed=35, found=found)
    reader, recorder = reader_of(feed, clock=clock)
    step = confirmed(reader, clock)
    assert isinstance(step.error, PositionLost)
    assert step.error.hint
    assert recorder.found == [("trimmed", "")]
    connections = feed.connections
    clock.now += BLOCKED - 1
    assert reader.step(0.0) == Step((), 1.0, step.error)
    assert feed.connections == connections
    clock.now += 1
    feed.settings = feed.settings.model_copy(update={"trimmed": 0})  # the operator mended it
    assert firsts(reader.step(0.0))[0] == 0


_TRIMMED = Gap(cause="trimmed", after="", detail="gone", policy="continue")


class Flaky(StagedFeed):
    """Reports a loss, by reading, as often as `wrong` counts down, at a plain position or with its
    gap. `accepts`: the first read of each following finds nothing. `judges`: the feed finds the
    gap where the position is plain."""

    def __init__(
        self, *, wrong: int, plain: bool = False, accepts: bool = False, judges: bool = False
    ) -> None:
        super().__init__(feed_of(changes=60, on_gap="continue").settings)
        self.wrong, self.plain, self.accepts, self.judges = wrong, plain, accepts, judges

    def judged(self, error: PositionLost, bookmark: Bookmark) -> HistoryLost | None:
        return HistoryLost(_TRIMMED) if self.judges else None

    def follow(
        self, partition: PartitionId, bookmark: Bookmark = START, *, despite: Sequence[Gap] = ()
    ) -> StagedFollowing:
        found = super().follow(partition, bookmark)
        if not self.wrong or despite:
            return found
        self.wrong -= 1
        error = PositionLost("gone") if self.plain else HistoryLost(_TRIMMED)

        empty = [()] if self.accepts else []

        def read(timeout: float) -> Sequence[Page]:
            if empty:
                return empty.pop()
            raise error

        found.read = read  # type: ignore[method-assign]
        return found


class Slow(Flaky):
    """Finds the loss with the last of some replies of each connection, of so many seconds each."""

    clock: Clock

    def __init__(self, replies: int, seconds: float) -> None:
        super().__init__(wrong=100)
        self.replies, self.seconds = replies, seconds

    def follow(
        self, partition: PartitionId, bookmark: Bookmark = START, *, despite: Sequence[Gap] = ()
    ) -> StagedFollowing:
        found = super().follow(partition, bookmark, despite=despite)
        left, read = self.replies, found.read

        def slowly(timeout: float) -> Sequence[Page]:
            nonlocal left
            self.clock.now += self.seconds
            left -= 1
            return () if left and not despite else read(timeout)

        found.read = slowly  # type: ignore[method-assign]
        return found


@pytest.mark.parametrize("accepts", [False, True])
def test_a_position_that_the_feed_does_not_find_lost_is_asked_for_again(accepts: bool) -> None:
    """However often the source refuses it, and for however long."""
    clock = Clock()
    reader, recorder = reader_of(Flaky(wrong=30, plain=True, accepts=accepts), clock=clock)
    errors = 0
    while not (step := reader.step(0.0)).pages:
        assert step.error is None or isinstance(step.error, Unavailable)
        errors += step.error is not None
        clock.now += step.wait
    assert (firsts(step)[0], errors, recorder.found) == (0, 30, [])


@pytest.mark.parametrize("plain", [False, True])
def test_one_answer_that_a_position_is_lost_is_no_loss(plain: bool) -> None:
    clock, feed = Clock(), Flaky(wrong=1, plain=plain, judges=True)
    reader, recorder = reader_of(feed, clock=clock)
    assert reader.step(0.0) == Step((), CONFIRMED)
    clock.now += CONFIRMED / 2
    assert reader.step(0.0) == Step((), CONFIRMED / 2), "a second answer comes seconds later"
    clock.now += CONFIRMED / 2
    assert firsts(reader.step(0.0))[0] == 0
    feed.wrong = 1
    reader.disconnect()
    clock.now += 10 * BLOCKED
    assert reader.step(0.0) == Step((), CONFIRMED), "what was read meanwhile proves the first wrong"
    assert recorder.found == []


@pytest.mark.parametrize("replies", [1, 2, 4])
@pytest.mark.parametrize("seconds", [1.0, 10.0, 31.0, 300.0])
def test_a_loss_counts_however_slow_the_replies_are_and_after_however_many(
    replies: int, seconds: float
) -> None:
    """The server finds it late in each connection: the time until then proves nothing."""
    clock, feed = Clock(), Slow(replies, seconds)
    feed.clock = clock
    reader, recorder = reader_of(feed, clock=clock)
    for _ in range(4 * replies + 4):
        if (step := reader.step(0.0)).pages:
            break
        clock.now += step.wait
    assert firsts(step)[0] == 0
    assert recorder.found[0] == ("trimmed", "")


def test_a_position_that_is_refused_later_each_time_is_a_gap() -> None:
    """A server that accepts it with an empty answer, and refuses it with the next."""
    clock, feed = Clock(), Flaky(wrong=100, plain=True, accepts=True, judges=True)
    reader, recorder = reader_of(feed, clock=clock)
    for _ in range(6):
        if confirmed(reader, clock).pages:
            break
        clock.now += 1.0
    assert [cause for cause, to in recorder.found if not to] == ["trimmed"]
    assert reader.read_to == place(59)


@pytest.mark.parametrize("found", ["follow", "read"])
def test_several_gaps_are_each_recorded_and_all_are_passed(found: str) -> None:
    feed = feed_of(trimmed=35, history="B", on_gap="continue", found=found, changes=60)
    clock = Clock()
    reader, recorder = reader_of(feed, Bookmark(place(3), {"history": "A"}), clock)
    assert firsts(confirmed(reader, clock)) == [35, 45, 55]
    assert [cause for cause, to in recorder.found if not to] == ["other_history", "trimmed"]
    assert [cause for cause, to in recorder.found if to] == ["other_history", "trimmed"]


@pytest.mark.parametrize("policy", ["fail", "continue"])
def test_a_partition_behind_a_hole_gives_nothing_before_the_hole_is_on_record(
    policy: GapPolicy,
) -> None:
    feed = feed_of(on_gap=policy)
    reader, recorder = reader_of(feed, behind_hole("lineage_broken", "p0 has no parent"))
    step = reader.step(0.0)
    if policy == "fail":
        assert isinstance(step.error, PositionLost)
        assert (recorder.found, feed.connections) == ([("lineage_broken", "")], 0)
    else:
        assert firsts(step)[0] == 0
        assert recorder.found == [("lineage_broken", ""), ("lineage_broken", "0")]
        bookmark = reader.bookmark(None)
        assert bookmark is not None
        assert "hole" not in (bookmark.mark or {}), "what is stored next has no hole"


def test_a_feed_that_finds_gap_after_gap_is_given_up() -> None:
    class Hopeless(StagedFeed):
        def follow(self, *where: Any, despite: Sequence[Gap] = (), **more: Any) -> StagedFollowing:
            cause = f"cause {len(despite)}"
            raise HistoryLost(Gap(cause=cause, after="", detail=cause, policy="continue"))

    clock = Clock()
    reader, recorder = reader_of(Hopeless(StagedSettings()), clock=clock)
    assert isinstance(confirmed(reader, clock).error, PositionLost)
    assert len(recorder.found) == 5


def test_an_instance_that_lost_its_lease_connects_no_more() -> None:
    feed = feed_of()
    reader, recorder = reader_of(feed)
    recorder.is_lost = True
    assert isinstance(reader.step(0.0).error, LeaseLost)
    assert feed.connections == 0


def test_a_defect_of_a_feed_is_an_error_of_ours() -> None:
    class Defective(StagedFeed):
        def follow(self, *where: Any, **more: Any) -> StagedFollowing:
            raise ZeroDivisionError

    error = reader_of(Defective(StagedSettings()))[0].step(0.0).error
    assert isinstance(error, Malformed)
    assert "reading p0 failed: ZeroDivisionError" in error.message


def test_it_is_done_when_it_is_drained_and_durable() -> None:
    reader, _ = reader_of(feed_of(changes=20, generations=1))
    reader.step(0.0)
    assert reader.drained
    assert not reader.is_done(place(18))
    assert reader.is_done(place(19))
    assert reader.last_bookmark(place(19)) == Bookmark(place(19), {}, ended=True)
    assert reader.step(0.0) == Step()


def test_an_interrupted_read_is_read_again() -> None:
    class Interrupted(StagedFollowing):
        def read(self, timeout: float) -> Sequence[Page]:
            super().read(timeout)
            raise KeyboardInterrupt

    class Feed(StagedFeed):
        calls = 0

        def follow(self, *where: Any, **more: Any) -> Following:  # type: ignore[override]
            self.calls += 1
            return Interrupted(self, P0, None) if self.calls == 1 else super().follow(*where)

    reader = PartitionReader(Feed(StagedSettings(changes=30, page=10, unit=1)), P0, START, GapLog())
    with pytest.raises(KeyboardInterrupt):
        reader.step(0.0)
    assert firsts(reader.step(0.0)) == [0, 10, 20]
