"""One call of `write`: parts are encoded and published, over connections that may break."""

from collections.abc import Sequence
from typing import Any, TypeVar

from penstock.model.errors import Rejected, Unavailable
from penstock.nats.connection import Connection
from penstock.process.plugins import plugin
from penstock.sinks import Progress
from penstock.sinks.jetstream.publishing.places import OtherWriters
from penstock.sinks.jetstream.publishing.publisher import Publisher
from penstock.sinks.jetstream.session import Session
from penstock.sinks.messages.layout import Layout
from penstock.sinks.messages.message import Messages
from penstock.sinks.poison.quarantine import Quarantine
from penstock.sinks.rows.intake import Gather, Order
from penstock.sinks.rows.loop import Step, WriteLoop
from penstock.sinks.rows.part import Part

T = TypeVar("T")

_LARGE_PART = 8000  # rows that are divided among messages of several changes at once


class WriteRun(WriteLoop):
    """Over a session, for one write."""

    def __init__(self, session: Session, progress: Progress) -> None:
        self._session, settings = session, session.settings
        self._collects = settings.messages == "batch"
        order = Order(_LARGE_PART) if self._collects else Order()
        super().__init__(session.flow, Gather(settings.batch), order, progress)
        layout: Layout = plugin("layouts", settings.layout)
        self._poison: Quarantine[Messages]
        self._poison = Quarantine(settings, progress.report, layout.omits)
        self._connected: Connection | None = None  # what the publisher publishes over
        self._publisher: Publisher  # there as soon as `_connected` was set once

    @property
    def is_idle(self) -> bool:
        """Nothing is in flight and nothing is queued: a paused queue may have nothing in flight."""
        return self._connected is None or self._publisher.is_idle

    @property
    def descriptor(self) -> int | None:
        return self._session.connection.descriptor

    def send(self, part: Part) -> Part | None:
        if not self.is_connected:  # what the server takes has to be known
            self.repeat(lambda: None)
        self._publisher.meet(part)
        if not self._publisher.is_flying:
            self._session.connection.expect_anew()
        # A message of several changes is stored whole or not at all.
        fresh = self._retried(lambda: self._publisher.fresh(part)) if self._collects else part
        if fresh is None:
            return None
        encoded = self._encoded(fresh)
        if self._collects and encoded:
            self.gather.spread = max(messages.spread for messages in encoded)
        for messages in encoded:
            self._add(messages)
        self._retried(lambda: self._publisher.pump(drain=False))
        return fresh

    def poll(self) -> None:
        self._retried(lambda: self._publisher.poll())  # noqa: PLW0108 - another may be made

    def drain(self) -> None:
        if self._connected is not None:
            self._retried(lambda: self._publisher.pump(drain=True))

    def settle(self) -> None:
        for partition, place in self._poison.passed.items():
            self.tally.mark_stored(partition, place)
        self._poison.passed.clear()

    def refresh(self) -> None:
        """Answers the PINGs of an idle server."""
        self._session.refresh()

    def probe(self) -> None:
        self._publisher.probe()

    def close(self) -> None:
        self._session.close()

    @property
    def is_connected(self) -> bool:
        session = self._session
        return session.stream is not None and self._connected is session.connection

    def connect(self) -> None:
        session = self._session
        if not session.is_open:
            session.open()
            self._report_session()
        if self._connected is None:
            self._publisher = session.publisher(self.tally)
        self._publisher.resume(session.connection, session.api)
        self._connected = session.connection

    def numbers(self) -> dict[str, Any]:
        """Of a process that never wrote, nothing is chosen."""
        chosen = self._session.chosen
        if not chosen.reason:
            return {}
        return {"delivery": chosen.delivery, "details": {"reason": chosen.reason}}

    def _encoded(self, part: Part) -> Sequence[Messages]:
        """What can be published of it; the rest is safe elsewhere."""
        return self.repeat(lambda: self._poison.write(part, self._session.poison))

    def _add(self, messages: Messages) -> None:
        try:
            self._publisher.add(messages)
        except OtherWriters as error:
            self._retried(lambda: self._publisher.pump(drain=True))
            if self._session.chosen.delivery == "exactly-once":  # not stepped down meanwhile
                self._step_down(error)
            self._publisher.add(messages)

    def _retried(self, step: Step[T]) -> T:
        """Does a step, which asks for the publisher itself: stepping down makes another."""
        try:
            return self.repeat(step)
        except OtherWriters as error:
            self._step_down(error)
            return self.repeat(step)
        except Rejected as error:
            if self._session.settings.on_error == "stop":
                raise
            # The stream takes less than it did when the session opened: a new session asks again,
            # and then what is too large is set aside.
            raise Unavailable(error.message, error.code, hint=error.hint) from error

    def _step_down(self, error: OtherWriters) -> None:
        """From atomic batches to message ids, if we may choose."""
        old, session = self._publisher, self._session
        if session.settings.delivery != "auto" or session.chosen.delivery != "exactly-once":
            raise error
        session.step_down(error.message)
        self._publisher = session.publisher(self.tally)
        self._publisher.resume(session.connection, session.api)
        # First remembered, then looked for: what is stored after that look is known by its id.
        self.repeat(session.remember)
        for messages in self.repeat(lambda: old.release(session.api)):
            self._publisher.add(messages)
        self._report_session()

    def _report_session(self) -> None:
        session = self._session
        self._progress.report({
            "connected": True,
            "delivery": session.chosen.delivery,
            "durability": session.settings.durability,
            "details": {
                "server": session.connection.address,
                "version": str(session.connection.info.get("version", "")),
                "stream": session.settings.stream,
                "stream_made": session.chosen.made,
                "reason": session.chosen.reason,
                "durability_reason": session.chosen.durability_reason,
            },
            **self.flow.states,
        })  # fmt: skip
