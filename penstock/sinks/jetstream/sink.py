"""The JetStream sink: changes in, acknowledged messages out, for as long as it takes."""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import pyarrow as pa

from penstock.backoff import delays
from penstock.errors import Malformed, Unavailable
from penstock.finding import Finding
from penstock.sinks import Notify, Receipt, ignore
from penstock.sinks.jetstream.individual import Individual
from penstock.sinks.jetstream.order import Order
from penstock.sinks.jetstream.publisher import Publisher, Tally
from penstock.sinks.jetstream.session import Session, borrowed
from penstock.sinks.jetstream.settings import JetStreamSettings

__all__ = ["JetStreamSink"]


class JetStreamSink:
    """A `penstock.sinks.Sink`; one message per change. See `settings` for what it can do."""

    def __init__(self, settings: JetStreamSettings) -> None:
        self.settings = settings

    def write(self, changes: Iterable[pa.RecordBatch], notify: Notify = ignore) -> Receipt:
        """See `Sink.write`. An empty batch is a tick: acknowledgements are taken in."""
        with borrowed(self.settings) as session:
            return _Write(session, notify).run(changes)

    def commit(self, receipts: Sequence[Receipt]) -> None:
        """Nothing to do: what `write` returned for is stored."""

    def prepare(self) -> None:
        """Makes the stream, or verifies it. Raises SettingsError, Unavailable."""
        with borrowed(self.settings) as session:
            session.open()

    def check(self) -> Sequence[Finding]:
        """See `Sink.check`."""
        return []


class _Write:
    """One call of `write`."""

    def __init__(self, session: Session, notify: Notify) -> None:
        self._session, self._notify = session, notify
        self._tally = Tally()
        self._order = Order()
        self._publisher: Publisher | None = None

    def run(self, changes: Iterable[pa.RecordBatch]) -> Receipt:
        """Writes it all; see `JetStreamSink.write`."""
        for batch in changes:
            if len(batch):
                self._add(batch)
            if self._publisher is not None:
                self._insist(partial(self._publisher.pump, drain=False))
        if self._publisher is not None:
            self._insist(partial(self._publisher.pump, drain=True))
        return self._receipt()

    def _add(self, batch: pa.RecordBatch) -> None:
        for part in self._order.arrange(batch):
            publisher = self._ready()
            publisher.add(self._session.encoder.encode(part))
            self._insist(partial(publisher.pump, drain=False))

    def _ready(self) -> Publisher:
        self._insist(lambda: None)
        assert self._publisher is not None
        return self._publisher

    def _insist(self, step: Callable[[], None]) -> None:
        """Does a step over an open session, again and again until it succeeds."""
        waits, attempts, before = delays(), 0, self._tally.position
        while True:
            try:
                self._connect()
                step()
            except (Unavailable, Malformed) as error:
                self._session.close()
                if self._tally.position != before:
                    waits, before = delays(), dict(self._tally.position)
                attempts += 1
                self._notify({"connected": False, "error": str(error), "attempts": attempts})
                time.sleep(next(waits))
            else:
                break
        if attempts:
            self._notify({"connected": True, "attempts": attempts})

    def _connect(self) -> None:
        session = self._session
        if session.is_open and self._publisher is not None:
            return
        if not session.is_open:
            session.open()
            self._tell()
        if self._publisher is None:
            self._publisher = _publisher(session, self._tally)
        self._publisher.resume(session.connection, session.api)

    def _tell(self) -> None:
        session = self._session
        self._notify({
            "connected": True,
            "server": session.connection.address,
            "version": str(session.connection.info.get("version", "")),
            "stream": session.settings.stream,
            "stream_made": session.made,
            "delivery": session.delivery,
            "reason": session.reason,
        })  # fmt: skip

    def _receipt(self) -> Receipt:
        tally, session = self._tally, self._session
        return Receipt(
            position=dict(tally.position),
            published=tally.published,
            duplicates=tally.duplicates,
            size=tally.size,
            numbers={
                "delivery": session.delivery,
                "reason": session.reason,
                "batches": tally.batches,
                "resent": tally.resent,
            },
        )


def _publisher(session: Session, tally: Tally) -> Publisher:
    settings = session.settings
    return Individual(tally, window=settings.window, window_bytes=settings.window_bytes)
