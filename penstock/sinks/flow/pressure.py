"""Back-pressure: the server's load, judged by how long it takes to answer.

A table and values; no clock, no I/O. What counts is the server's own time: from when a message (or
batch) was its turn, after those sent before it, until its acknowledgement. So a long queue, which
is our doing, is not slowness; a server that is slow with each message is.

It gets worse when even the fastest of the last `WORSE_AFTER` answers took too long, and better
after `BETTER_AFTER` answers in a row, or all of the last `CALM` seconds, that did not: one slow
answer on a busy machine changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum

from penstock.model.machine import step

WORSE_AFTER = 3
BETTER_AFTER = 16
CALM = 10.0  # seconds


class PressureState(Enum):
    """How we send; the values are what /status and /metrics say."""

    NORMAL = "normal"
    SLOW = "slow"
    CRITICAL = "critical"


class PressureEvent(Enum):
    """What was seen in the answers."""

    BRISK = "brisk"  # no answer was slow for a while
    DRAGGING = "dragging"  # even the fastest of the last ones was at the slow threshold
    CHOKING = "choking"  # even the fastest was at the critical threshold
    RESTED = "rested"  # nothing is in flight any more, and the pause is over


_S, _E = PressureState, PressureEvent
TABLE: Mapping[tuple[PressureState, PressureEvent], PressureState] = {
    (_S.NORMAL, _E.BRISK): _S.NORMAL,
    (_S.NORMAL, _E.DRAGGING): _S.SLOW,
    (_S.NORMAL, _E.CHOKING): _S.CRITICAL,
    (_S.SLOW, _E.BRISK): _S.NORMAL,
    (_S.SLOW, _E.DRAGGING): _S.SLOW,
    (_S.SLOW, _E.CHOKING): _S.CRITICAL,
    # Late answers to what was sent before the pause: it lasts as long as it lasts.
    (_S.CRITICAL, _E.BRISK): _S.CRITICAL,
    (_S.CRITICAL, _E.DRAGGING): _S.CRITICAL,
    (_S.CRITICAL, _E.CHOKING): _S.CRITICAL,
    (_S.CRITICAL, _E.RESTED): _S.SLOW,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How to send: limits of a batch are divided by `divisor`, waits multiplied by `patience`."""

    divisor: int = 1
    patience: int = 1
    paused: bool = False


PACES: Mapping[PressureState, Pace] = {
    PressureState.NORMAL: Pace(),
    PressureState.SLOW: Pace(divisor=4, patience=4),
    PressureState.CRITICAL: Pace(divisor=4, patience=4, paused=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pressure:
    """The monitor; each event gives another one. Durations and times in seconds.

    An answer that took exactly a threshold counts as above it. `recent` are the last answers,
    newest last, and `brisk` how many in a row were not slow; `since` is when the state was entered
    and `slow_at` when an answer was last slow, on the caller's clock.
    """

    slow: float = 0.1
    critical: float = 0.5
    pause: float = 1.0
    state: PressureState = PressureState.NORMAL
    since: float = 0.0
    recent: tuple[float, ...] = ()
    brisk: int = 0
    slow_at: float = 0.0

    @property
    def pace(self) -> Pace:
        """How to send now."""
        return PACES[self.state]

    def answered(self, took: float, now: float) -> "Pressure":
        """An answer that took the server so long."""
        recent = (*self.recent, took)[-WORSE_AFTER:]
        if took < self.slow:
            seen = replace(self, recent=recent, brisk=self.brisk + 1)
        else:
            seen = replace(self, recent=recent, brisk=0, slow_at=now)
        event = seen._judge(now)
        return seen._after(event, now) if event else seen

    def waiting(self, age: float, now: float) -> "Pressure":
        """An answer has been due for `age`: a server that does not answer at all is judged, too,
        once it could have been slow to the end `WORSE_AFTER` times."""
        if age < WORSE_AFTER * self.critical:
            return self
        return self._after(PressureEvent.CHOKING, now)

    def idle(self, now: float) -> "Pressure":
        """Nothing is due: a slow time that is long enough ago is over."""
        if self.state is not PressureState.SLOW or now - self.slow_at < CALM:
            return self
        return self._after(PressureEvent.BRISK, now)

    def resting(self, now: float) -> float:
        """Seconds until the pause may end; 0 unless it is paused."""
        return max(self.since + self.pause - now, 0.0) if self.pace.paused else 0.0

    def rested(self, now: float) -> "Pressure":
        """Nothing is in flight: a pause that is over ends, and the server is judged anew."""
        if not self.pace.paused or self.resting(now):
            return self
        return replace(self._after(PressureEvent.RESTED, now), recent=(), brisk=0, slow_at=now)

    def _judge(self, now: float) -> PressureEvent | None:
        fastest = min(self.recent) if len(self.recent) == WORSE_AFTER else 0.0
        if fastest >= self.critical:
            return PressureEvent.CHOKING
        if fastest >= self.slow:
            return PressureEvent.DRAGGING
        calm = self.brisk >= BETTER_AFTER or now - self.slow_at >= CALM
        return PressureEvent.BRISK if self.brisk and calm else None

    def _after(self, event: PressureEvent, now: float) -> "Pressure":
        state = step(TABLE, self.state, event)
        return self if state is self.state else replace(self, state=state, since=now)
