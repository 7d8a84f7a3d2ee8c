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
    """Most changes of a batch; 1,000 is the server's limit."""
    max_wait: Duration = Field(default=0.1, ge=0)
    """Seconds that a change may wait for more changes."""
    max_bytes: Size = Field(default=256 * 1024, ge=1)
    """Most bytes of a batch; a larger change is a batch of its own."""


class PressureSettings(Settings):
    """When the server counts as slow. Exactly at a threshold counts as above it."""

    slow_threshold: Duration = Field(default=0.1, gt=0)
    """If the server takes so many seconds to acknowledge a batch once it is that batch's turn,
    batches are smaller, and wait longer."""
    critical_threshold: Duration = Field(default=0.5, gt=0)
    """If the server takes so many seconds, the sink pauses, and warns."""
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
    """Failures in a row until the sink sends nothing."""
    timeout: Duration = Field(default=30.0, gt=0)
    """Seconds until the sink tries the server again."""


class SinkSettings(Settings):
    """What the shelf of any sink understands."""

    batch: BatchSettings = BatchSettings()
    pressure: PressureSettings = PressureSettings()
    breaker: BreakerSettings = BreakerSettings()

    on_error: OnError = "stop"
    """What happens to a change that cannot be encoded or stored, or came as an ERROR; with
    `penstock run` each backend has its own."""
    suspend_after: int = Field(default=10, ge=1)
    """So many changes of one table in a row that are too large suspend the table."""
