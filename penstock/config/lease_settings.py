"""How hosts divide the partitions of one feed by leases."""

from typing import Annotated

from pydantic import Field, model_validator

from penstock.model.settings import Duration, Settings

Seconds = Annotated[Duration, Field(gt=0)]


class Sharing(Settings):
    """The intervals and limits of one host of a processor."""

    renew: Seconds = 17.0
    """Between two renewals of the leases that are held; the first comes after half of it."""
    acquire: Seconds = 13.0
    """Between two looks at all leases: for free and expired ones, and for a fair share."""
    expire: Seconds = 60.0
    """A lease that has not changed for so long is taken from its owner."""
    min_partitions: int = Field(default=0, ge=0)
    """Take at least so many, whatever the share of others is."""
    max_partitions: int = Field(default=0, ge=0)
    """Take at most so many; 0: no limit."""

    @model_validator(mode="after")
    def _intervals_fit(self) -> "Sharing":
        if self.expire < 2 * self.renew or self.expire < 2 * self.acquire:
            raise ValueError(
                "expire must be at least twice as long as renew and acquire: a lease would expire"
                " while its owner lives"
            )
        if self.max_partitions and self.min_partitions > self.max_partitions:
            raise ValueError("min_partitions is more than max_partitions")
        return self
