"""The health of a session's server: the pressure, the breaker, and a stopwatch.

The state machines are values (`pressure`, `breaker`); this holds the current ones, feeds them with
what publishers see, and says when one changes. It outlives a write, as the server does.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

from penstock.sinks import Notify, ignore
from penstock.sinks.flow.breaker import Breaker, BreakerState
from penstock.sinks.flow.pressure import Pressure, PressureState
from penstock.sinks.settings import SinkSettings


class Flow:
    """Owned by one session. Publishers report what they send and what is answered, the write
    reports failures."""

    def __init__(self, settings: SinkSettings, clock: Callable[[], float] = time.monotonic) -> None:
        pressure, breaker = settings.pressure, settings.breaker
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
        report: dict[str, Any] = {machine: state, f"{machine}_reason": why}
        counts = {f"{machine}_transitions": 1, f"{machine}_entered:{state}": 1}
        self._listener({**report, "counts": counts})


_INTERRUPTIONS = 3  # chains broken by others before we chain no more
_WORDS: Mapping[PressureState, str] = {
    PressureState.NORMAL: "",
    PressureState.SLOW: "the server takes long to answer: smaller batches, longer waits",
    PressureState.CRITICAL: "the server hardly answers: sending pauses",
}
