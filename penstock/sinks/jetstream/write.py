"""One call of `write`: gathers, sends, retries, and counts until everything is acknowledged."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import pyarrow as pa

from penstock.model.errors import Malformed, Rejected, Unavailable
from penstock.nats.connection import Connection
from penstock.process.backoff import delays
from penstock.process.plugins import plugin
from penstock.sinks import Progress, Receipt
from penstock.sinks.jetstream.latency import PublishLatency
from penstock.sinks.jetstream.publishing.places import OtherWriters
from penstock.sinks.jetstream.publishing.publisher import POLL, Publisher, Tally
from penstock.sinks.jetstream.session import Session
from penstock.sinks.messages.layout import Layout
from penstock.sinks.messages.message import Messages
from penstock.sinks.poison.quarantine import Quarantine
from penstock.sinks.rows.flow import BreakerState
from penstock.sinks.rows.intake import Gather, Order, Prefetch
from penstock.sinks.rows.part import Part

T = TypeVar("T")
Step: TypeAlias = Callable[[], T]

_LARGE_PART = 8000  # rows that are divided among messages of several changes at once
_IDLE = 1.0  # seconds between two looks at an idle server
# Seconds between reports of the position. What is stored frees room in the reader's buffer: with a
# second, 48 MiB filled up before the first report, and reading and storing took turns.
_PROGRESS = 0.05
_STORED = 1 << 20  # bytes stored that are reported at once: a small part of the buffer


@dataclass(slots=True)
class _Reported:
    """The last report: when (monotonic seconds), and `stored` and `size` of the tally by then."""

    at: float
    stored: int = 0
    size: int = 0


class WriteRun:
    """One call of `write`."""

    def __init__(self, session: Session, progress: Progress) -> None:
        self._session, self._progress = session, progress
        self._tally = Tally()  # what is durable; every report and the receipt are made of it
        self._collects = session.settings.messages == "batch"
        self._order = Order(_LARGE_PART) if self._collects else Order()
        layout: Layout = plugin("layouts", session.settings.layout)
        self._poison: Quarantine[Messages]
        self._poison = Quarantine(session.settings, progress.report, layout.omits)
        self._connected: Connection | None = None  # what the publisher publishes over
        self._publisher: Publisher  # there as soon as `_connected` was set once
        self._flow = session.flow
        self._flow.listen(progress.report)
        # What was ordered and may wait for more; everything older is with the publisher.
        self._gather = Gather(session.settings.batch)
        self._reported = _Reported(time.monotonic())
        self._latency = PublishLatency()
        self._slowest: dict[str, float] = {}  # of the latencies, since the last report

    def run(self, changes: Iterable[pa.RecordBatch]) -> Receipt:
        """Writes it all; see `JetStreamSink.write`."""
        with Prefetch(changes) as prefetch:
            while True:
                try:
                    batches = prefetch.take(*self._until())
                except StopIteration:
                    break
                self._go_on(batches)
        self._flush()
        if self._connected is not None:
            self._retried(lambda: self._publisher.pump(drain=True))
        self._pass()
        self._flow.idle()
        self._latency.stored()
        self._latency.measure()
        if counts := self._latency.take_counts():
            self._progress.report({"counts": counts})
        return self._receipt()

    def _until(self) -> tuple[float, int | None]:
        """How long to wait for the source at most, and for which socket beside it."""
        due = self._gather.due_in(time.monotonic(), self._flow.pace)
        if self._is_idle:
            return min(due, self._report_in()), None
        return min(due, POLL, self._report_in()), self._session.connection.descriptor

    def _report_in(self) -> float:
        """Seconds until what was stored is to be reported."""
        if self._tally.stored == self._reported.stored:
            return _IDLE
        return max(0.0, self._reported.at + _PROGRESS - time.monotonic())

    @property
    def _is_idle(self) -> bool:
        """Whether nothing is in flight and nothing is queued: a paused queue may have nothing in
        flight."""
        return self._connected is None or self._publisher.is_idle

    def _go_on(self, batches: list[pa.RecordBatch]) -> None:
        for batch in batches:
            if self._gather.is_full(self._flow.pace) or not self._gather.takes(batch):
                self._flush()
            if len(batch):
                self._gather.add(batch, time.monotonic())
        waited = not self._is_idle
        if waited:
            self._retried(lambda: self._publisher.poll())  # noqa: PLW0108 - another may be made
        # A batch that is full goes, and one that has waited; a smaller one when the server idles.
        # Under pressure a smaller one waits for more all the same.
        pace = self._flow.pace
        eager = pace.patience == 1 and self._is_idle
        if eager or self._gather.is_due(time.monotonic(), pace):
            self._flush()
        if self._is_idle:
            self._flow.idle()
            if not batches and not waited:
                self._session.refresh()  # answers the PINGs of an idle server
        self._report_progress()

    def _flush(self) -> None:
        """Encodes and sends what has gathered."""
        for batch in self._gather.take():
            for arranged in self._order.arrange(batch):
                if not self._is_connected:  # what the server takes has to be known
                    self._repeated(lambda: None)
                if not self._publisher.flying:
                    self._session.connection.expect_anew()
                part = self._fresh(arranged) if self._collects else arranged
                if part is None:
                    continue
                self._latency.sent(part.batch)
                encoded = self._encoded(part)
                if self._collects and encoded:
                    self._gather.spread = max(messages.spread for messages in encoded)
                for messages in encoded:
                    self._add(messages)
                self._retried(lambda: self._publisher.pump(drain=False))

    def _encoded(self, part: Part) -> Sequence[Messages]:
        """What can be published of it; the rest is safe elsewhere."""
        return self._repeated(lambda: self._poison.write(part, self._session.poison))

    def _fresh(self, part: Part) -> Part | None:
        """What is not stored yet: a message of several changes is stored whole or not at all."""
        return self._retried(lambda: self._publisher.fresh(part))

    def _pass(self) -> None:
        """Nothing is in flight or queued: what was seen to otherwise counts as done as well."""
        for partition, place in self._poison.passed.items():
            self._tally.mark_stored(partition, place)
        self._poison.passed.clear()

    def _add(self, messages: Messages) -> None:
        try:
            self._publisher.add(messages)
        except OtherWriters as error:
            self._retried(lambda: self._publisher.pump(drain=True))
            if self._session.chosen.delivery == "exactly-once":  # not stepped down meanwhile
                self._step_down(error)
            self._publisher.add(messages)

    def _report_progress(self) -> None:
        """Reports what is durable: a source is acknowledged it before the end of the write."""
        now = time.monotonic()
        if self._is_idle:
            self._pass()
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

    def _retried(self, step: Step[T]) -> T:
        """Does a step, which asks for the publisher itself: stepping down makes another."""
        try:
            return self._repeated(step)
        except OtherWriters as error:
            self._step_down(error)
            return self._repeated(step)
        except Rejected as error:
            if self._session.settings.on_error == "stop":
                raise
            # The stream takes less than it did when the session opened: a new session asks again,
            # and then what is too large is set aside.
            raise Unavailable(error.message, hint=error.hint) from error

    def _step_down(self, error: OtherWriters) -> None:
        """From atomic batches to message ids, if we may choose."""
        old, session = self._publisher, self._session
        if session.settings.delivery != "auto" or session.chosen.delivery != "exactly-once":
            raise error
        session.step_down(error.message)
        self._publisher = session.publisher(self._tally)
        self._publisher.resume(session.connection, session.api)
        # First remembered, then looked for: what is stored after that look is known by its id.
        self._repeated(session.remember)
        for messages in self._repeated(lambda: old.release(session.api)):
            self._publisher.add(messages)
        self._report_session()

    def _repeated(self, step: Step[T]) -> T:
        """Does a step over an open session, again and again until it succeeds."""
        waits, attempts, before = None, 0, self._tally.batches
        while True:
            while (left := self._flow.closed_for()) > 0:  # the breaker is open: nothing is tried
                time.sleep(min(left, _IDLE))
            try:
                found = self._try(step)
            except (Unavailable, Malformed) as error:
                self._session.close()
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
        if not self._is_connected:
            self._connect()
        if self._flow.breaker.state is BreakerState.HALF_OPEN:
            self._publisher.probe()
            self._flow.succeeded()
        try:
            return step()
        finally:
            # Failures in a row: what the server stored in between ends the row.
            if self._tally.batches != before and self._flow.breaker.failures:
                self._flow.succeeded()

    @property
    def _is_connected(self) -> bool:
        session = self._session
        return session.stream is not None and self._connected is session.connection

    def _connect(self) -> None:
        session = self._session
        if not session.is_open:
            session.open()
            self._report_session()
        if self._connected is None:
            self._publisher = session.publisher(self._tally)
        self._publisher.resume(session.connection, session.api)
        self._connected = session.connection

    def _report_session(self) -> None:
        session = self._session
        self._progress.report({
            "connected": True,
            "server": session.connection.address,
            "version": str(session.connection.info.get("version", "")),
            "stream": session.settings.stream,
            "stream_made": session.chosen.made,
            "delivery": session.chosen.delivery,
            "reason": session.chosen.reason,
            "durability": session.settings.durability,
            "durability_reason": session.chosen.durability_reason,
            **self._flow.states,
        })  # fmt: skip

    def _receipt(self) -> Receipt:
        tally, session = self._tally, self._session
        return Receipt(
            position=dict(tally.position),
            published=tally.published,
            duplicates=tally.duplicates,
            size=tally.size,
            numbers={
                # Of a process that never wrote, nothing is chosen.
                **(
                    {"delivery": session.chosen.delivery, "reason": session.chosen.reason}
                    if session.chosen.reason
                    else {}
                ),
                "batches": tally.batches,
                "resent": tally.resent,
                **self._flow.states,
                **self._latency.fields,
                **self._answers(),
            },
        )
