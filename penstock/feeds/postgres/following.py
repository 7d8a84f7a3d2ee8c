"""One slot, being read: moves bytes between the wire and the pure parts, and keeps time."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock.feeds import Following, HistoryLost
from penstock.feeds.postgres.collecting import Collector, Diverged, PageLimits, PageTimer
from penstock.feeds.postgres.connect import Ordinary, address
from penstock.feeds.postgres.failures import is_internal
from penstock.feeds.postgres.framing import Framer
from penstock.feeds.postgres.history import CAUSES, HistoryVerdict, KnownHistory, diverged, known_of
from penstock.feeds.postgres.progress import LogProgress
from penstock.feeds.postgres.settings import PostgresSettings
from penstock.feeds.postgres.slot import Slot, replication_command
from penstock.feeds.postgres.streams import Streams
from penstock.feeds.postgres.transport import Gatherer, Transport, start
from penstock.feeds.postgres.watch import SideWork, SlotMemory
from penstock.feeds.shared import lost
from penstock.model.errors import PenstockError, Unavailable
from penstock.model.page import Page
from penstock.model.position import Bookmark, PartitionId, Place
from penstock.wire.pgoutput.frames import standby_status
from penstock.wire.pgoutput.lsn import format_lsn


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """Where a following begins, and on which history; `connection` is for replication and free,
    `reader` its name at the server. `lsn` is the commit of the transaction that `after` is in,
    whose rest may be needed; 0 for where the slot is. `allowed`: see `LogProgress`. `despite`:
    there is a hole after `after`. `anchored`: the log should have the transaction of `after`."""

    connection: Ordinary
    reader: int
    slot: Slot
    known: KnownHistory
    after: Place | None
    lsn: int
    allowed: int | None
    despite: bool = False
    anchored: bool = False


def history_lost(
    settings: PostgresSettings, verdict: HistoryVerdict, after: Place | None
) -> HistoryLost:
    """The error for the gap that a verdict finds after a place."""
    detail = f"{settings.slot} at {address(settings)}: {verdict.detail}"
    hint = CAUSES[verdict.cause][1]
    return lost(verdict.cause, after, detail, policy=settings.on_gap, hint=hint)


class PostgresFollowing(Following):
    """The implementation of `feeds.Following` for a replication slot. One thread reads; any may
    call `acknowledge` and `status`."""

    def __init__(
        self,
        settings: PostgresSettings,
        partition: PartitionId,
        begin: Beginning,
        memory: SlotMemory,
    ) -> None:
        slot, after, now = begin.slot, begin.after, time.monotonic()
        self._settings, self._begin, self._memory = settings, begin, memory
        self._connected = True  # until the first error, or `close`; never again
        self._pages = 0  # given so far: with the log's end, a text that changes with every event
        self._silence = _Silence(settings.silence, now)
        # When a page is cut.
        self._page_timer = PageTimer(settings.page_wait, now)
        # What is durable, and what the server was told of it.
        self._progress = LogProgress(
            durable=slot.confirmed,
            after=None if after is None else (after, begin.lsn),
            allowed=begin.allowed,
            patience=min(settings.silence, slot.sender_timeout or settings.silence),
            now=now,
        )
        # Transactions in progress.
        self._streams = Streams(memory=settings.memory, folder=settings.spill)
        self._side = SideWork(settings, slot, memory, now)
        # Bytes of the wire -> pages.
        self._framer = Framer(
            Collector(
                partition,
                after=after,
                limits=PageLimits(size=settings.page_size, rows=settings.page_rows),
                describe=self._side.describe,
                era=begin.known.era,
                anchored=begin.anchored,
                mark=begin.known.text if memory.marks else "",
            ),
            progress=self._progress,
            streams=self._streams,
        )
        command = replication_command(settings, slot, begin.lsn)
        self._transport: Transport = start(begin.connection, command)
        self._gatherer = Gatherer(self._transport)

    def read(self, timeout: float) -> Sequence[Page]:
        try:
            return self._read(time.monotonic() + timeout)
        except PenstockError as error:
            self._connected = False
            if is_internal(error):
                self._memory.streaming = False
            if isinstance(error, Diverged):
                known, after = self._begin.known, self._begin.after
                raise history_lost(self._settings, diverged(known, after), after) from error
            raise

    def _read(self, deadline: float) -> list[Page]:
        framer, timer = self._framer, self._page_timer
        while True:
            pages = framer.scan(time.time())
            now = time.monotonic()
            due = timer.due_in(now, holds=framer.holds, between=framer.between)
            if not pages and due <= 0:
                pages = framer.flush(time.time())
            if not pages or framer.busy:  # else the next call begins with nothing to scan
                self._report(now)
            if pages:
                timer.cut(now, sum([page.count for page in pages]))
                self._pages += len(pages)
                return pages
            if framer.busy:
                continue
            if waits := due < math.inf:
                rest, timeout = due, 0.0  # a trickle of single rows gathers
            else:
                rest = min(timer.rest(now), deadline - now)
                timeout = min(deadline - now, self._progress.next_in(now))
            if taken := self._gatherer.take(rest, timeout):
                self._silence.heard(now)
                for data in taken:
                    framer.feed(data)
            elif not waits:
                if now >= deadline:
                    return []
                self._silence.check(now)

    def keep_alive(self) -> Sequence[Page]:
        now = time.monotonic()
        self._silence.heard(now)  # nobody listened
        try:
            self._report(now)
        except PenstockError:
            self._connected = False
            raise
        return ()

    def _report(self, now: float) -> None:
        self._progress.take_noted()
        self._side.turn(now)
        if self._progress.due(now):
            self._send(now)

    def _send(self, now: float) -> None:
        received, durable = self._progress.reporting(now)
        self._transport.send(
            standby_status(
                written=received,
                flushed=durable,
                applied=durable,
                now_us=round(time.time() * 1_000_000),
                reply=self._silence.asks(now),
            )
        )

    def acknowledge(self, bookmark: Bookmark) -> None:
        place, mark = bookmark.place, bookmark.mark
        if place is not None:
            self._progress.note(place)
        stored = None if mark is None else known_of(mark, None).flushed
        confirmed = self._begin.slot.confirmed
        self._progress.allowed = None if stored is None else max(stored, confirmed)

    def stored(self, place: Place) -> None:
        """See `feeds.HearsStored`."""
        self._progress.stored = place

    def bookmark(self, place: Place | None) -> Bookmark | None:
        """See `feeds.Following`. What was read before a gap stays of the history before it: if
        it is lost on the way, the gap is found again, and found larger."""
        begin = self._begin
        if begin.despite and begin.after is not None and (place is None or place < begin.after):
            return None
        known = replace(begin.known, flushed=self._progress.after(place))
        return Bookmark(place, known.to_json())

    @property
    def begins(self) -> str:
        """See `feeds.Following`: an LSN."""
        return format_lsn(max(self._begin.lsn, self._begin.slot.confirmed))

    def status(self) -> Mapping[str, Any]:
        """See `feeds.Following`. The lag reaches to the newest WAL that we know of; `lag_seconds`
        is the age of the oldest commit that is not durable yet."""
        progress, slot = self._progress, self._begin.slot
        oldest = progress.oldest
        current = max(progress.received, slot.current)
        confirmed = progress.reported or slot.confirmed
        seconds = max(0.0, time.time() - oldest / 1_000_000) if oldest else 0.0
        lag = max(0, current - progress.durable)
        return {
            "connected": self._connected,
            "reader": self._begin.reader if self._connected else None,
            "current": format_lsn(current),
            "confirmed": format_lsn(confirmed),
            "lag": lag,
            "lag_unit": "bytes",
            "lag_bytes": lag,
            "lag_seconds": round(seconds, 3),
            "at_risk": self._side.at_risk,
            **self._side.window,
            "clock": progress.clock,
            "token": self._token(),
            "details": {
                **slot.status(),
                **self._side.status(),
                "system_identifier": self._begin.known.system,
                "timeline": self._begin.known.timeline,
                "era": self._begin.known.era,
                "current_lsn": current,
                "received_lsn": progress.received,
                "flushed_lsn": progress.durable,
                "confirmed_lsn": confirmed,
                "streaming": slot.protocol > 1 and self._settings.streaming,
                "transactions": self._framer.transactions,
                "keepalives": progress.keepalives,
                "in_flight": progress.in_flight,
                "in_progress": len(self._streams),
                "in_progress_bytes": self._streams.held,
                "spilled_bytes": self._streams.spilled,
            },
        }

    def _token(self) -> str:
        """What moves with pages and WAL. A keepalive is an idle token, unless the server's log goes
        further than what it has sent: then it should send, or read on."""
        progress = self._progress
        is_idle = progress.received >= self._side.newest
        idle = f"/{progress.keepalives}" if is_idle else ""
        return f"{self._pages}/{progress.received}{idle}"

    def close(self) -> None:
        if self._connected:
            try:
                self._report(time.monotonic())
                self._send(time.monotonic())
            except PenstockError:
                pass  # the server keeps what it was not told of: that is safe
        self._connected = False
        self._transport.close()
        self._streams.close()
        self._side.close()


class _Silence:
    """How long the server is silent: it is asked for an answer after a quarter of `limit` s."""

    def __init__(self, limit: float, now: float) -> None:
        self._limit = limit
        self._heard_at = now  # the last bytes of any kind
        self._asked_at: float | None = None  # the first question since, which has no answer yet

    def heard(self, now: float) -> None:
        self._heard_at, self._asked_at = now, None

    def asks(self, now: float) -> bool:
        """Whether a report that is sent now asks for an answer."""
        asks = now - self._heard_at > self._limit / 4
        if asks and self._asked_at is None:
            self._asked_at = now
        return asks

    def check(self, now: float) -> None:
        """Raises Unavailable. Without a question meanwhile the silence is ours: we slept."""
        silent, asked = now - self._heard_at, self._asked_at
        if silent > self._limit and asked is not None and now - asked > self._limit / 2:
            raise Unavailable(
                f"the server sent nothing for {silent:.0f} s",
                "postgres.server-silent",
                hint="the server or the network hangs; penstock connects again by itself",
            )
