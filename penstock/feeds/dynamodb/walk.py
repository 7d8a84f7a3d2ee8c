"""How far one walk through a shard has come; the only calls are for iterators."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace

from botocore.exceptions import ClientError

from penstock.feeds.dynamodb.account import KnownShard, Walk, WalkOrigin
from penstock.feeds.dynamodb.beginning import LIFETIME, ShardBeginning, is_before
from penstock.feeds.dynamodb.client import StreamsClient
from penstock.feeds.dynamodb.failures import REFUSED, code_of
from penstock.feeds.dynamodb.pacing import Tip
from penstock.feeds.dynamodb.reach import Reach
from penstock.model.position import PartitionId
from penstock.wire.dynamodb.records import RecordHead, place_of, sequence_number

# Seconds: how far clocks may differ at most: requests are refused beyond that.
_SKEW = 5 * 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedShard:
    """A shard at the service, and what this process knows of it: at most `reads` calls a second,
    `pause` seconds from one to the next at the tip."""

    client: StreamsClient
    partition: PartitionId
    arn: str
    id: str
    table: str
    known: KnownShard
    reads: int
    pause: float


class ShardWalk:
    """Everything up to the next iterator was read."""

    def __init__(self, beginning: ShardBeginning, *, now: float, clock: float) -> None:
        if beginning.after is None and not beginning.asked:
            beginning = replace(beginning, asked=now)
        # Counts until there is a record, and while it scans.
        self.beginning = beginning
        # The last record read; when it was created (0: there is none), and when it was read.
        self.after = beginning.after
        self.created, self.read_at = 0.0, now
        # Whether records are passed over that are older than the beginning.
        self.scans = False
        # Of the next page; None: to be made anew, or the shard has ended.
        self.iterator: str | None = beginning.live_iterator(now) or None
        # When that was made, in monotonic seconds.
        self.iterated = clock - (now - beginning.asked if self.iterator else 0.0)
        self.reach = Reach(beginning.through, now)
        self.tip = Tip()

    @property
    def origin(self) -> WalkOrigin:
        """Where a following that goes on from here begins."""
        if self.after is not None and not self.scans:
            return WalkOrigin(self.after)
        begins = self.beginning
        return WalkOrigin(None, begins.since, 0.0 if begins.since is None else begins.asked)

    def go_on(self, known: KnownShard, clock: float) -> None:
        """With the walk of this process that came from the same place, if there is one."""
        walk = known.walk
        if walk is None or walk.origin != self.origin or not self.beginning.pinned:
            return
        self.after, self.scans = walk.after, walk.scans
        if clock - walk.at < LIFETIME:
            self.iterator, self.iterated = walk.iterator, walk.at
            self.reach, self.tip = copy(walk.reach), walk.tip

    def remembered(self) -> Walk | None:
        """What the next following from here goes on with, in this process."""
        if self.iterator is None or (self.after is None and not self.beginning.pinned):
            return None
        return Walk(
            origin=self.origin,
            after=self.after,
            scans=self.scans,
            iterator=self.iterator,
            at=self.iterated,
            reach=copy(self.reach),
            tip=self.tip,
        )

    def new_iterator(self, shard: ServedShard, now: float) -> str:
        """An iterator after what was read. Raises ClientError."""
        make, arn, name = shard.client.iterator, shard.arn, shard.id
        if self.after is not None:
            kind, sequence = "AFTER_SEQUENCE_NUMBER", sequence_number(self.after)
            return make(arn, name, kind, sequence=sequence)
        since = self.beginning.since
        if since is not None and shard.client.has_times and not self.scans:
            # The service refuses a time in the future: of a clock that was fast, at most so much.
            since = since if since <= now else now - _SKEW
            try:
                return make(arn, name, "AT_TIMESTAMP", since=since)
            except ClientError as error:
                if code_of(error) != REFUSED:
                    raise
        self.scans = since is not None
        return make(arn, name, "TRIM_HORIZON")

    def expire(self) -> bool:
        """The iterator has expired; false where nothing but it says where to go on."""
        if self.after is None and not self.beginning.pinned:
            return False
        self.iterator = None
        self.beginning = self.beginning.without_iterator()
        return True

    def read(self, records: Sequence[RecordHead], now: float) -> int:
        """Records were read; how many of them are passed over."""
        skip, since = 0, self.beginning.since if self.scans else None
        if since is not None:
            while skip < len(records) and is_before(records[skip].created, since):
                skip += 1
            self.scans = skip == len(records)  # times may go back: records are not sorted by them
        self.after = place_of(records[-1].sequence)
        self.created, self.read_at = records[-1].created, now
        self.reach.found(self.created, now)
        return skip

    def is_at_the_horizon(self, now: float) -> bool:
        """Whether the horizon moved after the iterator was made: it is what we are to begin at."""
        is_at = self.after is None and self.beginning.since is None
        return is_at and not self.beginning.is_overdue(now)
