"""One shard, being read: GetRecords again and again, an iterator made anew where it expired."""

import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

from penstock.feeds import HistoryLost
from penstock.feeds.dynamodb.account import KnownShard, Walk, WalkOrigin
from penstock.feeds.dynamodb.ages import Ages
from penstock.feeds.dynamodb.beginning import LIFETIME, RETENTION, ShardBeginning, is_before
from penstock.feeds.dynamodb.client import StreamsClient
from penstock.feeds.dynamodb.failures import (
    EXPIRED,
    NOT_FOUND,
    REFUSED,
    TRIMMED,
    Throttled,
    code_of,
    failure,
)
from penstock.feeds.dynamodb.pacing import TO_THE_TIP, Tip
from penstock.feeds.dynamodb.reach import Reach
from penstock.model.errors import ShardIteratorExpired, Unavailable
from penstock.model.page import Page
from penstock.model.position import Bookmark, PartitionId, Place
from penstock.wire.dynamodb.records import Answer, PageContext, place_of, sequence_number

# Seconds: an iterator without a sequence number is used before it expires; how often the mark of a
# shard without new records is renewed; how far clocks may differ at most: requests are refused
# beyond that.
_KEEP, _RENEW, _SKEW = 10 * 60.0, 5 * 60.0, 5 * 60.0
# Seconds: how much longer a read waits if the pace allows it then. Its owner's period is the same
# pause, and its calls come a little earlier or later: without it, every second one would be early.
_SOON = 0.05
# Seconds: what is older when it is read comes of a stand-in that keeps records for longer. AWS
# trims what is older than a day, but not at once.
_KEPT = RETENTION + 3600.0


class DynamodbFollowing:
    """The implementation of `feeds.Following`. `known` is what this process knows of the shard;
    `lost` makes the error for records that are gone (None: there were none). At most `reads` calls
    a second; `pause` seconds from one to the next at the tip. `clock` is monotonic seconds, `now`
    the service's time.

    `_after` is the last record read; `_beginning` counts until there is one, and while `_scans`:
    until then records are passed over that are older than it. `_iterator` is that of
    the next page, made at `_iterated`; None: to be made anew, or the shard has ended (`_drained`).
    `_ahead` is a page that was read and not returned. Only `_ages` and `_acknowledged` change in
    other threads.
    """

    def __init__(
        self,
        client: StreamsClient,
        partition: PartitionId,
        *,
        arn: str,
        shard: str,
        table: str,
        beginning: ShardBeginning,
        known: KnownShard,
        lost: Callable[[Place | None, str], HistoryLost | None],
        reads: int,
        pause: float,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._client, self._partition = client, partition
        self._arn, self._shard, self._table = arn, shard, table
        self._known, self._pace, self._lost = known, known.pace, lost
        self._reads, self._pause, self._tip = reads, pause, Tip()
        self._clock, self._now = clock, now or client.now
        moment = self._now()
        if beginning.after is None and not beginning.asked:
            beginning = replace(beginning, asked=moment)
        self._beginning = beginning
        self._after = beginning.after
        self._scans = False
        self._iterator: str | None = beginning.live_iterator(moment) or None
        self._iterated = clock() - (moment - beginning.asked if self._iterator else 0.0)
        self._kept = self._iterated
        self._reach = Reach(beginning.through, moment)
        self._ages = Ages(beginning.after, beginning.through)
        self._go_on()
        self._ahead: Page | None = None
        self._created, self._read_at = 0.0, moment
        self._drained = self._closed = False
        self._acknowledged: Place | None = None
        self.begins = "" if beginning.after is None else sequence_number(beginning.after)

    def _go_on(self) -> None:
        """With the walk of this process that came from the same place, if there is one."""
        walk = self._known.walk
        if walk is None or walk.origin != self._origin or not self._beginning.pinned:
            return
        self._after, self._scans = walk.after, walk.scans
        if self._clock() - walk.at < LIFETIME:
            self._iterator, self._iterated = walk.iterator, walk.at
            self._reach, self._tip = copy(walk.reach), walk.tip

    @property
    def _origin(self) -> WalkOrigin:
        if self._after is not None and not self._scans:
            return WalkOrigin(self._after)
        begins = self._beginning
        return WalkOrigin(None, begins.since, 0.0 if begins.since is None else begins.asked)

    def read(self, timeout: float) -> Sequence[Page]:
        """See `feeds.Following`. One poll: a call, and up to five until the tip is found, or in a
        scan; what is due in a moment is waited for."""
        if self._closed:
            raise Unavailable(f"{self._partition} was closed")
        deadline, calls = self._clock() + timeout, 0
        while not self._drained or self._ahead is not None:
            if self._ahead is not None:
                page, self._ahead = self._ahead, None
                return [page]
            now, due = self._clock(), self._due()
            if due > deadline + _SOON:
                time.sleep(max(0.0, deadline - now))
                break
            time.sleep(max(0.0, due - now))
            self._ahead, calls = self._call(), calls + 1
            is_enough = calls >= TO_THE_TIP or not self._tip.is_sought
            if self._ahead is None and is_enough and self._clock() >= deadline:
                break
        return []

    @property
    def next_in(self) -> float | None:
        """See `feeds.PacesReads`: all until the tip is read as fast as the service allows."""
        if self._tip.is_sought or self._pace.is_throttled:
            return max(0.0, self._due() - self._clock())
        return None

    def _due(self) -> float:
        """When the next call may be."""
        return max(self._tip.not_before, self._pace.due(self._reads))

    def look_ahead(self) -> bool:
        """Reads the first page now, which says where this following begins; whether the service
        answered."""
        self._ahead = self._call()
        if self._iterator is None and not self._drained:  # one that has expired is made anew
            self._ahead = self._call()
        return not self._pace.is_throttled

    def end(self) -> None:
        """There is nothing to read."""
        self._drained = True
        self._begin_at("end")

    def _call(self) -> Page | None:
        """One call of GetRecords; the page, if there are records for us."""
        asked = self._clock()
        try:
            if self._iterator is None:
                self._iterator = self._new_iterator()
            answer, body = self._client.records(self._iterator)
        except ClientError as error:
            self._refused(error, asked)
            return None
        finally:  # the service has counted the call by now
            self._pace.reads(self._clock())
        self._iterator, self._iterated = answer.next, self._clock()
        self._drained = answer.next is None
        self._known.refusals = 0
        self._pace.answered()
        self._tip = self._tip.found(len(answer.records), asked, self._pause)
        page = None
        if answer.records:
            page = self._page(answer, body)
        else:
            self._note_nothing()
        self._remember()
        return page

    def _remember(self) -> None:
        """What the next following from here goes on with, in this process."""
        is_known = self._after is not None or self._beginning.pinned
        self._known.walk = None
        if self._iterator is not None and is_known:
            self._known.walk = Walk(
                origin=self._origin,
                after=self._after,
                scans=self._scans,
                iterator=self._iterator,
                at=self._iterated,
                reach=copy(self._reach),
                tip=self._tip,
            )

    def _new_iterator(self) -> str:
        if self._after is not None:
            kind, sequence = "AFTER_SEQUENCE_NUMBER", sequence_number(self._after)
            return self._client.iterator(self._arn, self._shard, kind, sequence=sequence)
        since = self._beginning.since
        if since is not None and self._client.has_times and not self._scans:
            # The service refuses a time in the future: of a clock that was fast, at most so much.
            since = since if since <= self._now() else self._now() - _SKEW
            try:
                return self._client.iterator(self._arn, self._shard, "AT_TIMESTAMP", since=since)
            except ClientError as error:
                if code_of(error) != REFUSED:
                    raise
        self._scans = since is not None
        return self._client.iterator(self._arn, self._shard, "TRIM_HORIZON")

    def _refused(self, error: ClientError, asked: float) -> None:
        """Goes on where that is possible; raises what it is otherwise."""
        code = code_of(error)
        if code == EXPIRED:
            if self._after is None and not self._beginning.pinned:
                raise self._unknown_place() from error
            self._iterator = None
            self._beginning = self._beginning.without_iterator()
            return
        if code == TRIMMED and self._is_at_the_horizon:
            self._iterator = None
            self._tip = self._tip.found(0, asked, self._pause)
            return
        if code in (TRIMMED, NOT_FOUND):
            self._known.walk = None  # asked again, it is with another iterator
            self._known.refusals += 1
            lost = self._lost(self._after, "trimmed" if code == TRIMMED else "shard_gone")
            if lost is None:
                self._drained = True
                return
            raise lost from error
        found = failure(error, f"DynamoDB Streams of {self._table}")
        if not isinstance(found, Throttled):
            raise found from error
        self._pace.throttled(self._clock())

    @property
    def _is_at_the_horizon(self) -> bool:
        """Whether the horizon moved after the iterator was made: it is what we are to begin at."""
        begins = self._beginning
        is_at = self._after is None and begins.since is None
        return is_at and not begins.is_overdue(self._now())

    def _unknown_place(self) -> ShardIteratorExpired:
        return ShardIteratorExpired(
            f"the iterator of {self._partition} has expired, and its bookmark has neither a"
            " sequence number nor a time",
            hint="move_to a time, or trim_horizon; begin anew with a token of this iterator",
        )

    def _page(self, answer: Answer, body: bytes) -> Page | None:
        records, skip = answer.records, 0
        since = self._beginning.since if self._scans else None
        if since is not None:
            while skip < len(records) and is_before(records[skip].created, since):
                skip += 1
            self._scans = skip == len(records)  # times may go back: records are not sorted by them
        self._after = place_of(records[-1].sequence)
        self._created, self._read_at = records[-1].created, self._now()
        self._reach.found(self._created, self._read_at)
        self._ages.note(self._after, records[0].created, self._created)
        if skip == len(records):
            return None
        self.begins = self.begins or records[skip].sequence
        return Page(
            partition=self._partition,
            first=place_of(records[skip].sequence),
            last=self._after,
            count=len(records) - skip,
            captured_at=int(time.time() * 1e6),
            context=PageContext(self._table, skip).pack(),
            payload=body,
        )

    def _note_nothing(self) -> None:
        """A page without records. The place stays, and is known to be newer now and then."""
        self._reach.found_nothing(self._now())
        if self._drained or not self._tip.is_sought:
            self._begin_at("end" if self._drained else "tip")
        if self._drained or self._reach.through - self._ages.newest >= _RENEW:
            self._ages.renew(self._reach.through)
            if self._after is None or self._scans:
                self._beginning = self._beginning.read_through(self._reach.through, self._now())

    def _begin_at(self, what: str) -> None:
        """Without a record: the end of a shard, or its tip, as of this moment."""
        if not self.begins:
            moment = datetime.fromtimestamp(self._now(), UTC)
            self.begins = f"{what} at {moment:%Y-%m-%dT%H:%M:%SZ}"

    @property
    def drained(self) -> bool:
        """See `feeds.Following`: a closed shard ends."""
        return self._drained and self._ahead is None

    def keep_alive(self) -> Sequence[Page]:
        """See `feeds.Following`: with a sequence number an iterator is made anew at any time; one
        without is used before it expires: every ten minutes, or earlier where calls of this are so
        rare that the next one would be too late."""
        now = self._clock()
        idle, seldom = now - self._iterated, now - self._kept
        self._kept = now
        is_due = idle >= _KEEP or idle + seldom >= LIFETIME
        if self._after is not None or self._drained or self._iterator is None or not is_due:
            return ()
        return self.read(0.0)

    def bookmark(self, place: Place | None) -> Bookmark:
        """See `feeds.Following`."""
        if place is None:
            return Bookmark(None, self._beginning.to_mark())
        through = self._ages.of_bookmark(place)
        if through <= self._read_at - _KEPT:
            through = self._read_at
        mark: dict[str, Any] = {"through": int(through)}
        if self._beginning.begun > through > 0:
            mark["backlog"] = [int(self._beginning.begun), int(self._read_at)]
        return Bookmark(place, mark)

    def acknowledge(self, bookmark: Bookmark) -> None:
        """See `feeds.Following`: a stream keeps its records for 24 hours, whoever has read them."""
        self._acknowledged = bookmark.place or self._acknowledged

    def status(self) -> Mapping[str, Any]:
        """See `feeds.Following`. The lag is 0 only where all was read and is stored."""
        now = self._now()
        stored = max(filter(None, (self._acknowledged, self._ages.asked)), default=None)
        is_tip = self._drained or self._reach.is_at_tip
        is_done = is_tip and self._ahead is None and stored == self._origin.after
        through = now if is_done else self._ages.at(stored)
        last = datetime.fromtimestamp(self._created, UTC).isoformat() if self._created else None
        return {
            "connected": not self._closed,
            "current": None if self._after is None else str(self._after),
            "confirmed": None if self._acknowledged is None else str(self._acknowledged),
            "lag_seconds": round(max(0.0, now - through), 3) if through else None,
            "throttled": self._pace.is_throttled,
            **_window(now, through),
            "details": {
                "shard": self._shard,
                "tip_reached": is_tip,
                "last_record": last,
                "next_read_in": round(max(0.0, self._due() - self._clock()), 3),
            },
        }

    def close(self) -> None:
        """See `feeds.Following`: there is nothing to close."""
        self._closed = True


def _window(now: float, through: float) -> dict[str, float]:
    """How far back the stream reaches, and how long until what comes next leaves it."""
    left = {"window_left_seconds": round(max(0.0, through + RETENTION - now), 3)} if through else {}
    return {"window_seconds": RETENTION, **left}
