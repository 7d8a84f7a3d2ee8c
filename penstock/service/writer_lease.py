"""Which instance of a pipeline writes: a lease at the sink, for instances that share no positions.

The lease in the positions store divides only those that have that store in common. A source that
anyone may read does not divide the others, so the sink does: whoever has no lease there waits.
"""

from contextlib import suppress
from dataclasses import replace

import structlog

from penstock.config import Pipeline
from penstock.feeds import KnowsReader
from penstock.model.errors import LeaseLost, SettingsError
from penstock.service.ownership import Owner, Ownership
from penstock.sinks import KeepsLeases

log = structlog.get_logger("penstock")


class WriterLease:
    """This instance's part in the lease of one pipeline at its sink. Always free where each source
    has a single reader, and where the sink keeps no leases."""

    def __init__(self, pipeline: Pipeline, instance: str) -> None:
        self._pipeline = pipeline.name
        self._ownership: Ownership | None = None
        self._refusal = ""
        sink = pipeline.sink.sink()
        feeds = [backend.feed() for backend in pipeline.backends]
        if isinstance(sink, KeepsLeases) and not all(isinstance(f, KnowsReader) for f in feeds):
            self._store = sink.leases()
            self._ownership = Ownership(self._store, pipeline.name, instance=instance)

    @property
    def lost(self) -> bool:
        """Whether another instance took it from us."""
        return self._ownership is not None and self._ownership.lost

    def attempt(self, predecessor: Owner | None) -> str | None:
        """Takes the lease if it is free; else why we must wait. `predecessor`: who lost the
        pipeline's own lease to us, and this one with it. Raises Unavailable."""
        if self._ownership is None:
            return None
        try:
            if predecessor is not None and not self._ownership.held:
                self._end(predecessor)
            rival = self._ownership.attempt()
        except SettingsError as error:
            if str(error) != self._refusal:
                self._refusal = str(error)
                log.warning(
                    "an instance with other positions cannot be found: the sink keeps no lease",
                    error=self._refusal,
                )
            return None
        if rival is None:
            return None
        return (
            f"another instance writes to the sink, and does not share our positions:"
            f" {rival.text}; set positions to a store that all instances reach (postgresql://,"
            f" nats://, etcd:// or mongodb://), or another name than {self._pipeline} if this is"
            " another pipeline"
        )

    def _end(self, predecessor: Owner) -> None:
        name = f"owner:{self._pipeline}"
        row = self._store.get(name)
        if row is not None and row.owner == predecessor.instance:
            with suppress(LeaseLost):  # somebody was faster
                self._store.put(replace(row, owner="", continuation=""))

    def release(self) -> None:
        """Gives the lease back, if we have it."""
        if self._ownership is not None:
            self._ownership.release()
