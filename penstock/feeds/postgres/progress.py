"""What may be acknowledged, and when to say so. Pure: places and times come in, LSNs go out.

A slot's confirmed_flush_lsn is a promise: the server forgets every transaction that committed
before it. So it stops below the first transaction that is not wholly durable; and when nothing is
in flight it follows the server's own WAL, or else an idle slot would pin the log for ever.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from penstock.model.position import Place

MOVED = 1.0  # seconds between reports while the durable position moves
SAME = 10.0  # and while it does not
_NOWHERE = Place("", -1)


# A place -> the LSN up to which everything inside is done when that place is durable, or 0.
Inside = Callable[[Place], int]


@dataclass(slots=True)
class _Sent:
    """A transaction whose changes were handed out, or a run of `count` of them: `end` may be
    acknowledged after `last`; what comes before it, when `inside` says so."""

    last: Place
    end: int
    committed_at: int
    count: int = 1
    inside: Inside | None = None

    def done(self, place: Place) -> int:
        if self.last <= place:
            return self.end
        return self.inside(place) if self.inside is not None else 0


class LogProgress:
    """One stream's received and durable positions; times are seconds of any one clock. `durable` is
    the slot's confirmed_flush_lsn; `after` the place that we follow from, and the LSN up to which
    the source is not needed any more when that place is durable. `allowed` is how far may be
    acknowledged at most, None for as far as is durable: it is raised when a mark is stored. A
    report is due three times in `patience` seconds, after which the server may take us for dead.

    `opened`, `committed` and `keepalive` are called in the order of the stream; `acknowledged`
    whenever something became durable."""

    def __init__(
        self,
        *,
        durable: int = 0,
        after: tuple[Place, int] | None = None,
        allowed: int | None = None,
        patience: float = 30.0,
        now: float = 0.0,
    ) -> None:
        self.received = self.durable = durable
        self.reported = self.keepalives = 0
        self.allowed = allowed
        self.clock: float | None = None  # the server's, in its last keepalive: seconds since 1970
        self._patience = patience
        self._sent: deque[_Sent] = deque()
        if after is not None:
            # The reader has it, and that is not to say that it is durable.
            place, lsn = after
            self._sent.append(_Sent(place, max(durable, lsn), 0))
        self._open: int | None = None  # when the open transaction was committed
        self._asked = False  # whether the server asked for an answer
        self._reported_at = now
        self._acknowledged: Place | None = None
        # What is durable by now: set by any thread, and taken by the one that reads.
        self._noted: Place | None = None
        self.stored: Place | None = None  # durable, and perhaps not to be acknowledged yet

    @property
    def in_flight(self) -> int:
        """Transactions handed out that are not durable yet."""
        return sum(sent.count for sent in tuple(self._sent)) + (self._open is not None)

    @property
    def oldest(self) -> int | None:
        """When the oldest commit that is not durable was (us since 1970). From any thread."""
        stored = self.stored or _NOWHERE
        first = next((each for each in tuple(self._sent) if each.last > stored), None)
        return self._open if first is None else first.committed_at or None

    def opened(self, committed_at: int) -> None:
        """A transaction's changes are being handed out; its end is not known yet."""
        self._open = committed_at

    def committed(
        self, last: Place | None, end: int, count: int = 1, inside: Inside | None = None
    ) -> None:
        """A transaction ended at `end`, or `count` of them, which `inside` tells apart; `last` is
        the last change, None if there was none for us."""
        committed_at, self._open = self._open, None
        self.received = max(self.received, end)
        if last is None:
            self._note_end(end)
        else:
            is_first = not self._sent
            self._sent.append(_Sent(last, end, committed_at or 0, count, inside))
            # A page may end between the last change and its commit, and be durable already.
            if is_first and self._acknowledged is not None:
                self.acknowledged(self._acknowledged)

    def keepalive(self, end: int, *, asked: bool, clock: float | None = None) -> None:
        """The server has sent everything that committed before `end`; `asked` for an answer."""
        self.count_keepalives(1, asked=asked, clock=clock)
        self.received = max(self.received, end)
        if self._open is None:
            self._note_end(end)

    def count_keepalives(self, count: int, *, asked: bool, clock: float | None) -> None:
        """Counts keepalives whose ends go to `committed`."""
        self.keepalives += count
        self.clock = clock
        self._asked = self._asked or asked

    def _note_end(self, end: int) -> None:
        """Nothing for us up to `end`: it is done when everything before it is."""
        if self._sent:
            self._sent[-1].end = max(self._sent[-1].end, end)
        else:
            self.durable = max(self.durable, end)

    def acknowledged(self, place: Place) -> None:
        """Everything up to and including `place` is durable."""
        self._acknowledged = place
        while self._sent:
            self.durable = max(self.durable, self._sent[0].done(place))
            if self._sent[0].last > place:
                break
            self._sent.popleft()

    def note(self, place: Place) -> None:
        """Everything up to and including `place` is durable; never back. From any thread."""
        if self._noted is None or place > self._noted:
            self._noted = place

    def take_noted(self) -> None:
        if self._noted is not None and self._noted is not self._acknowledged:
            self.acknowledged(self._noted)

    def after(self, place: Place | None) -> int:
        """What `durable` would be once `place` were durable. From any thread."""
        durable = self.durable
        if place is None:
            return durable
        # Copying a deque is one step, whatever the reading thread does to it meanwhile.
        for sent in tuple(self._sent):
            durable = max(durable, sent.done(place))
            if sent.last > place:
                break
        return durable

    @property
    def _reportable(self) -> int:
        return self.durable if self.allowed is None else min(self.durable, self.allowed)

    def due(self, now: float) -> bool:
        waited = now - self._reported_at
        return (
            self._asked
            or (waited >= MOVED and self._reportable > self.reported)
            or waited >= min(SAME, self._patience / 3)
        )

    def next_in(self, now: float) -> float:
        """Seconds until a report may be due, at most one."""
        waited = now - self._reported_at
        return max(0.0, min(MOVED, MOVED - waited if self._reportable > self.reported else MOVED))

    def reporting(self, now: float) -> tuple[int, int]:
        """Notes that a report is sent; returns what it says: received and durable."""
        self._asked = False
        self._reported_at = now
        self.reported = self._reportable
        return self.received, self.reported
