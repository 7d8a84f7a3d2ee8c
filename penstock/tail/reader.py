"""A synchronous face for reading a stream: the one place where the consumer side meets asyncio.

Pulls through an ephemeral consumer without acknowledgements. When the server has lost it (after a
restart), makes a new one after the last returned message: every message once, in order.
"""

import asyncio
import threading
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any, TypeVar

import nats.errors
import nats.js.errors
import orjson
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from penstock.closing import Closes
from penstock.errors import Malformed, PenstockError, SettingsError, Unavailable
from penstock.tail.bodies import changes_of
from penstock.tail.message import Message
from penstock.tail.start import ALL, Since, Start

__all__ = ["TailReader"]

_T = TypeVar("_T")

_BATCH = 500  # messages that one pull request asks for
_EXPIRES = 5.0  # seconds that a pull request lasts
_FORGOTTEN = 15.0  # seconds after which the server drops an ephemeral consumer that nobody uses
_ENDED = {"404", "408"}  # the request is over: nothing there, or expired


class TailReader(Closes):
    """Reads one stream from a place on. Constructing one does no I/O; not for several threads."""

    def __init__(self, url: str, stream: str, *, subject: str = ">", start: Start = ALL) -> None:
        self.url = url
        self.stream = stream
        self.subject = subject
        self._start = start
        self._last = 0
        self._given = 0
        self._rest: list[Msg] = []
        self._pending: int | None = None
        self._owed = 0
        self._asked_at = 0.0
        self._consumer = ""
        self._client: Client | None = None
        self._inbox: Subscription | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._refused: Exception | None = None

    @property
    def sequence(self) -> int:
        """The stream sequence of the last returned message; 0 before the first."""
        return self._given

    @property
    def pending(self) -> int | None:
        """How many messages there were after the last returned one, when the server sent it; None
        while that is not known."""
        return None if self._pending is None else self._pending + len(self._rest)

    def fetch(self, count: int = 500, timeout: float = 1.0) -> list[Message]:
        """The changes of the next messages, at most `count` messages; waits at most `timeout`
        seconds for the first.

        Raises Unavailable (cannot reach the server, the first time; later it reconnects for
        ever and returns none), SettingsError (no such stream, wrong password), or Malformed for a
        message that is no change: fetching again continues after it.
        """
        raws = self._rest or self._run(self._fetch(count, timeout))
        messages: list[Message] = []
        for place, raw in enumerate(raws):
            try:
                messages += _changes(raw)
                self._given = raw.metadata.sequence.stream
            except Malformed:
                # What came before it is returned first; the next fetch raises for it alone.
                self._rest = raws[place if messages else place + 1 :]
                if messages:
                    return messages
                self._given = raw.metadata.sequence.stream
                raise
        self._rest = []
        return messages

    def end(self) -> int:
        """The sequence of the stream's last message now; 0 when it is empty."""
        return self._run(self._end())

    def close(self) -> None:
        """Disconnects. The server removes the consumer after a time."""
        loop, self._loop = self._loop, None
        if loop is None:
            return
        client, self._client = self._client, None
        if client is not None:
            asyncio.run_coroutine_threadsafe(client.close(), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, name="tail", daemon=True).start()
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except (nats.errors.Error, OSError, TimeoutError) as error:
            raise self._mapped(error) from error

    async def _connected(self) -> Client:
        if self._client is not None:
            return self._client
        client = Client()
        try:
            await client.connect(
                self.url.split(","),
                name="penstock tail",
                connect_timeout=5,
                max_reconnect_attempts=1,
                reconnect_time_wait=1,
                error_cb=self._note,
            )
        except nats.errors.NoServersError:
            if self._refused:
                raise self._mapped(self._refused) from None
            raise
        # The first connection fails soon and says why; a lost one is tried for ever.
        client.options["max_reconnect_attempts"] = -1
        self._inbox = await client.subscribe(client.new_inbox())
        self._client = client
        return client

    async def _note(self, error: Exception) -> None:
        # The server says why and hangs up; what comes after the reason says less.
        if self._refused is None or not _is_login(self._refused):
            self._refused = error

    async def _end(self) -> int:
        client = await self._connected()
        info = await client.jetstream().stream_info(self.stream)
        return int(info.state.last_seq)

    async def _fetch(self, count: int, timeout: float) -> list[Msg]:
        client = await self._connected()
        taken: list[Msg] = []
        deadline = time.monotonic() + timeout
        while not taken and (left := deadline - time.monotonic()) > 0:
            await self._ask(client)
            await self._take(taken, left)
            while len(taken) < count and self._inbox is not None and self._inbox.pending_msgs:
                await self._take(taken, 1.0)
        return taken

    async def _ask(self, client: Client) -> None:
        """Sends a pull request unless one is under way."""
        assert self._inbox is not None
        if self._inbox.pending_msgs:
            return
        unanswered = time.monotonic() - self._asked_at > _EXPIRES + 1
        if self._owed > 0 and not unanswered:
            return
        if unanswered or not self._consumer:
            await self._make_consumer(client)
        request = {"batch": _BATCH, "expires": int(_EXPIRES * 1e9), "idle_heartbeat": 1_000_000_000}
        await client.publish(
            f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{self._consumer}",
            orjson.dumps(request),
            reply=self._inbox.subject,
        )
        self._owed = _BATCH
        self._asked_at = time.monotonic()

    async def _make_consumer(self, client: Client) -> None:
        config = ConsumerConfig(
            ack_policy=AckPolicy.NONE,
            filter_subject=self.subject,
            inactive_threshold=_FORGOTTEN,
            mem_storage=True,
            num_replicas=1,
        )
        if isinstance(self._start, Since) and not self._last:
            config.deliver_policy = DeliverPolicy.BY_START_TIME
            config.opt_start_time = self._start.time.astimezone(UTC)
        else:
            config.deliver_policy = DeliverPolicy.BY_START_SEQUENCE
            config.opt_start_seq = await self._first()
        made = await client.jetstream().add_consumer(self.stream, config=config)
        self._consumer = str(made.name)
        self._pending = made.num_pending

    async def _first(self) -> int:
        """The first sequence to read; pins what was relative to the end of the stream."""
        if self._last:
            return self._last + 1
        if self._start == "new":
            self._start = await self._end() + 1
        elif isinstance(self._start, int) and self._start < 0:
            self._start = max(1, await self._end() + 1 + self._start)
        assert isinstance(self._start, int)
        return self._start

    async def _take(self, taken: list[Msg], timeout: float) -> None:
        """Waits for one delivery and keeps it if it is a message we have not given out yet."""
        assert self._inbox is not None
        try:
            raw = await self._inbox.next_msg(timeout=timeout)
        except (nats.errors.TimeoutError, TimeoutError):
            return
        status = (raw.headers or {}).get("Status")
        if status == "100":  # an idle heartbeat: the request is alive
            return
        if status is not None:
            self._owed = 0
            if status not in _ENDED:
                self._consumer = ""
            return
        self._owed -= 1
        sequence = raw.metadata.sequence.stream
        if sequence > self._last:
            self._last = sequence
            self._pending = raw.metadata.num_pending
            taken.append(raw)

    def _mapped(self, error: Exception) -> PenstockError:
        if isinstance(error, nats.js.errors.NotFoundError):
            return SettingsError(
                f"there is no stream {self.stream!r}",
                hint="the pipeline makes it when it starts; its name is sink.stream",
            )
        if _is_login(error):
            return SettingsError(
                "NATS refused the login", hint="put it into the URL: user:password@"
            )
        if isinstance(
            error, (nats.js.errors.ServiceUnavailableError, nats.errors.NoRespondersError)
        ):
            return Unavailable("JetStream does not answer", hint="is it enabled on this server?")
        if isinstance(error, nats.js.errors.BadRequestError):
            return SettingsError(f"JetStream refused the consumer: {error.description}")
        return Unavailable(f"NATS does not answer: {error or type(error).__name__}")


def _is_login(error: Exception) -> bool:
    # nats-py has a class for it, and does not use it while connecting.
    return "authorization" in str(error).lower()


def _changes(raw: Msg) -> list[Message]:
    headers = dict(raw.headers or {})
    return [
        Message(
            sequence=raw.metadata.sequence.stream,
            subject=raw.subject,
            stored_at=_stored_at(raw),
            headers=headers,
            body=body,
        )
        for body in changes_of(headers, raw.data)
    ]


def _stored_at(raw: Msg) -> datetime:
    stored: datetime = raw.metadata.timestamp
    return stored
