"""Waiting until the pipeline is ours: another instance has its lease, or reads its source.

Costs a request to the store, or to the sources, a few times a second: no Spark and no JVM, unless
`spark.standby: warm` asks to have it ready.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from penstock.config import Pipeline
from penstock.feeds import Holder, KnowsReader
from penstock.model.errors import PenstockError, Unavailable
from penstock.process.backoff import delays
from penstock.reading.positions import Positions
from penstock.service.ownership import Ownership
from penstock.service.writer_lease import WriterLease

# Seconds between two attempts.
_AGAIN = 0.5
# Sources that are asked at once.
_THREADS = 16

log = structlog.get_logger("penstock")


class Standby:
    """`reason`: the instance or reader that is waited for, for /health and /status; None while this
    instance does not wait. `error`: why it cannot be found out whether it must, "" if it can."""

    def __init__(self, pipeline: Pipeline, ownership: Ownership, stop: threading.Event) -> None:
        self.reason: str | None = None
        self.error = ""
        # Whether we ever waited: what the other instance held may take a moment to be free.
        self.waited = False
        self._pipeline = pipeline
        self._ownership = ownership
        self._writer = WriterLease(pipeline, ownership.instance)
        self._stop = stop
        self._positions: dict[int, Positions] = {}  # by the backend's number

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
        """Returns True once the pipeline is ours, False after a stop.

        `meanwhile` is called after every attempt. Raises SettingsError.
        """
        waits = delays()
        while not self._stop.is_set():
            try:
                reason = self._obstacle()
                waits, self.error = delays(), ""
            except Unavailable as error:
                self.error = str(error)
                log.warning("not available; trying again", error=str(error))
                meanwhile()
                self._stop.wait(next(waits))
                continue
            if reason is None:
                if self.reason is not None:
                    log.warning("taking over", instance=self._ownership.instance)
                self.reason = None
                return True
            self._wait_for(reason)
            meanwhile()
            self._stop.wait(_AGAIN)
        return False

    def _wait_for(self, reason: str) -> None:
        self.waited = True
        if reason != self.reason:
            log.warning(f"standby: {reason}")
        self.reason = reason

    def _obstacle(self) -> str | None:
        """Why we must wait; None if we need not."""
        if (owner := self._ownership.attempt()) is not None:
            self._writer.release()  # the owner may wait for it
            return f"another instance owns the pipeline: {owner.text}"
        if (reason := self._writer.attempt(self._ownership.predecessor)) is not None:
            return reason
        # In parallel: each server that is away costs a timeout.
        numbers = range(len(self._pipeline.backends))
        with ThreadPoolExecutor(min(len(numbers), _THREADS), "standby") as threads:
            held = list(threads.map(self._holders, numbers))
        # A source that has another reader must not hold up the other backends.
        if not all(held):
            return None
        return "; ".join(f"{each.text}, which is not ours" for holders in held for each in holders)

    def _holders(self, number: int) -> Sequence[Holder]:
        backend = self._pipeline.backends[number]
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
            self._claim(number)
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

    def _claim(self, number: int) -> None:
        if number not in self._positions:
            self._positions[number] = Positions.of(
                self._pipeline.positions,
                self._pipeline.name,
                self._pipeline.backends[number].name,
                self._pipeline.checkpoint,
                owner=self._ownership.instance,
            )
        self._positions[number].claim()
