"""How a host shares a feed with others: intervals, limits, checkpoints, retries."""

from typing import Annotated, Literal

from pydantic import Field, field_validator, model_validator

from penstock.config import Backend, Checkpoint, Deployment
from penstock.settings import Duration, Settings

Seconds = Annotated[Duration, Field(gt=0)]


class Processing(Settings):
    """The intervals of `Processor`, and the section `processor` of its file."""

    renew: Seconds = 17.0
    """Between two renewals of the leases that are held; the first comes after half of it."""
    acquire: Seconds = 13.0
    """Between two looks at all leases: for free and expired ones, and for a fair share."""
    expire: Seconds = 60.0
    """A lease that has not changed for so long is taken from its owner."""
    poll: Seconds = 5.0
    """Until a partition that had nothing is read again, where the source is polled."""
    read_timeout: Seconds = 600.0
    """A read that takes longer is reported, and its partition's lease is not renewed."""
    patience: Seconds = 30.0
    """That a stop waits for observers; the leases of those that do not end expire."""
    min_partitions: int = Field(default=0, ge=0)
    """Take at least so many, whatever the share of others is."""
    max_partitions: int = Field(default=0, ge=0)
    """Take at most so many; 0: no limit."""
    threads: int = Field(default=8, ge=1, le=1024)
    """Partitions that are read and processed at a time."""
    checkpoint: Literal["batch", "explicit"] | Checkpoint = "batch"
    """After each batch; when the observer says so; or after an interval or a number of changes,
    whichever is first. Unless explicit, also at close."""
    retries: int | None = Field(default=None, ge=0)
    """How often a batch whose processing fails comes again, over all hosts; null: for ever."""
    exhausted: Literal["stop", "dead-letter"] = "stop"
    """What then: the processor stops with the error, or the batch goes to the dead letters."""
    unreadable: Literal["deliver", "stop"] = "deliver"
    """A change that cannot be decoded is a record with the event type `error`, or an error."""

    @model_validator(mode="after")
    def _intervals_fit(self) -> "Processing":
        if self.expire < 2 * self.renew or self.expire < 2 * self.acquire:
            raise ValueError(
                "expire must be at least twice as long as renew and acquire: a lease would expire"
                " while its owner lives"
            )
        if self.max_partitions and self.min_partitions > self.max_partitions:
            raise ValueError("min_partitions is more than max_partitions")
        return self


class ProcessorFile(Deployment):
    """The file of `penstock process`: a pipeline file without a sink and Spark."""

    processor: Processing = Processing()

    @field_validator("backends")
    @classmethod
    def _without_a_sink(cls, backends: tuple[Backend, ...]) -> tuple[Backend, ...]:
        for each in backends:
            unused = {
                "partitions": each.partitions is not None,
                "max_gap": each.max_gap is not None,
                "on_error": each.on_error != "dead-letter",
            }
            if any(unused.values()):
                names = ", ".join(name for name, is_set in unused.items() if is_set)
                raise ValueError(
                    f"backend {each.name}: {names} has no effect with a processor: leave it out"
                    " (processor.unreadable says what becomes of changes that cannot be read)"
                )
        return backends
