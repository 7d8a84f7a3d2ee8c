"""What a partition lost before what is read next: when a loss counts, and where it is recorded."""

import math
from typing import NamedTuple, Protocol

from penstock.feeds import Feed, Gap, HistoryLost
from penstock.feeds.shared import hole_before
from penstock.model.errors import (
    PositionLost,
    RecordsExpired,
    ShardIteratorExpired,
    Unavailable,
)
from penstock.model.position import Bookmark, PartitionId
from penstock.process.backoff import Clock

# Seconds until a partition that lost its history is followed again: the operator may have acted.
BLOCKED = 30.0
# Seconds between the two answers that confirm a loss: a server's single answer may be wrong.
CONFIRMED = 2.0
# Gaps that one step passes at most: a feed that goes on finding gaps after gaps is broken.
_GAPS = 5


class Doubt(NamedTuple):
    """A loss that was reported once: since when, and how long after it was asked for. Seconds."""

    since: float
    took: float


# By backend and partition: losses by the gaps before each, its cause and its place. Owners whose
# readers are short-lived share one.
Doubts = dict[tuple[str, PartitionId], dict[tuple[int, str, str], Doubt]]


class InDoubt(Exception):
    """The source has reported a loss once."""


class GapRecorder(Protocol):
    """Where a reader records gaps before their policy is applied."""

    def verify(self, partition: PartitionId) -> None:
        """Called before a connection is made; raises LeaseLost if the partition's stored bookmark
        is another instance's by now."""

    def lost(self, partition: PartitionId, gap: Gap, bookmark: Bookmark, *, to: str = "") -> None:
        """Records a gap after `bookmark`; again when its end (`to`) is known. Raises LeaseLost."""


class PassedGaps:
    """The gaps of one partition, for its reader."""

    def __init__(
        self, feed: Feed, partition: PartitionId, gaps: GapRecorder, doubts: Doubts, clock: Clock
    ) -> None:
        # Gaps that were passed since anything was read: what is found next is found despite them.
        self.despite: list[Gap] = []
        self._feed = feed
        self._key = feed.backend, partition  # in the doubts
        self._gaps = gaps  # where they are recorded
        self._doubts = doubts
        self._asked_at = clock()  # when it was followed last
        self._clock = clock
        # Gaps that were passed, each with the bookmark before it, and whose ends are not known yet.
        self.unended: list[tuple[Gap, Bookmark]] = []

    @property
    def _partition(self) -> PartitionId:
        return self._key[1]

    def verify(self) -> None:
        """Called before each following."""
        self._asked_at = self._clock()
        self._gaps.verify(self._partition)

    def pass_hole(self, resume: Bookmark) -> None:
        """Records the hole before a bookmark. Raises PositionLost unless it is passed."""
        hole = hole_before(resume, self._feed.on_gap)
        if hole is not None and not self.despite:
            self.verify()
            self._record(hole, resume)
            self.despite.append(hole.gap)

    def pass_gap(self, error: PositionLost, resume: Bookmark) -> None:
        """Records the gap of a loss after `resume` that the source has reported twice, and the feed
        has judged; before, InDoubt is raised. Raises PositionLost where the gap is not passed, and
        Unavailable where the feed finds nothing lost: a source may refuse for a moment."""
        number = len(self.despite)
        if number == _GAPS or isinstance(error, (RecordsExpired, ShardIteratorExpired)):
            raise error
        lost = error if isinstance(error, HistoryLost) else self._feed.judged(error, resume)
        if lost is None:
            raise Unavailable(error.message, error.code, hint=error.hint) from error
        gap, now = lost.gap, self._clock()
        known, key = self._doubts.setdefault(self._key, {}), (number, gap.cause, gap.after)
        took = now - self._asked_at
        since = known.setdefault(key, Doubt(now, took)).since
        if now - since < CONFIRMED:
            raise InDoubt
        if gap.policy == "fail" or since > -math.inf:  # else it is on record
            self._record(lost, resume)
        known[key] = Doubt(-math.inf, took)
        self.despite.append(gap)

    def followed(self, resume: Bookmark, begins: str) -> None:
        """Followed after `resume`, despite gaps that end at `begins`, if that is known."""
        known = [gap for gap, _ in self.unended]
        self.unended += [(gap, resume) for gap in self.despite if gap not in known]
        if begins:
            self.end(begins)

    def end(self, to: str) -> None:
        """Records where passed gaps end: some sources say it with the first change after them."""
        while self.unended:
            gap, resume = self.unended.pop(0)
            self._gaps.lost(self._partition, gap, resume, to=to)

    def read(self, *, has_pages: bool) -> None:
        """The source was read: what it reported once, and not again, was no loss. A server may
        report it with a later reply of each following, and be slow."""
        if known := self._doubts.get(self._key):
            patience = BLOCKED + max(each.took for each in known.values())
            if has_pages or self._clock() - self._asked_at >= patience:
                del self._doubts[self._key]
        if has_pages:
            self.despite.clear()

    def _record(self, lost: HistoryLost, resume: Bookmark) -> None:
        """Records a gap, then applies its policy: raises PositionLost unless it is to go on."""
        self._gaps.lost(self._partition, lost.gap, resume)
        if lost.gap.policy == "fail":
            raise PositionLost(lost.message, lost.code, hint=lost.hint) from lost
