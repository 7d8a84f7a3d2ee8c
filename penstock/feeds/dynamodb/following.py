"""One shard, being read: GetRecords again and again, an iterator made anew where it expired."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from botocore.exceptions import ClientError

from penstock.feeds.dynamodb import failures
from penstock.feeds.dynamodb.beginning import LIFETIME, RETENTION, ShardBeginning
from penstock.feeds.dynamodb.streams import ServedShard
from penstock.feeds.dynamodb.walk import TO_THE_TIP, RecordTimes, ShardWalk
from penstock.model.errors import ShardIteratorExpired, Unavailable
from penstock.model.page import Page
from penstock.model.position import Bookmark, Place
from penstock.wire.dynamodb.decoder import Answer, PageContext, place_of, sequence_number

# Seconds: an iterator without a sequence number is used before it expires; how often the mark of a
# shard without new records is renewed; how far clocks may differ before requests are refused.
_KEEP, _RENEW, _SKEW = 10 * 60.0, 5 * 60.0, 5 * 60.0
# Seconds: how much longer a read waits if the pace allows it then. Its owner's period is the same
# pause, and its calls come a little earlier or later: without it, every second one would be early.
_SOON = 0.05
# Seconds: what is older when it is read comes of a stand-in that keeps records for longer. AWS
# trims what is older than a day, but not at once.
_KEPT = RETENTION + 3600.0


class DynamodbFollowing:
    """A `feeds.Following`. Only `_ages` and `_acknowledged` change in other threads."""

    def __init__(self, shard: ServedShard, beginning: ShardBeginning) -> None:
        self._shard = shard
        # Monotonic seconds, and the service's time.
        self._clock, self._now = shard.client.account.clock, shard.client.now
        self._arn = shard.streams.arn(shard.label) or ""
        # What this process knows of the shard.
        self._known = shard.client.account.shard(self._arn, shard.id)
        # What was read, and the iterator of what is read next.
        self._walk = ShardWalk(beginning, now=self._now(), clock=self._clock())
        # The last `keep_alive`, in monotonic seconds.
        self._kept = self._walk.iterated
        self._walk.go_on(self._known.walk, self._clock())
        # When the records at places were created.
        self._ages = RecordTimes(beginning.after, beginning.through)
        # A page that was read and not returned.
        self._ahead: Page | None = None
        # Whether the shard has ended, or there is nothing to read; whether this was closed.
        self._drained = self._closed = False
        self._acknowledged: Place | None = None
        # A sequence number, or what there is without a record.
        self.begins = "" if beginning.after is None else sequence_number(beginning.after)

    def read(self, timeout: float) -> Sequence[Page]:
        """See `feeds.Following`. One poll: a call, and up to five until the tip is found, or in a
        scan; what is due in a moment is waited for."""
        if self._closed:
            raise Unavailable(f"{self._shard.partition} was closed", "dynamodb")
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
            is_enough = calls >= TO_THE_TIP or not self._walk.tip.is_sought
            if self._ahead is None and is_enough and self._clock() >= deadline:
                break
        return []

    @property
    def next_in(self) -> float | None:
        """See `feeds.PacesReads`: all until the tip is read as fast as the service allows."""
        if self._walk.tip.is_sought or self._known.pace.is_throttled:
            return max(0.0, self._due() - self._clock())
        return None

    def _due(self) -> float:
        return max(self._walk.tip.not_before, self._known.pace.due(self._shard.settings.reads))

    def look_ahead(self) -> bool:
        """Reads the first page, which says where this begins; whether the service answered."""
        self._ahead = self._call()
        if self._walk.iterator is None and not self._drained:  # one that has expired is made anew
            self._ahead = self._call()
        return not self._known.pace.is_throttled

    def end(self) -> None:
        self._drained = True
        self._begin_at("end")

    def _call(self) -> Page | None:
        asked = self._clock()
        walk, known, client = self._walk, self._known, self._shard.client
        try:
            if walk.iterator is None:
                walk.iterator = self._new_iterator()
            answer, body = client.records(walk.iterator)
        except ClientError as error:
            self._refused(error, asked)
            return None
        finally:  # the service has counted the call by now
            known.pace.reads(self._clock())
        walk.iterator, walk.iterated = answer.next, self._clock()
        self._drained = answer.next is None
        known.refusals = 0
        known.pace.answered()
        walk.tip = walk.tip.found(len(answer.records), asked, self._shard.settings.poll)
        page = self._page(answer, body) if answer.records else None
        if not answer.records:
            self._note_nothing()
        known.walk = walk.remembered()
        return page

    def _new_iterator(self) -> str:
        shard, walk = self._shard, self._walk
        make, where = shard.client.iterator, (self._arn, shard.id)
        if walk.after is not None:
            sequence = sequence_number(walk.after)
            return make(*where, "AFTER_SEQUENCE_NUMBER", sequence=sequence)
        since = walk.beginning.since
        if since is not None and shard.client.has_times and not walk.scans:
            # The service refuses a time in the future: of a clock that was fast, at most so much.
            since = since if since <= self._now() else self._now() - _SKEW
            try:
                return make(*where, "AT_TIMESTAMP", since=since)
            except ClientError as error:
                if failures.code_of(error) != failures.REFUSED:
                    raise
        walk.scans = since is not None
        return make(*where, "TRIM_HORIZON")

    def _refused(self, error: ClientError, asked: float) -> None:
        """Goes on where that is possible; raises what it is otherwise."""
        code, walk, known = failures.code_of(error), self._walk, self._known
        if code == failures.EXPIRED:
            if not walk.expire():
                raise ShardIteratorExpired(
                    f"the iterator of {self._shard.partition} has expired, and its bookmark has"
                    " neither a sequence number nor a time",
                    "dynamodb.shard-iterator-expired",
                    hint="move_to a time, or trim_horizon; begin anew with a token of this"
                    " iterator",
                ) from error
            return
        if code == failures.TRIMMED and walk.is_at_the_horizon(self._now()):
            walk.iterator = None
            walk.tip = walk.tip.found(0, asked, self._shard.settings.poll)
            return
        if code in (failures.TRIMMED, failures.NOT_FOUND):
            known.walk = None  # asked again, it is with another iterator
            known.refusals += 1
            lost = self._shard.found(
                "trimmed" if code == failures.TRIMMED else "shard_gone", walk.after
            )
            if lost is None:
                self._drained = True
                return
            raise lost from error
        found = failures.failure(error, f"DynamoDB Streams of {self._shard.settings.table_name}")
        if not isinstance(found, failures.Throttled):
            raise found from error
        known.pace.throttled(self._clock())

    def _page(self, answer: Answer, body: bytes) -> Page | None:
        records = answer.records
        skip = self._walk.read(records, self._now())
        last = place_of(records[-1].sequence)
        self._ages.note(last, records[0].created, records[-1].created)
        if skip == len(records):
            return None
        self.begins = self.begins or records[skip].sequence
        return Page(
            partition=self._shard.partition,
            first=place_of(records[skip].sequence),
            last=last,
            count=len(records) - skip,
            captured_at=int(time.time() * 1e6),
            context=PageContext(self._shard.settings.table_name, skip).pack(),
            payload=body,
        )

    def _note_nothing(self) -> None:
        """A page without records. The place stays, and is known to be newer now and then."""
        walk = self._walk
        walk.read_through.found_nothing(self._now())
        if self._drained or not walk.tip.is_sought:
            self._begin_at("end" if self._drained else "tip")
        if self._drained or walk.read_through.through - self._ages.newest >= _RENEW:
            self._ages.renew(walk.read_through.through)
            if walk.after is None or walk.scans:
                walk.beginning = walk.beginning.read_through(walk.read_through.through, self._now())

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
        now, walk = self._clock(), self._walk
        idle, seldom = now - walk.iterated, now - self._kept
        self._kept = now
        is_due = idle >= _KEEP or idle + seldom >= LIFETIME
        if walk.after is not None or self._drained or walk.iterator is None or not is_due:
            return ()
        return self.read(0.0)

    def bookmark(self, place: Place | None) -> Bookmark:
        walk = self._walk
        if place is None:
            return Bookmark(None, walk.beginning.to_mark())
        through = self._ages.of_bookmark(place)
        if through <= walk.read_at - _KEPT:
            through = walk.read_at
        mark: dict[str, Any] = {"through": int(through)}
        if walk.beginning.begun > through > 0:
            mark["backlog"] = [int(walk.beginning.begun), int(walk.read_at)]
        return Bookmark(place, mark)

    def acknowledge(self, bookmark: Bookmark) -> None:
        """See `feeds.Following`: a stream keeps its records for 24 hours, whoever has read them."""
        self._acknowledged = bookmark.place or self._acknowledged

    def status(self) -> Mapping[str, Any]:
        """See `feeds.Following`. The lag is 0 only where all was read and is stored."""
        now, walk = self._now(), self._walk
        stored = max(filter(None, (self._acknowledged, self._ages.asked)), default=None)
        is_tip = self._drained or walk.read_through.is_at_tip
        is_done = is_tip and self._ahead is None and stored == walk.origin.after
        through = now if is_done else self._ages.at(stored)
        left = through + RETENTION - now
        last = datetime.fromtimestamp(walk.created, UTC).isoformat() if walk.created else None
        return {
            "connected": not self._closed,
            "current": None if walk.after is None else str(walk.after),
            "confirmed": None if self._acknowledged is None else str(self._acknowledged),
            "lag_seconds": round(max(0.0, now - through), 3) if through else None,
            "throttled": self._known.pace.is_throttled,
            # How far back the stream reaches, and how long until what comes next leaves it.
            "window_seconds": RETENTION,
            **({"window_left_seconds": round(max(0.0, left), 3)} if through else {}),
            "details": {
                "shard": self._shard.id,
                "tip_reached": is_tip,
                "last_record": last,
                "next_read_in": round(max(0.0, self._due() - self._clock()), 3),
            },
        }

    def close(self) -> None:
        self._closed = True
