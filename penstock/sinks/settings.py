"""Settings that sinks share: batches, flow control, and what becomes of poison."""

from pydantic import Field, model_validator

from penstock.model.change import OnError
from penstock.model.settings import Duration, Settings, Size


class BatchSettings(Settings):
    """When a batch goes out: whichever limit is reached first.

    The limits stop gathering. Under `exactly-once` they also bound what is sent as one, with one
    exception: where `max_size` or `max_bytes` has its default, a backlog goes in batches of up to
    1,000 changes or 4 MiB, which is what servers do fastest.
    """

    max_size: int = Field(default=500, ge=1, le=1000)
    """Changes; 1,000 is the server's limit."""
    max_wait: Duration = Field(default=0.1, ge=0)
    """Seconds that a change may wait for more."""
    max_bytes: Size = Field(default=256 * 1024, ge=1)
    """Bytes; a larger change is a batch of its own."""


class PressureSettings(Settings):
    """When the server counts as slow. Exactly at a threshold counts as above it."""

    slow_threshold: Duration = Field(default=0.1, gt=0)
    """From so many seconds on that the server takes to acknowledge what is its turn, batches are
    smaller, and wait longer."""
    critical_threshold: Duration = Field(default=0.5, gt=0)
    """And from so many on there are pauses, and a warning."""
    pause: Duration = Field(default=1.0, ge=0)
    """Seconds of a pause."""

    @model_validator(mode="after")
    def _rising(self) -> "PressureSettings":
        if self.critical_threshold < self.slow_threshold:
            raise ValueError("critical_threshold must not be below slow_threshold")
        return self


class BreakerSettings(Settings):
    """When nothing is sent to a server that fails, and for how long."""

    threshold: int = Field(default=5, ge=1)
    """Failures in a row."""
    timeout: Duration = Field(default=30.0, gt=0)
    """Seconds until it is tried again."""


class SinkSettings(Settings):
    """What the shelf of any sink understands."""

    batch: BatchSettings = BatchSettings()
    pressure: PressureSettings = PressureSettings()
    breaker: BreakerSettings = BreakerSettings()

    on_error: OnError = "stop"
    """What becomes of a change that cannot be encoded or stored, or came as an ERROR; `penstock
    run` has one for each backend instead."""
    suspend_after: int = Field(default=10, ge=1)
    """Changes of one table in a row that are too large, until the table is suspended."""
