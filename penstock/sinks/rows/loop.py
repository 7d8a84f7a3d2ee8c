"""The loop of a write for sinks that send over a connection: it gathers, orders and sends changes,
retries after failures, and reports what is durable meanwhile."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from penstock.model.errors import Malformed, Unavailable
from penstock.model.position import PartitionId, Place
from penstock.process.backoff import delays
from penstock.sinks import Progress, Receipt
from penstock.sinks.rows.flow import BreakerState, Flow
from penstock.sinks.rows.intake import Gather, Order, Prefetch
from penstock.sinks.rows.latency import PublishLatency
from penstock.sinks.rows.part import Part

T = TypeVar("T")
Step: TypeAlias = Callable[[], T]

POLL = 0.1  # seconds between looks at how long an answer has been due
_IDLE = 1.0  # seconds between two looks at an idle server
# Seconds between reports of the position. What is stored frees room in the reader's buffer: with a
# second, 48 MiB filled up before the first report, and reading and storing took turns.
_PROGRESS = 0.05
_STORED = 1 << 20  # bytes stored that are reported at once: a small part of the buffer


@dataclass(slots=True)
class Tally:
    """What one write has come to so far; see `penstock.sinks.Receipt`. `fresh` is what of
    `position` was not reported yet, `stored` counts how often it moved."""

    position: dict[PartitionId, Place] = field(default_factory=dict)
    fresh: dict[PartitionId, Place] = field(default_factory=dict)
    stored: int = 0
    published: int = 0
    duplicates: int = 0
    size: int = 0
    batches: int = 0
    resent: int = 0

    def mark_stored(self, partition: PartitionId, place: Place) -> None:
        """Everything of the partition up to `place` is stored; never back. Said again, it is
        reported again: changes that come after a report may be stored already."""
        known = self.position.get(partition)
        reached = place if known is None or place > known else known
        self.position[partition] = self.fresh[partition] = reached
        self.stored += 1


class Outlet(Protocol):
    """How a sink sends, in one write. `tally` is what is durable, `flow` how fast to send, `gather`
    what goes together; `order` keeps the last places.

    `send`, `poll` and `drain` try until they succeed, by `SinkRetries`. They raise Rejected,
    SettingsError or LeaseLost.
    """

    tally: Tally
    flow: Flow
    gather: Gather
    order: Order

    @property
    def is_connected(self) -> bool:
        """Whether `connect` succeeded and nothing failed since."""
        ...

    def connect(self) -> None:
        """Opens what is closed, and goes on after the last change that is durable. Raises
        Unavailable, SettingsError."""
        ...

    def probe(self) -> None:
        """Sends a little of what is to be sent, and returns when it is durable. Raises
        Unavailable."""
        ...

    def close(self) -> None:
        """Closes the connection, which failed."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether all that was sent is durable."""
        ...

    @property
    def descriptor(self) -> int | None:
        """A file descriptor that can be read when there are answers."""
        ...

    def send(self, part: Part) -> Part | None:
        """Sends the changes of a part that are not stored yet; does not wait until they are
        durable. Returns what was sent; None if all were stored."""
        ...

    def poll(self) -> None:
        """Takes in the answers that are there, and sends what waited for them."""
        ...

    def drain(self) -> None:
        """Returns when all that was sent is durable."""
        ...

    def settle(self) -> None:
        """Everything that was sent is durable: what was set aside instead counts as stored."""
        ...

    def refresh(self) -> None:
        """There was nothing to do for a while: keeps the connection alive."""
        ...

    def numbers(self) -> dict[str, Any]:
        """Plain JSON of the receipt that only this sink has."""
        ...


class SinkRetries:
    """Does steps of an outlet, over an open connection, again and again until they succeed."""

    def __init__(self, outlet: Outlet, progress: Progress) -> None:
        self._outlet, self._progress = outlet, progress
        self._flow, self._tally = outlet.flow, outlet.tally

    def repeat(self, step: Step[T]) -> T:
        """Does a step. Raises what is neither Unavailable nor Malformed."""
        waits, attempts, before = None, 0, self._tally.batches
        while True:
            while (left := self._flow.closed_for()) > 0:  # the breaker is open: nothing is tried
                time.sleep(min(left, _IDLE))
            try:
                found = self._try(step)
            except (Unavailable, Malformed) as error:
                self._outlet.close()
                if waits is None or self._tally.batches != before:
                    # Spread so that the failures of one short outage (a restart, an election of a
                    # leader) do not open the breaker.
                    waits, before = delays(first=0.2, factor=3.0), self._tally.batches
                attempts += 1
                self._flow.failed(error.message)
                self._progress.report(
                    {"connected": False, "error": str(error), "attempts": attempts}
                )
                if self._flow.breaker.state is BreakerState.CLOSED:
                    time.sleep(next(waits))
            else:
                break
        if attempts:
            self._progress.report({"connected": True, "attempts": attempts})
        return found

    def _try(self, step: Step[T]) -> T:
        """A step, and before it the probe of a breaker that is half-open."""
        before = self._tally.batches
        if not self._outlet.is_connected:
            self._outlet.connect()
        if self._flow.breaker.state is BreakerState.HALF_OPEN:
            self._outlet.probe()
            self._flow.succeeded()
        try:
            return step()
        finally:
            # Failures in a row: what the server stored in between ends the row.
            if self._tally.batches != before and self._flow.breaker.failures:
                self._flow.succeeded()


@dataclass(slots=True)
class _Reported:
    """The last report: when (monotonic seconds), and `stored` and `size` of the tally by then."""

    at: float
    stored: int = 0
    size: int = 0


class WriteLoop:
    """Of one write."""

    def __init__(self, outlet: Outlet, progress: Progress) -> None:
        self._outlet, self._progress = outlet, progress
        self._tally, self._flow = outlet.tally, outlet.flow
        # What was gathered may wait for more; everything older is with the outlet.
        self._gather, self._order = outlet.gather, outlet.order
        self._flow.listen(progress.report)
        self._reported = _Reported(time.monotonic())
        self._latency = PublishLatency()
        self._slowest: dict[str, float] = {}  # of the latencies, since the last report

    def run(self, changes: Iterable[pa.RecordBatch]) -> Receipt:
        """Writes it all; see `Sink.write`."""
        with Prefetch(changes) as prefetch:
            while True:
                try:
                    batches = prefetch.take(*self._until())
                except StopIteration:
                    break
                self._go_on(batches)
        self._flush()
        self._outlet.drain()
        self._outlet.settle()
        self._flow.idle()
        self._latency.stored()
        self._latency.measure()
        if counts := self._latency.take_counts():
            self._progress.report({"counts": counts})
        return self._receipt()

    def _until(self) -> tuple[float, int | None]:
        """How long to wait for the source at most, and for which socket beside it."""
        due = self._gather.due_in(time.monotonic(), self._flow.pace)
        if self._outlet.is_idle:
            return min(due, self._report_in()), None
        return min(due, POLL, self._report_in()), self._outlet.descriptor

    def _report_in(self) -> float:
        """Seconds until what was stored is to be reported."""
        if self._tally.stored == self._reported.stored:
            return _IDLE
        return max(0.0, self._reported.at + _PROGRESS - time.monotonic())

    def _go_on(self, batches: list[pa.RecordBatch]) -> None:
        for batch in batches:
            if self._gather.is_full(self._flow.pace) or not self._gather.takes(batch):
                self._flush()
            if len(batch):
                self._gather.add(batch, time.monotonic())
        waited = not self._outlet.is_idle
        if waited:
            self._outlet.poll()
        # A batch that is full goes, and one that has waited; a smaller one when the server idles.
        # Under pressure a smaller one waits for more all the same.
        pace = self._flow.pace
        eager = pace.patience == 1 and self._outlet.is_idle
        if eager or self._gather.is_due(time.monotonic(), pace):
            self._flush()
        if self._outlet.is_idle:
            self._flow.idle()
            if not batches and not waited:
                self._outlet.refresh()
        self._report_progress()

    def _flush(self) -> None:
        """Sends what has gathered."""
        for batch in self._gather.take():
            for part in self._order.arrange(batch):
                if (sent := self._outlet.send(part)) is not None:
                    self._latency.sent(sent.batch)

    def _report_progress(self) -> None:
        """Reports what is durable: a source is acknowledged it before the end of the write."""
        now = time.monotonic()
        if self._outlet.is_idle:
            self._outlet.settle()
        tally, last = self._tally, self._reported
        is_due = now - last.at >= _PROGRESS or tally.size - last.size >= _STORED
        if is_due and tally.stored != last.stored:
            self._reported = _Reported(now, tally.stored, tally.size)
            self._latency.stored()
            fresh, tally.fresh = tally.fresh, {}
            self._progress.stored(fresh)
            counts = self._latency.take_counts()
            self._progress.report({
                "published": tally.published,
                "duplicates": tally.duplicates,
                "size": tally.size,
                **self._latency.fields,
                **self._answers(),
                **({"counts": counts} if counts else {}),
            })  # fmt: skip

    def _answers(self) -> dict[str, float]:
        """The longest answer since the last report that had one."""
        slowest = self._flow.slowest()
        if slowest is not None:
            self._slowest = {"answer_ms": slowest}
        return self._slowest

    def _receipt(self) -> Receipt:
        tally = self._tally
        return Receipt(
            position=dict(tally.position),
            published=tally.published,
            duplicates=tally.duplicates,
            size=tally.size,
            numbers={
                **self._outlet.numbers(),
                "batches": tally.batches,
                "resent": tally.resent,
                **self._flow.states,
                **self._latency.fields,
                **self._answers(),
            },
        )
