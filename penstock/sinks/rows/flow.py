"""Flow control for any sink: back-pressure by the server's answer time, and a circuit breaker.

The state machines are tables and values, without a clock or I/O. `Flow` holds the current ones,
feeds them with what publishers see, and says when one changes.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from penstock.model.machine import MachineEnum, step
from penstock.sinks import Notify, ignore
from penstock.sinks.settings import BreakerSettings, PressureSettings

WORSE_AFTER = 3
BETTER_AFTER = 16
CALM = 10.0  # seconds
_INTERRUPTIONS = 3  # chains broken by others before we chain no more


class PressureState(MachineEnum):
    """How we send; the values are what /status and /metrics say."""

    NORMAL = "normal"
    SLOW = "slow"
    CRITICAL = "critical"


class PressureEvent(MachineEnum):
    """What was seen in the answers."""

    BRISK = "brisk"  # no answer was slow for a while
    DRAGGING = "dragging"  # even the fastest of the last ones was at the slow threshold
    CHOKING = "choking"  # even the fastest was at the critical threshold
    RESTED = "rested"  # nothing is in flight any more, and the pause is over


_S, _E = PressureState, PressureEvent
PRESSURES: Mapping[tuple[PressureState, PressureEvent], PressureState] = {
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
    """The server's load, judged by how long it takes to answer; each event gives another one.
    Durations and times in seconds.

    What counts is the server's own time: from when a message (or batch) was its turn, after those
    sent before it, until its acknowledgement. So a long queue, which is our doing, is not slowness;
    a server that is slow with each message is. It gets worse when even the fastest of the last
    `WORSE_AFTER` answers took too long, and better after `BETTER_AFTER` answers in a row, or all of
    the last `CALM` seconds, that did not: one slow answer on a busy machine changes nothing.

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
        return PACES[self.state]

    def answered(self, took: float, now: float) -> "Pressure":
        """An answer that took the server so long."""
        is_brisk = took < self.slow
        seen = Pressure(  # `replace` takes five times as long
            slow=self.slow,
            critical=self.critical,
            pause=self.pause,
            state=self.state,
            since=self.since,
            recent=(*self.recent, took)[-WORSE_AFTER:],
            brisk=self.brisk + 1 if is_brisk else 0,
            slow_at=self.slow_at if is_brisk else now,
        )
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
        state = step(PRESSURES, self.state, event)
        return self if state is self.state else replace(self, state=state, since=now)


class BreakerState(Enum):
    """Where a breaker is; the values are what /status and /metrics say."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class BreakerEvent(Enum):
    SUCCEEDED = "succeeded"  # the server stored something, or a probe found it well
    FAILED = "failed"  # a failure, and not yet the last that we bear
    TRIPPED = "tripped"  # the failure that was one too many
    WAITED = "waited"  # the timeout has passed


_B, _F = BreakerState, BreakerEvent
BREAKERS: Mapping[tuple[BreakerState, BreakerEvent], BreakerState] = {
    (_B.CLOSED, _F.SUCCEEDED): _B.CLOSED,
    (_B.CLOSED, _F.FAILED): _B.CLOSED,
    (_B.CLOSED, _F.TRIPPED): _B.OPEN,
    (_B.OPEN, _F.WAITED): _B.HALF_OPEN,
    (_B.HALF_OPEN, _F.SUCCEEDED): _B.CLOSED,
    (_B.HALF_OPEN, _F.TRIPPED): _B.OPEN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """A server that fails again and again is not tried for a while; each event gives another one.
    While it is open nothing is tried; then one probe is: a connection and, if something is queued,
    one batch. See `write` for what counts as a failure.

    `threshold` failures in a row open it for `timeout` seconds. `since` is when it opened, on the
    caller's clock.
    """

    threshold: int = 5
    timeout: float = 30.0
    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    since: float = 0.0

    def succeeded(self) -> "Breaker":
        return replace(self, state=step(BREAKERS, self.state, BreakerEvent.SUCCEEDED), failures=0)

    def failed(self, now: float) -> "Breaker":
        """It did not. While half-open one failure is enough."""
        failures = self.failures + 1
        trips = failures >= self.threshold or self.state is BreakerState.HALF_OPEN
        state = step(BREAKERS, self.state, BreakerEvent.TRIPPED if trips else BreakerEvent.FAILED)
        return replace(self, state=state, failures=failures, since=now if trips else self.since)

    def remaining(self, now: float) -> float:
        """Seconds until a probe may be sent; 0 unless it is open."""
        if self.state is not BreakerState.OPEN:
            return 0.0
        return max(self.since + self.timeout - now, 0.0)

    def waited(self, now: float) -> "Breaker":
        """Half-open once the timeout has passed: exactly then, too."""
        if self.state is not BreakerState.OPEN or self.remaining(now):
            return self
        return replace(self, state=step(BREAKERS, self.state, BreakerEvent.WAITED))


_WORDS: Mapping[PressureState, str] = {
    PressureState.NORMAL: "",
    PressureState.SLOW: "the server takes long to answer: smaller batches, longer waits",
    PressureState.CRITICAL: "the server hardly answers: sending pauses",
}


class Flow:
    """The health of a session's server; it outlives a write, as the server does. Publishers report
    what they send and what is answered, the write reports failures."""

    def __init__(
        self,
        pressure: PressureSettings,
        breaker: BreakerSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.pressure = Pressure(
            slow=pressure.slow_threshold, critical=pressure.critical_threshold, pause=pressure.pause
        )
        self.pace = self.pressure.pace  # how to send now
        self.breaker = Breaker(threshold=breaker.threshold, timeout=breaker.timeout)
        self._clock = clock
        self._listener: Notify = ignore.report
        self._turn: float | None = None  # since when an answer is due
        self._slowest: float | None = None
        self._broken = 0

    def listen(self, notify: Notify) -> None:
        """Calls this at every change."""
        self._listener = notify

    @property
    def states(self) -> dict[str, str]:
        """Where both machines are, for the status."""
        return {"pressure": self.pressure.state.value, "breaker": self.breaker.state.value}

    def scaled(self, limit: int) -> int:
        """A limit of messages or bytes at the present pace; 1 at least."""
        return max(limit // self.pace.divisor, 1)

    @property
    def is_only_writer(self) -> bool:
        """False after other writers stored messages between ours several times."""
        return self._broken < _INTERRUPTIONS

    def interrupted(self) -> None:
        """Another writer stored a message between ours."""
        self._broken += 1

    def sent(self) -> None:
        """Something is about to be sent that will be answered."""
        if self._turn is None:
            self._turn = self._clock()

    def answered(self, at: float, *, more: bool) -> None:
        """The answer that was due is there, since `at` or later; `more` are due after it."""
        if self._turn is not None:
            took = max(at - self._turn, 0.0)
            self._slowest = max(took, self._slowest or 0.0)
            self._judged(self.pressure.answered(took, self._clock()))
        self._turn = max(at, self._turn or at) if more else None

    def waiting(self, age: float = 0.0) -> None:
        """An answer is still due: that to a request for `age` seconds, if there is one."""
        now = self._clock()
        if self._turn is not None:
            age = max(age, now - self._turn)
        if age:
            self._judged(self.pressure.waiting(age, now))

    def forget(self) -> None:
        """A new connection: no answer is due on it."""
        self._turn = None

    def held(self, flying: int) -> bool:
        """Whether sending pauses; a pause that is over ends here, once nothing is in flight."""
        if self.pace.paused and not flying:
            self._judged(self.pressure.rested(self._clock()))
        return self.pace.paused

    def idle(self) -> None:
        """Nothing is in flight, and nothing is queued."""
        if self.pressure.state is not PressureState.NORMAL:
            now = self._clock()
            self._judged(self.pressure.rested(now).idle(now))

    @property
    def pause(self) -> float:
        """Seconds that the pause will last yet."""
        return self.pressure.resting(self._clock())

    def slowest(self) -> float | None:
        """Milliseconds of the slowest answer since this was asked last; None without any."""
        slowest, self._slowest = self._slowest, None
        return None if slowest is None else round(slowest * 1000, 1)

    def succeeded(self) -> None:
        """The server stored something, or a probe found it well."""
        self._broke(self.breaker.succeeded())

    def failed(self, error: str) -> None:
        """Something could not be done, and will be tried again."""
        self._broke(self.breaker.failed(self._clock()), error)

    def closed_for(self) -> float:
        """Seconds until anything may be tried; 0 makes an open breaker half-open."""
        if self.breaker.state is BreakerState.CLOSED:
            return 0.0
        self._broke(self.breaker.waited(self._clock()))
        return self.breaker.remaining(self._clock())

    def _judged(self, pressure: Pressure) -> None:
        before, self.pressure = self.pressure.state, pressure
        if pressure.state is not before:
            self.pace = pressure.pace
            self._report("pressure", pressure.state.value, _WORDS[pressure.state])

    def _broke(self, breaker: Breaker, error: str = "") -> None:
        before, self.breaker = self.breaker.state, breaker
        if breaker.state is not before:
            self._report("breaker", breaker.state.value, error)

    def _report(self, machine: str, state: str, why: str) -> None:
        counts = {f"{machine}_transitions": 1, f"{machine}_entered": {state: 1}}
        self._listener({machine: state, f"{machine}_reason": why, **counts})
