"""How a host shares a feed with others: intervals, limits, checkpoints, retries."""

from contextlib import closing
from typing import Literal

from pydantic import Field, field_validator

from penstock.config import Backend, Checkpoint, Deployment, Sharing
from penstock.config.pipeline import Name, Seconds, state_folder
from penstock.leases import open_store
from penstock.leases.kinds import kind_of
from penstock.model.errors import SettingsError


class Processing(Sharing):
    """The intervals of `Processor`, and the section `processor` of its file."""

    poll: Seconds = 5.0
    """Until a partition that had nothing is read again, where the source is polled."""
    read_timeout: Seconds = 600.0
    """A read that takes longer is reported, and its partition's lease is not renewed."""
    patience: Seconds = 30.0
    """That a stop waits for observers; the leases of those that do not end expire."""
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


class ProcessorFile(Deployment):
    """The file of `penstock process`: a pipeline file without a sink and Spark."""

    name: Name = "penstock-processor"
    processor: Processing = Processing()

    def verify_name(self) -> None:
        """Raises SettingsError where the file has no `name`, and there are places of the name that
        it had by default in earlier versions, a pipeline's. Does I/O; raises Unavailable."""
        former = str(Deployment.model_fields["name"].default)
        if "name" in self.model_fields_set:
            return
        url = self.positions
        if not self.model_fields_set & {"positions", "state"}:
            file = state_folder(former) / "positions.db"
            if not file.exists():
                return
            url = f"sqlite:///{file}"
        with closing(open_store(url)) as store:
            rows = [row for each in self.backends for row in store.list(f"{former}/{each.name}/")]
        if any(kind_of(row) == "" for row in rows):
            raise SettingsError(
                f"there are positions of the name `{former}`, which a processor's file without"
                f" `name` had in earlier versions; now that is `{self.name}`",
                "processor.name-changed",
                hint=f"write `name: {former}` to go on there, or another name to begin anew",
            )

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
