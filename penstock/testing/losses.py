"""What every feed promises when history is lost: `CLAIMS`, each called with a `LostHistory`. A loss
is recorded first, nothing is delivered where the policy is to stop, it is asked for again later,
and where the policy is to go on, everything after the gap comes. A pickled copy decides the same.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.feeds import Feed, Following, Gap, GapPolicy
from penstock.feeds.shared import behind_hole
from penstock.model.errors import PositionLost, Unavailable
from penstock.model.page import Page
from penstock.model.position import Bookmark, PartitionId
from penstock.reading.passed_gaps import BLOCKED
from penstock.reading.reader import PartitionReader
from penstock.testing.claims import Clock, hold, same
from penstock.testing.feeds import confirmed, copy_of

_PATIENCE = 60.0  # seconds
_POLICIES: tuple[GapPolicy, ...] = ("fail", "continue")


class LostHistory(Protocol):
    """A source that lost what came after a bookmark of one partition."""

    @property
    def partition(self) -> PartitionId:
        """Whose."""

    @property
    def bookmark(self) -> Bookmark:
        """After which it is lost."""

    @property
    def causes(self) -> Sequence[str]:
        """How the causes of the gaps begin that are found one after the other."""

    def feed(self, policy: GapPolicy) -> Feed:
        """With this policy for gaps."""

    def write(self) -> object:
        """Makes a change that is there after the gap, and reaches the partition."""


class _Recorder:
    """A `passed_gaps.GapRecorder`."""

    def __init__(self) -> None:
        self.causes: list[str] = []
        self.ends: list[str] = []

    def verify(self, partition: PartitionId) -> None:
        pass

    def lost(self, partition: PartitionId, gap: Gap, bookmark: Bookmark, *, to: str = "") -> None:
        if to:
            self.ends.append(to)
        else:
            self.causes.append(gap.cause)


def _expect(found: Sequence[str], expected: Sequence[str]) -> None:
    fits = len(found) == len(expected) and all(map(str.startswith, found, expected))
    hold(fits, f"recorded gaps: found {found}, expected {expected}")


def _patiently(reader: PartitionReader, clock: Clock) -> PositionLost | list[str]:
    """The first loss, or the places of pages."""
    until = time.monotonic() + _PATIENCE
    while True:
        hold(time.monotonic() < until, f"neither a loss nor a change in {_PATIENCE:.0f} s")
        step = confirmed(reader, clock, 0.1)
        if step.pages:
            return [str(page.first) for page in step.pages]
        if isinstance(step.error, PositionLost):
            return step.error
        hold(step.error is None or isinstance(step.error, Unavailable), f"raised {step.error}")


def _loss(reader: PartitionReader, clock: Clock) -> PositionLost:
    found = _patiently(reader, clock)
    if not isinstance(found, PositionLost):
        hold(False, f"read {found} where history is lost")
    assert isinstance(found, PositionLost)
    return found


def a_loss_is_recorded_and_stops_the_partition_and_is_asked_for_again(lost: LostHistory) -> None:
    feed = lost.feed("fail")
    for each in (feed, copy_of(feed)):
        recorder, clock = _Recorder(), Clock()
        reader = PartitionReader(each, lost.partition, lost.bookmark, recorder, clock=clock)
        for _ in range(2):
            error = _loss(reader, clock)
            hold(error.message and error.hint, "it says no remedy")
            asked = list(recorder.causes)
            hold(reader.step(0.0).error is error, "asked again at once")
            same(recorder.causes, asked, "recorded at once")
            clock.now += BLOCKED
        _expect(recorder.causes, 2 * list(lost.causes[:1]))
        reader.disconnect()


def where_the_policy_is_to_go_on_losses_are_recorded_and_what_comes_after_is_read(
    lost: LostHistory,
) -> None:
    recorder, clock = _Recorder(), Clock()
    reader = PartitionReader(
        copy_of(lost.feed("continue")), lost.partition, lost.bookmark, recorder, clock=clock
    )
    until = time.monotonic() + _PATIENCE
    while len(recorder.causes) < len(lost.causes) or not reader.is_connected:
        first = confirmed(reader, clock, 0.1)  # makes a slot anew, or a stream from now on
        hold(time.monotonic() < until, f"recorded {recorder.causes}, expected {lost.causes}")
    lost.write()
    pages = [str(page.first) for page in first.pages] or _patiently(reader, clock)
    hold(isinstance(pages, list), f"raised {pages}")
    _expect(recorder.causes, lost.causes)
    hold(recorder.ends, "the end of the gap is not known")
    after = lost.bookmark.place
    hold(after is None or (reader.read_to and reader.read_to > after), "it sorts before the gap")
    # What was read is stored with a bookmark that leads on, without the gap.
    bookmark = reader.bookmark(reader.read_to)
    if bookmark is None:
        hold(False, "no bookmark of what was read")
    assert bookmark is not None
    reader.acknowledge(bookmark)
    reader.step(0.0)
    reader.disconnect()
    again = _Recorder()
    second = PartitionReader(lost.feed("fail"), lost.partition, bookmark, again, clock=Clock())
    until = time.monotonic() + _PATIENCE
    while not second.is_connected:
        error = second.step(0.0).error
        hold(error is None or isinstance(error, Unavailable), f"after the gap: {error}")
        hold(time.monotonic() < until, "it does not connect again")
    same(again.causes, [], "gaps that are recorded again")
    second.disconnect()


class _SlowFeed:
    """A feed whose source takes 31 seconds for each reply, and shows what is lost with the second
    of each connection."""

    def __init__(self, feed: Feed, clock: Clock) -> None:
        self._feed, self._clock = feed, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._feed, name)

    def follow(self, *where: Any, **more: Any) -> Following:
        self._clock.now += 31.0
        following = self._feed.follow(*where, **more)
        replies, read = iter([()]), following.read

        def slowly(timeout: float) -> Sequence[Page]:
            self._clock.now += 31.0
            return next(replies, None) or read(timeout)

        following.read = slowly  # type: ignore[method-assign]
        return following


def a_loss_counts_where_each_reply_takes_31_seconds(lost: LostHistory) -> None:
    for policy in _POLICIES:
        recorder, clock = _Recorder(), Clock()
        slow: Any = _SlowFeed(lost.feed(policy), clock)
        reader = PartitionReader(slow, lost.partition, lost.bookmark, recorder, clock=clock)
        expected, until = list(lost.causes), time.monotonic() + _PATIENCE
        if policy == "fail":
            expected = expected[:1]
            _loss(reader, clock)
        while len(recorder.causes) < len(expected):
            hold(time.monotonic() < until, f"recorded {recorder.causes}, expected {expected}")
            confirmed(reader, clock, 0.1)
        _expect(recorder.causes, expected)
        reader.disconnect()


def a_partition_after_a_hole_is_read_only_where_the_policy_is_to_go_on(lost: LostHistory) -> None:
    hole = behind_hole("lineage_broken", "nothing that was read leads here")
    recorder = _Recorder()
    stopped = PartitionReader(lost.feed("fail"), lost.partition, hole, recorder, clock=Clock())
    error = stopped.step(0.0).error
    hold(isinstance(error, PositionLost), f"raised {error}")
    same(recorder.causes, ["lineage_broken"], "recorded gaps")
    same(stopped.is_connected, False, "connected")


CLAIMS: Sequence[Callable[[LostHistory], None]] = (
    a_loss_is_recorded_and_stops_the_partition_and_is_asked_for_again,
    a_loss_counts_where_each_reply_takes_31_seconds,
    a_partition_after_a_hole_is_read_only_where_the_policy_is_to_go_on,
    where_the_policy_is_to_go_on_losses_are_recorded_and_what_comes_after_is_read,
)
"""Each needs a loss of its own where going on ends it, as a slot is made anew."""
