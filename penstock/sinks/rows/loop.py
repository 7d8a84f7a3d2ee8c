"""The loop of a write for sinks that send over a connection: it gathers, orders and sends changes,
retries after failures, and reports what is durable meanwhile."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import numpy as np

from penstock.model.errors import Malformed, Unavailable
from penstock.model.position import PartitionId, Place
from penstock.native.batch import Batch
from penstock.process.backoff import delays
from penstock.process.histograms import observed
from penstock.process.table_counts import TableCounts
from penstock.sinks import Progress, Receipt
from penstock.sinks.rows.flow import BreakerState, Flow
from penstock.sinks.rows.intake import Gather, Order, Prefetch
from penstock.sinks.rows.measured import Sample, Sampled, counted, sampled, waited
from penstock.sinks.rows.part import Part

T = TypeVar("T")
Step: TypeAlias = Callable[[], T]

POLL = 0.1  # seconds between looks at how long an answer has been due
_IDLE = 1.0  # seconds between two looks at an idle server
# Seconds until the position is reported, after the last report, and after the last change that was
# stored: while changes keep coming, a report costs the reader as much as two pages. What is stored
# frees room in the reader's buffer: with a second, 48 MiB filled up before the first report, and
# reading and storing took turns.
_PROGRESS, _QUIET = 0.25, 0.05
_STORED = 1 << 20  # bytes stored that are reported at once: a small part of the buffer


@dataclass(slots=True)
class Tally:
    """What one write has come to so far; see `penstock.sinks.Receipt`. `fresh` is what of
    `position` was not reported yet, as `sizes` are of `batches`; `stored` counts how often it
    moved."""

    position: dict[PartitionId, Place] = field(default_factory=dict)
    fresh: dict[PartitionId, Place] = field(default_factory=dict)
    stored: int = 0
    published: int = 0
    duplicates: int = 0
    size: int = 0
    batches: int = 0
    resent: int = 0
    sizes: list[int] = field(default_factory=list)

    def count_batch(self, changes: int) -> None:
        self.batches += 1
        self.sizes.append(changes)

    def mark_stored(self, partition: PartitionId, place: Place) -> None:
        """Everything of the partition up to `place` is stored; never back. Said again, it is
        reported again: changes that come after a report may be stored already."""
        known = self.position.get(partition)
        reached = place if known is None or place > known else known
        self.position[partition] = self.fresh[partition] = reached
        self.stored += 1


# Seconds between two measurements while changes come, and changes.
_MEASURE, _ROWS = 0.5, 10_000
_NAMES = 1.0  # and between two reports of tables: a name costs more than a row

# Of the process: a write ends with its micro-batch, and what is busy does not.
_tables = TableCounts()


class PublishLatency:
    """How long the changes of one write take from the commit at the source until they are stored,
    and of which tables they are. `fields`: the percentiles of the last measurement, in
    milliseconds. `sizes`: of the batches stored, which `take` empties."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes
        self.fields: dict[str, float] = {}
        # What is measured of batches: since the last call of `stored`, and before since `measure`.
        self._sent: list[Sampled] = []
        self._stored: list[tuple[float, list[Sampled]]] = []
        self._rows = 0  # in both
        self._measured = self._taken = 0.0
        self._counts: dict[str, float] = {}

    def sent(self, changes: Batch) -> None:
        """These changes are published."""
        self._sent.append(sampled(changes))
        self._rows += len(changes)

    def stored(self) -> None:
        """What was sent counts as stored now: an upper bound, because the oldest of it was
        acknowledged before. Measures if it is time to: a page would wait for it."""
        if self._sent:
            self._stored.append((time.time(), self._sent))
            self._sent = []
        if self._rows >= _ROWS or time.monotonic() - self._measured >= _MEASURE:
            self.measure()

    def measure(self) -> None:
        """From the commit at the source until it was stored, since the last time."""
        self._measured = time.monotonic()
        stored, self._stored = self._stored, []
        self._rows = 0
        every = [one for _, several in stored for one in several]
        if batches := [one for one in every if not isinstance(one, Sample)]:
            _tables.add(batches)
        _tables.add_counted(counted(one for one in every if isinstance(one, Sample)))
        if len(times := waited(stored)):
            p50, p99 = np.percentile(times, (50, 99))
            self._counts = observed("publish", times / 1e3)
            self.fields = {
                "latency_p50_ms": round(float(p50), 1),
                "latency_p99_ms": round(float(p99), 1),
            }

    def take(self, *, at_once: bool = False) -> dict[str, Any]:
        """What is new, as `Progress.report` takes it; of tables now and then, or `at_once`."""
        if at_once:
            self.measure()
        found: dict[str, Any] = {}
        if self._counts or (at_once and self.sizes):
            counts = {**self._counts, **observed("published", self.sizes)}
            found["histograms"], self._counts = counts, {}
            self.sizes.clear()
        now = time.monotonic()
        if at_once or now - self._taken >= _NAMES:
            self._taken = now
            if tables := _tables.take():
                found["tables"] = tables
        return found


@dataclass(slots=True)
class _Reported:
    """The last report: when (monotonic seconds), and `stored` and `size` of the tally by then. The
    tally `moved` since, at last to `seen`."""

    at: float
    stored: int = 0
    size: int = 0
    seen: int = 0
    moved: float = 0.0

    def due_in(self, now: float, tally: Tally) -> float:
        """Seconds until what was stored is to be reported."""
        if tally.stored == self.stored:
            return _IDLE
        if tally.stored != self.seen:
            self.seen, self.moved = tally.stored, now
        if tally.size - self.size >= _STORED:
            return 0.0
        return max(0.0, min(self.at + _PROGRESS, self.moved + _QUIET) - now)


class WriteLoop(ABC):
    """One write over a connection. A sink says how it sends. `tally` is what is durable, `flow` how
    fast to send, `gather` what goes together; `order` keeps the last places. What was gathered may
    wait for more; everything older was sent.

    `send`, `poll` and `drain` try until they succeed, by `repeat`. They raise Rejected,
    SettingsError or LeaseLost.
    """

    def __init__(self, flow: Flow, gather: Gather, order: Order, progress: Progress) -> None:
        self.tally, self.flow = Tally(), flow
        self.gather, self.order = gather, order
        self._progress = progress
        self._reported = _Reported(time.monotonic())
        self._latency = PublishLatency(self.tally.sizes)
        self._slowest: dict[str, float] = {}  # of the latencies, since the last report
        flow.listen(progress.report)

    @property
    @abstractmethod
    def is_connected(self) -> bool:
        """Whether `connect` succeeded and nothing failed since."""

    @abstractmethod
    def connect(self) -> None:
        """Opens; goes on after the last durable change. Raises Unavailable, SettingsError."""

    @abstractmethod
    def probe(self) -> None:
        """Sends a little of what is to be sent, until it is durable. Raises Unavailable."""

    @abstractmethod
    def close(self) -> None:
        """Closes the connection, which failed."""

    @property
    @abstractmethod
    def is_idle(self) -> bool:
        """Whether all that was sent is durable."""

    @property
    @abstractmethod
    def descriptor(self) -> int | None:
        """A file descriptor that can be read when there are answers."""

    @abstractmethod
    def send(self, part: Part) -> Part | None:
        """Sends the changes of a part that are not stored yet; does not wait until they are
        durable. Returns what was sent; None if all were stored."""

    @abstractmethod
    def poll(self) -> None:
        """Takes in the answers that are there, and sends what waited for them."""

    @abstractmethod
    def drain(self) -> None:
        """Returns when all that was sent is durable."""

    @abstractmethod
    def settle(self) -> None:
        """Everything that was sent is durable: what was set aside instead counts as stored."""

    @abstractmethod
    def refresh(self) -> None:
        """There was nothing to do for a while: keeps the connection alive."""

    @abstractmethod
    def numbers(self) -> dict[str, Any]:
        """Plain JSON of the receipt that only this sink has."""

    def repeat(self, step: Step[T]) -> T:
        """Does a step, over an open connection, again and again until it succeeds. Raises what is
        neither Unavailable nor Malformed."""
        waits, attempts, before = None, 0, self.tally.batches
        while True:
            while (left := self.flow.closed_for()) > 0:  # the breaker is open: nothing is tried
                time.sleep(min(left, _IDLE))
            try:
                found = self._try(step)
            except (Unavailable, Malformed) as error:
                self.close()
                if waits is None or self.tally.batches != before:
                    # Spread so that the failures of one short outage (a restart, an election of a
                    # leader) do not open the breaker.
                    waits, before = delays(first=0.2, factor=3.0), self.tally.batches
                attempts += 1
                self.flow.failed(error.message)
                self._progress.report(
                    {"connected": False, "error": str(error), "attempts": attempts}
                )
                if self.flow.breaker.state is BreakerState.CLOSED:
                    time.sleep(next(waits))
            else:
                break
        if attempts:
            self._progress.report({"connected": True, "attempts": attempts})
        return found

    def _try(self, step: Step[T]) -> T:
        """A step, and before it the probe of a breaker that is half-open."""
        before = self.tally.batches
        if not self.is_connected:
            self.connect()
        if self.flow.breaker.state is BreakerState.HALF_OPEN:
            self.probe()
            self.flow.succeeded()
        try:
            return step()
        finally:
            # Failures in a row: what the server stored in between ends the row.
            if self.tally.batches != before and self.flow.breaker.failures:
                self.flow.succeeded()

    def run(self, changes: Iterable[Batch]) -> Receipt:
        """Writes it all; see `Sink.write`."""
        with Prefetch(changes) as prefetch:
            while True:
                try:
                    batches = prefetch.take(*self._until())
                except StopIteration:
                    break
                self._go_on(batches)
        self._flush()
        self.drain()
        self.settle()
        self.flow.idle()
        self._latency.stored()
        if measured := self._latency.take(at_once=True):
            self._progress.report(measured)
        return self._receipt()

    def _until(self) -> tuple[float, int | None]:
        """How long to wait for the source at most, and for which socket beside it."""
        now = time.monotonic()
        due = min(self.gather.due_in(now, self.flow.pace), self._reported.due_in(now, self.tally))
        return (due, None) if self.is_idle else (min(due, POLL), self.descriptor)

    def _go_on(self, batches: list[Batch]) -> None:
        for batch in batches:
            if self.gather.is_full(self.flow.pace) or not self.gather.takes(batch):
                self._flush()
            if len(batch):
                self.gather.add(batch, time.monotonic())
        is_idle = self.is_idle
        if waited := not is_idle:
            self.poll()
            is_idle = self.is_idle
        # A batch that is full goes, and one that has waited; a smaller one when the server idles.
        # Under pressure a smaller one waits for more all the same.
        if self.gather.rows:
            pace = self.flow.pace
            eager = pace.patience == 1 and is_idle
            if eager or self.gather.is_due(time.monotonic(), pace):
                self._flush()
                is_idle = self.is_idle
        if is_idle:
            self.flow.idle()
            self.settle()
            self._latency.stored()
            if not batches and not waited:
                self.refresh()
        self._report_progress()

    def _flush(self) -> None:
        for batch in self.gather.take():
            for part in self.order.arrange(batch):
                if (sent := self.send(part)) is not None:
                    self._latency.sent(sent.changes)

    def _report_progress(self) -> None:
        """Reports what is durable: a source is acknowledged it before the end of the write."""
        now = time.monotonic()
        tally, last = self.tally, self._reported
        if tally.stored != last.stored and not last.due_in(now, tally):
            self._reported = _Reported(now, tally.stored, tally.size, tally.stored)
            self._latency.stored()
            fresh, tally.fresh = tally.fresh, {}
            self._progress.stored(fresh)
            self._progress.report({
                "published": tally.published,
                "duplicates": tally.duplicates,
                "size": tally.size,
                **self._latency.fields,
                **self._answers(),
                **self._latency.take(),
            })  # fmt: skip
        elif now - last.at >= _IDLE and (measured := self._latency.take(at_once=True)):
            self._progress.report(measured)

    def _answers(self) -> dict[str, float]:
        """The longest answer since the last report that had one."""
        if (slowest := self.flow.slowest()) is not None:
            self._slowest = {"answer_ms": slowest}
        return self._slowest

    def _receipt(self) -> Receipt:
        tally = self.tally
        return Receipt(
            position=dict(tally.position),
            published=tally.published,
            duplicates=tally.duplicates,
            size=tally.size,
            numbers={
                **self.numbers(),
                "batches": tally.batches,
                "resent": tally.resent,
                **self.flow.states,
                **self._latency.fields,
                **self._answers(),
            },
        )
