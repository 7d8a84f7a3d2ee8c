"""The circuit breaker: a server that fails again and again is not tried for a while.

A table and values; no clock, no I/O. While it is open nothing is tried; then one probe is: a
connection and, if something is queued, one batch. See `write` for what counts as a failure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from penstock.model.machine import step


class BreakerState(Enum):
    """Where a breaker is; the values are what /status and /metrics say."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class BreakerEvent(Enum):
    """What happens to a breaker."""

    SUCCEEDED = "succeeded"  # the server stored something, or a probe found it well
    FAILED = "failed"  # a failure, and not yet the last that we bear
    TRIPPED = "tripped"  # the failure that was one too many
    WAITED = "waited"  # the timeout has passed


_S, _E = BreakerState, BreakerEvent
TABLE: Mapping[tuple[BreakerState, BreakerEvent], BreakerState] = {
    (_S.CLOSED, _E.SUCCEEDED): _S.CLOSED,
    (_S.CLOSED, _E.FAILED): _S.CLOSED,
    (_S.CLOSED, _E.TRIPPED): _S.OPEN,
    (_S.OPEN, _E.WAITED): _S.HALF_OPEN,
    (_S.HALF_OPEN, _E.SUCCEEDED): _S.CLOSED,
    (_S.HALF_OPEN, _E.TRIPPED): _S.OPEN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """A breaker with its counts; each event gives another one.

    `threshold` failures in a row open it for `timeout` seconds. `since` is when it opened, on the
    caller's clock.
    """

    threshold: int = 5
    timeout: float = 30.0
    state: BreakerState = BreakerState.CLOSED
    failures: int = field(default=0)
    since: float = 0.0

    def succeeded(self) -> "Breaker":
        """The server did what was asked."""
        return replace(self, state=step(TABLE, self.state, BreakerEvent.SUCCEEDED), failures=0)

    def failed(self, now: float) -> "Breaker":
        """It did not. While half-open one failure is enough."""
        failures = self.failures + 1
        trips = failures >= self.threshold or self.state is BreakerState.HALF_OPEN
        state = step(TABLE, self.state, BreakerEvent.TRIPPED if trips else BreakerEvent.FAILED)
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
        return replace(self, state=step(TABLE, self.state, BreakerEvent.WAITED))
