"""Waiting until the pipeline is ours: another instance has its lease, reads its source, or
writes to its sink.

Costs a request to the store, or to the sources, a few times a second: no Spark and no JVM, unless
`spark.standby: warm` asks to have it ready. The lease in the positions store divides only instances
that have that store in common. A source does not divide the others where anyone may read it, or
where theirs is another one, so the sink does: whoever has no lease there waits.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import structlog

from penstock.config import Backend, Pipeline
from penstock.config.parts import PipelinePart
from penstock.feeds import Holder, KnowsReader
from penstock.model.errors import LeaseLost, PenstockError, SettingsError, Unavailable
from penstock.process.backoff import delays
from penstock.reading.positions import Positions
from penstock.service.ownership import Owner, Ownership, positions_of

_AGAIN = 0.5  # seconds between two attempts
_THREADS = 16  # sources that are asked at once

log = structlog.get_logger("penstock")


class WriterLease:
    """This instance's part in the lease of one pipeline at its sink. Always free where the sink
    keeps no leases. Also where each source has a single reader: another pipeline of the same name
    may read another source."""

    def __init__(self, pipeline: Pipeline, instance: str) -> None:
        self._pipeline = pipeline.name
        self._ownership: Ownership | None = None
        self._refusal = ""
        if (store := pipeline.sink.leases()) is not None:
            self._store = store
            self._ownership = Ownership(self._store, pipeline.name, instance=instance)

    @property
    def lost(self) -> bool:
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
        row = self._store.get(f"owner:{self._pipeline}")
        if row is not None and row.owner == predecessor.instance:
            with suppress(LeaseLost):  # somebody was faster
                self._store.put(replace(row, owner="", continuation=""))

    def release(self) -> None:
        if self._ownership is not None:
            self._ownership.release()


class Standby(PipelinePart):
    """`reason`: the instance or reader that is waited for, for /health and /status; None while this
    instance does not wait, or could not take over: then `error` says why, which else is ""."""

    def __init__(self, pipeline: Pipeline, ownership: Ownership, stop: threading.Event) -> None:
        self.reason: str | None = None
        self.error = ""
        # Whether we ever waited: what the other instance held may take a moment to be free.
        self.waited = False
        self._pipeline, self._ownership = pipeline, ownership
        self._writer = WriterLease(pipeline, ownership.instance)
        self._stop = stop
        self._positions: dict[str, Positions] = {}  # by backend

    @property
    def lost(self) -> str:
        """Which lease another instance took from us; "" while none."""
        if self._ownership.lost:
            return f"the lease of {self._pipeline.name} is another instance's"
        return "the lease at the sink is another instance's" if self._writer.lost else ""

    @property
    def is_ours(self) -> bool:
        """Whether the pipeline is ours still, and no stop was asked for."""
        return not (self.lost or self._stop.is_set())

    def release(self) -> None:
        """Gives the lease at the sink back: first, because the next owner waits for both."""
        self._writer.release()

    def wait(self, meanwhile: Callable[[], None]) -> bool:
        """Returns True once the pipeline is ours, False after a stop. `meanwhile` is called after
        every attempt. Raises SettingsError."""
        waits = delays()
        while not self._stop.is_set():
            try:
                reason = self._obstacle()
                waits, self.error = delays(), ""
            except Unavailable as error:
                self.reason, self.error = None, str(error)
                log.warning("not available; trying again", error=str(error))
                meanwhile()
                self._stop.wait(next(waits))
                continue
            if reason is None:
                if self.waited:
                    log.warning("taking over", instance=self._ownership.instance)
                self.reason = None
                return True
            self.waited = True
            if reason != self.reason:
                log.warning(f"standby: {reason}")
            self.reason = reason
            meanwhile()
            self._stop.wait(_AGAIN)
        return False

    def _obstacle(self) -> str | None:
        """Why we must wait; None if we need not."""
        if (owner := self._ownership.attempt()) is not None:
            self._writer.release()  # the owner may wait for it
            return f"another instance owns the pipeline: {owner.text}"
        if (reason := self._writer.attempt(self._ownership.predecessor)) is not None:
            return reason
        # In parallel: each server that is away costs a timeout.
        with ThreadPoolExecutor(_THREADS, "standby") as threads:
            held = list(threads.map(self._holders, self._pipeline.backends))
        # A source that has another reader must not hold up the other backends.
        if not (held and all(held)):
            return None
        return "; ".join(f"{each.text}, which is not ours" for holders in held for each in holders)

    def _holders(self, backend: Backend) -> Sequence[Holder]:
        feed = backend.feed()
        if not isinstance(feed, KnowsReader):
            return ()
        try:
            holders = feed.holders()
        except PenstockError:
            return ()  # the start will say what is wrong, or wait
        before = self._ownership.predecessor
        if before is not None and holders:
            # First the rows, without which its reader process may not connect again.
            self._claim(backend.name)
        for holder in holders:
            if before is not None and before.readers.get(backend.name) == holder.reader:
                # Its lease is ours: it is frozen, or cut off, or has not noticed.
                log.warning(
                    "ending the reader of an instance that lost its lease",
                    backend=backend.name,
                    reader=holder.reader,
                    instance=before.instance,
                )
                feed.evict(holder)
        return holders

    def _claim(self, name: str) -> None:
        if name not in self._positions:
            self._positions[name] = positions_of(self._pipeline, name, self._ownership.instance)
        self._positions[name].claim()
