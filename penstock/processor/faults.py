"""What becomes of errors: the callback, a budget of tries for each batch, dead letters."""

import logging
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from penstock.model.errors import LeaseLost, PenstockError, Rejected
from penstock.model.position import PartitionId
from penstock.processor.observer import Changes, PartitionContext
from penstock.processor.progress import STORE_ERRORS
from penstock.processor.settings import Processing
from penstock.reading.host_leases import HostLeases

# Seconds before the first further try of a batch, doubled for each, and the longest.
FIRST, LONGEST = 0.5, 60.0

log = logging.getLogger("penstock")

OnFault = Callable[[Exception, PartitionContext], None]
DeadLetter = Callable[[Changes, PartitionContext, Exception], None]


class Retries:
    """What becomes of errors. `waits`: of partitions whose batch has just failed, the seconds until
    this host may take them again. `on_fatal` gets what ends the processor."""

    def __init__(
        self,
        leases: HostLeases,
        processing: Processing,
        *,
        on_error: OnFault | None,
        dead_letter: DeadLetter | None,
        on_fatal: Callable[[Exception], None],
    ) -> None:
        self.waits: dict[PartitionId, float] = {}
        self.errors = 0
        self.letters = 0
        self._leases, self._processing, self._on_error = leases, processing, on_error
        self._dead_letter = dead_letter
        self.on_fatal = on_fatal

    def report_error(self, error: Exception, context: PartitionContext) -> None:
        """An error of the observer, or of the source. Raises nothing."""
        self.errors += 1
        if isinstance(error, PenstockError):
            log.error("%s: %s", context.partition, error)
        else:
            # Its text may hold row data: it is the callback's.
            log.error("%s: the observer raised %s", context.partition, type(error).__name__)
        if self._on_error is not None:
            try:
                self._on_error(error, context)
            except Exception:
                log.exception("on_error failed")

    def set_aside(
        self, error: Exception, context: PartitionContext, changes: Changes | None
    ) -> bool:
        """The observer failed with these changes (None: with none). Whether they were set aside,
        and processing goes on after them; else they come again."""
        name, first = context.partition, "" if changes is None else changes.first
        before, count = self._leases.failures(name)
        count = count + 1 if before == first else 1
        if self._processing.retries is not None and count > self._processing.retries:
            if self._processing.exhausted == "stop" or changes is None:
                self.on_fatal(_stopped(error, context, count))
            elif self._store(changes, context, error):
                return True
        with suppress(LeaseLost, *STORE_ERRORS):
            self._leases.note_failures(name, first, count)
        self.waits[name] = min(FIRST * 2 ** min(count - 1, 10), LONGEST)
        return False

    def opened(self, partition: PartitionId) -> None:
        """An observer was opened: failures to open one are forgotten."""
        first, count = self._leases.failures(partition)
        if count and not first:  # they are no tries of the first batch, nor of a later opening
            with suppress(LeaseLost, *STORE_ERRORS):
                self._leases.note_failures(partition, "", 0)

    def _store(self, changes: Changes, context: PartitionContext, error: Exception) -> bool:
        assert self._dead_letter is not None
        try:
            self._dead_letter(changes, context, error)
        except Exception as failure:
            self.report_error(failure, context)
            return False
        self.letters += 1
        log.error(
            "%s: set aside %d changes from %s", context.partition, len(changes), changes.first
        )
        return True


def _stopped(error: Exception, context: PartitionContext, count: int) -> Rejected:
    found = Rejected(
        f"the observer failed {count} times with the same changes of {context.partition}:"
        f" {type(error).__name__}",
        "processor.observer-failed",
        hint="correct the observer, or set exhausted to dead-letter, and start again",
    )
    found.__cause__ = error
    return found


class DeadLetterFolder:
    """Writes each batch that is set aside to a file of its own, an Arrow stream (read it with
    `pyarrow.ipc.open_stream`), whose schema's metadata say why. The same batch is the same file."""

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(folder)

    def __call__(self, changes: Changes, context: PartitionContext, error: Exception) -> None:
        """See `DeadLetter`. Durable when it returns."""
        name = f"{context.backend}-{changes.partition}-{changes.first}"
        path = self._folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.arrow"
        why = {"error": type(error).__name__, "partition": changes.partition, "host": context.host}
        batch = changes.batch.replace_schema_metadata(why)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        with partial.open("wb") as file:
            with pa.ipc.new_stream(file, batch.schema) as stream:
                stream.write_batch(batch)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
