"""When a pipeline stops being healthy: settings of the pipeline file, which imports nothing else of
this room.
"""

from pydantic import Field

from penstock.model.settings import Duration, Settings, Size


class Thresholds(Settings):
    """When things count as wrong; exactly at a threshold counts as above it."""

    stalled_after: Duration = Field(default=30.0, gt=0)
    """Behind and not moving, or disconnected, for more seconds than this is unhealthy."""
    lag_limit: Size = Field(default=64 * 2**20, ge=0)
    """More bytes of unconfirmed log than this count as "behind"."""
    lag_age: Duration = Field(default=300.0, gt=0)
    """And so does a change in flight that is older than so many seconds, whatever the source
    counts."""
    at_risk: float = Field(default=0.25, ge=0, lt=1)
    """Less than this share of the source's history left before the stored position: at risk."""

    @property
    def bounds(self) -> dict[str, float]:
        """What the board must know to tell since when a number is above its bound."""
        return {"lag_bytes": self.lag_limit - 1}
