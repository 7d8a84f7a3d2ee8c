"""One shard, being read: GetRecords again and again, an iterator made anew where it expired."""

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

from penstock.errors import ShardIteratorExpired, Unavailable
from penstock.feeds import HistoryLost
from penstock.feeds.dynamodb.beginning import ShardBeginning, is_before
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
from penstock.feeds.dynamodb.pacing import ShardPace
from penstock.page import Page
from penstock.position import Bookmark, PartitionId, Place
from penstock.wire.dynamodb.records import Answer, PageContext, place_of, sequence_number

# Seconds: an iterator without a sequence number is used before it expires; how often the mark of a
# shard without records is renewed, and how far clocks may differ.
_KEEP, _RENEW, _SKEW = 10 * 60.0, 5 * 60.0, 60.0


class DynamodbFollowing:
    """The implementation of `feeds.Following`. `lost` makes the error for records that are gone
    (None: there were none), and remembers it for the next `follow`."""

    def __init__(
        self,
        client: StreamsClient,
        partition: PartitionId,
        *,
        arn: str,
        shard: str,
        table: str,
        beginning: ShardBeginning,
        pace: ShardPace,
        lost: Callable[[Place | None, str], HistoryLost | None],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._client, self._partition = client, partition
        self._arn, self._shard, self._table = arn, shard, table
        self._beginning, self._pace, self._lost = beginning, pace, lost
        self._clock, self._now = clock, now
        self._after = beginning.after
        self._scans = False  # AT_TIMESTAMP is not known there: from the horizon, passing over
        self._iterator: str | None = beginning.live_iterator(now()) or None
        self._iterated = clock()
        self._ahead: Page | None = None
        self._read_at = now()
        self._created = 0.0
        self._drained = self._closed = False
        self._acknowledged: Place | None = None
        self.begins = "" if beginning.after is None else sequence_number(beginning.after)

    def read(self, timeout: float) -> Sequence[Page]:
        """See `feeds.Following`. One poll: a call, and up to five until the tip is found."""
        if self._closed:
            raise Unavailable(f"{self._partition} was closed")
        deadline = self._clock() + timeout
        while not self._drained or self._ahead is not None:
            if self._ahead is not None:
                page, self._ahead = self._ahead, None
                return [page]
            now, due = self._clock(), self._pace.due()
            if due > now:
                time.sleep(max(0.0, min(due, deadline) - now))
                if due > deadline:
                    break
            self._ahead = self._call()
            if self._ahead is None and not self._pace.seeks_the_tip and self._clock() >= deadline:
                break
        return []

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

    def _call(self) -> Page | None:
        """One call of GetRecords; the page, if there are records for us."""
        try:
            if self._iterator is None:
                self._iterator = self._new_iterator()
                self._iterated = self._clock()
            self._pace.reads(self._clock())
            answer, body = self._client.records(self._iterator)
        except ClientError as error:
            self._refused(error)
            return None
        self._iterator, self._iterated = answer.next, self._clock()
        self._drained = answer.next is None
        self._pace.found(len(answer.records), self._clock())
        if not answer.records:
            self._note_tip()
            return None
        return self._page(answer, body)

    def _new_iterator(self) -> str:
        beginning = self._beginning
        if self._after is not None:
            kind, sequence = "AFTER_SEQUENCE_NUMBER", sequence_number(self._after)
            return self._client.iterator(self._arn, self._shard, kind, sequence=sequence)
        if beginning.since is not None and not self._scans:
            try:
                return self._client.iterator(
                    self._arn, self._shard, "AT_TIMESTAMP", since=beginning.since
                )
            except ClientError as error:
                if code_of(error) != REFUSED:
                    raise
            self._scans = True
        return self._client.iterator(self._arn, self._shard, "TRIM_HORIZON")

    def _refused(self, error: ClientError) -> None:
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
            self._pace.found(0, self._clock())
            return
        if code in (TRIMMED, NOT_FOUND):
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
        self._created = records[-1].created
        self._read_at = self._now()
        if skip == len(records):
            return None
        self.begins = self.begins or records[skip].sequence
        return Page(
            partition=self._partition,
            first=place_of(records[skip].sequence),
            last=self._after,
            count=len(records) - skip,
            captured_at=int(self._read_at * 1e6),
            context=PageContext(self._table, skip).pack(),
            payload=body,
        )

    def _note_tip(self) -> None:
        """A shard that has no records up to now begins here, whatever it began with."""
        now, iterator = self._now(), self._iterator
        is_tip = self._after is None and self._pace.is_tip_reached and iterator is not None
        if is_tip and now - self._beginning.asked >= _RENEW:
            self._beginning = ShardBeginning(
                since=now - _SKEW, asked=round(now, 3), iterator=iterator or ""
            )

    @property
    def drained(self) -> bool:
        """See `feeds.Following`: a closed shard ends."""
        return self._drained and self._ahead is None

    def keep_alive(self) -> Sequence[Page]:
        """See `feeds.Following`: with a sequence number an iterator is made anew at any time; one
        without is used before it expires, at most every ten minutes."""
        idle = self._clock() - self._iterated >= _KEEP
        if self._after is not None or self._drained or self._iterator is None or not idle:
            return ()
        return self.read(0.0)

    def bookmark(self, place: Place | None) -> Bookmark:
        """See `feeds.Following`."""
        if place is None:
            return Bookmark(None, self._beginning.to_mark() | {"read": int(self._read_at)})
        return Bookmark(place, {"read": int(self._read_at)})

    def acknowledge(self, bookmark: Bookmark) -> None:
        """See `feeds.Following`: a stream keeps its records for 24 hours, whoever has read them."""
        self._acknowledged = bookmark.place or self._acknowledged

    def status(self) -> Mapping[str, Any]:
        """See `feeds.Following`."""
        tip = self._drained or self._pace.is_tip_reached
        behind = 0.0 if tip or not self._created else max(0.0, self._now() - self._created)
        last = datetime.fromtimestamp(self._created, UTC).isoformat() if self._created else None
        return {
            "connected": not self._closed,
            "current": None if self._after is None else str(self._after),
            "confirmed": None if self._acknowledged is None else str(self._acknowledged),
            "lag_seconds": round(behind, 3),
            "throttled": self._pace.is_throttled,
            "details": {"shard": self._shard, "tip_reached": tip, "last_record": last},
        }

    def close(self) -> None:
        """See `feeds.Following`: there is nothing to close."""
        self._closed = True
