"""What users call: one host that processes a feed's partitions, with its threads and signals."""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from penstock.config.pipeline import is_name
from penstock.feeds import At, Feed, KnowsReader
from penstock.leases import Lease, LeaseStore, open_store
from penstock.leases.holder import instance_name
from penstock.model.change import OnError
from penstock.model.errors import LeaseLost, PenstockError, SettingsError, Unavailable
from penstock.model.position import PartitionId
from penstock.model.problems import refused
from penstock.process.backoff import Clock
from penstock.process.closing import Closes
from penstock.process.notebook import Drawn
from penstock.process.processes import StopRequest, elapsed, ending_at_signals
from penstock.processor.faults import DeadLetter, DeadLetterFolder, OnFault, Retries
from penstock.processor.host import LOOK, Host
from penstock.processor.observer import Observer
from penstock.processor.partition import LeasedGaps, PartitionWork
from penstock.processor.settings import Processing
from penstock.reading.host_leases import HostLeases
from penstock.reading.host_positions import HostPositions
from penstock.stream.opening import feed_of
from penstock.stream.records import record_reader

# Seconds: how long one read may wait while each partition has a thread.
READ_TIMEOUT = 0.25

log = logging.getLogger("penstock")


class Processor(Drawn, Closes):
    """Processes the partitions of a feed together with other hosts, which have the same `name` and
    `leases`: docs/how-to/process.md.

    `kind` is a feed's name, as `type` in a pipeline file, and `settings` are its keys; or it is a
    feed. `leases` is a store's URL, or a store. `observer` makes an observer for each partition:
    its class, say. `at`: where the first host of all begins. `host`: this host's name; by default
    `run` draws one. Of two live processes with one name, the second takes nothing that the first
    holds. A pipeline of the same name in the same store is refused. `on_error(error, context)` is
    called with each error. `dead_letters`: a folder, or what is called with (changes, context,
    error). The other keywords are those of `Processing`. Does no I/O until `run`. Raises
    SettingsError.
    """

    def __init__(
        self,
        kind: str | Feed,
        settings: Mapping[str, Any] | None = None,
        *,
        leases: str | LeaseStore,
        name: str,
        observer: Callable[[], Observer],
        at: At = None,
        host: str = "",
        on_error: OnFault | None = None,
        dead_letters: str | Path | DeadLetter | None = None,
        clock: Clock = elapsed,
        **processing: Any,
    ) -> None:
        if not is_name(name):
            raise SettingsError(
                f"invalid processor name {name!r}", "processor", hint="letters, digits, '_' and '-'"
            )
        self.name = name
        self.host = host  # or drawn by `run`: this process may be forked before
        self.feed = feed_of(kind, settings or {})
        if self.feed.on_gap == "resnapshot":
            raise SettingsError(
                "on_gap: resnapshot needs snapshots, which a processor does not take",
                "processor",
                hint="write on_gap: fail or continue",
            )
        self.processing = _processing(processing)
        if isinstance(dead_letters, str | Path):
            dead_letters = DeadLetterFolder(dead_letters)
        if self.processing.exhausted == "dead-letter" and dead_letters is None:
            raise SettingsError(
                "exhausted: dead-letter needs dead letters",
                "processor",
                hint="give dead_letters, a folder",
            )
        self._store = ClosableStore(open_store(leases) if isinstance(leases, str) else leases)
        # The rows of this host in the store, and its leases on them.
        self.positions = HostPositions(
            self._store, f"{name}/{self.feed.backend}", host, clock=clock
        )
        own = HostLeases(
            self.positions,
            self.processing,
            clock=clock,
            knows_reader=isinstance(self.feed, KnowsReader),
        )
        self._leases = own
        self.gaps = LeasedGaps(self.feed, own)
        self.faults = Retries(
            own, self.processing, on_error=on_error, dead_letter=dead_letters, on_fatal=self._fail
        )
        unreadable: OnError = "stop" if self.processing.unreadable == "stop" else "dead-letter"
        work = PartitionWork(
            feed=self.feed,
            leases=own,
            gaps=self.gaps,
            processing=self.processing,
            observer=observer,
            decoder=self.feed.decoder("json", unreadable),
            read=record_reader(self.feed, unreadable),
            faults=self.faults,
            clock=clock,
        )
        self.node = Host(work, at, self._replace_thread)
        self._threads: list[threading.Thread] = []  # that take turns
        self._stop = StopRequest()
        self._signal = ""  # that asked for the stop
        self._error: BaseException | None = None  # what `run` raises at its end

    def __repr__(self) -> str:
        return f"<Processor {self.name} of {self.feed.backend} on {self.host}>"

    def facts(self) -> Mapping[str, Any]:
        """What Jupyter shows."""
        counts = self.node.counts
        return {
            "partitions held": len(self.node.owned),
            "partitions of all hosts": len(self.node.last.rows),
            "changes processed": counts["events"],
            "lost connections": counts["reconnects"],
            "errors": self.faults.errors,
            "dead letters": self.faults.letters,
        }

    @property
    def partitions(self) -> list[PartitionId]:
        """The partitions that this host holds now."""
        return list(self.node.owned)

    def stop(self) -> None:
        """Ends `run` in order; from any thread, or a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Processes until `stop`, or in the main thread SIGTERM or SIGINT; then finishes the
        batches that were begun, checkpoints, closes all observers and releases the leases. Raises
        what the operator must act on: SettingsError, and Rejected after the last try of a batch.
        """
        self.host = self.positions.rows.owner = self.host or instance_name()
        with ending_at_signals(self._stopping):
            for _ in range(self.processing.threads):
                self._start_thread()
            over = threading.Event()
            threading.Thread(target=self._keep_alive, args=(over,), daemon=True).start()
            try:
                while not self._stop.is_set():
                    self._stop.wait(self.node.tick())
            finally:
                if self._signal:
                    log.info("stopping: %s", self._signal)
                self._leave()
                over.set()
                self.node.turns.close()
                self._leases.close()  # threads that hang go on, and write nothing
                self._store.close()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Does what `stop` does."""
        self.stop()

    def _leave(self) -> None:
        self.node.leave()
        deadline = time.monotonic() + self.processing.patience
        while self.node.owned and time.monotonic() < deadline:
            self.node.tick()
            self.node.left.wait(0.1)
            self.node.left.clear()
        self._leases.give_back()
        if self.node.owned:
            log.warning(
                "%d observers did not end in %.0f s; their leases expire",
                len(self.node.owned),
                self.processing.patience,
            )

    def _keep_alive(self, over: threading.Event) -> None:
        try:
            while not over.wait(LOOK):
                self.node.keep_alive()
        except BaseException as error:  # a defect
            self._fail(error)

    def _start_thread(self) -> None:
        name = f"penstock-{len(self._threads)}"
        self._threads.append(threading.Thread(target=self._work, name=name, daemon=True))
        self._threads[-1].start()

    def _replace_thread(self) -> None:
        """One hangs in a read; when it is back, one ends."""
        if self._threads:
            self._start_thread()

    def _work(self) -> None:
        turns = self.node.turns
        while (job := turns.next(None)) is not None:
            alone = len(turns) <= self.processing.threads
            try:
                if not self.node.take_turn(job, READ_TIMEOUT if alone else 0.0):
                    return
            except BaseException as error:  # a defect, or what an observer must not raise
                log.exception("a thread ends")
                self.node.drop(job)
                self._fail(error)
                return

    def _fail(self, error: BaseException) -> None:
        if self._error is None:
            self._error = (
                PenstockError.of(error, "processing") if isinstance(error, Exception) else error
            )
        self._stop.set()

    def _stopping(self, signal: str) -> None:
        self._signal = signal
        self.stop()


def _processing(keywords: Mapping[str, Any]) -> Processing:
    try:
        return Processing.model_validate(keywords)
    except ValidationError as error:
        raise refused(error, Processing) from None


Answer = TypeVar("Answer")


class ClosableStore(LeaseStore):
    """A `LeaseStore` that stays closed after `close`: threads that hang may come back later."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self._is_closed = False

    def get(self, name: str) -> Lease | None:
        return self._call(lambda: self._store.get(name))

    def list(self, prefix: str) -> Sequence[Lease]:
        return self._call(lambda: self._store.list(prefix))

    def put(self, lease: Lease) -> Lease:
        return self._call(lambda: self._store.put(lease))

    def put_all(self, leases: Sequence[Lease]) -> Sequence[Lease | LeaseLost]:
        return self._call(lambda: self._store.put_all(leases))

    def delete(self, lease: Lease) -> None:
        self._call(lambda: self._store.delete(lease))

    def close(self) -> None:
        """Closes the store for good."""
        self._is_closed = True
        self._store.close()

    def _call(self, call: Callable[[], Answer]) -> Answer:
        if self._is_closed:
            raise Unavailable("the processor has ended: its store is closed", "processor")
        try:
            return call()
        finally:
            if self._is_closed:  # meanwhile: the call may have opened it again
                self._store.close()
