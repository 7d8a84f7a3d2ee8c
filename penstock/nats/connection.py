"""One connection to a NATS server: a socket, its timeouts, and requests over an inbox of ours.

Synchronous and owned by one thread. It does not reconnect by itself: whoever publishes knows what
was not acknowledged, so an error ends the connection and its owner opens the next one.
"""

import secrets
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from penstock.model.errors import Malformed, SettingsError, Unavailable
from penstock.nats import protocol
from penstock.nats.dial import Address, addresses, dial, error_of, identify, reason_of
from penstock.nats.protocol import Err, Info, Msg, Parser, Ping, Pong, status_of
from penstock.nats.settings import NatsSettings

_CHUNK = 1 << 18
_POLL = 0.1  # seconds between calls of `watch`
_TOGETHER = 500  # requests that wait for answers at a time
_READ = select.POLLIN | select.POLLHUP | select.POLLERR


@dataclass(slots=True)
class _Arrived:
    """What came over one socket: half of a message, messages that `receive` has not given, PINGs
    that were not answered (an answer goes between whole messages of ours), and PONGs."""

    parser: Parser = field(default_factory=Parser)
    messages: deque[Msg] = field(default_factory=deque)
    pings: int = 0
    pongs: int = 0

    def feed(self, data: bytes) -> Iterator[Info | Err]:
        """Takes in bytes, and gives what else they are. Raises Malformed."""
        events = self.parser.feed(data)
        if {*map(type, events)} == {Msg}:  # as nearly always
            self.messages.extend(events)  # type: ignore[arg-type]
            return
        for event in events:
            match event:
                case Msg():
                    self.messages.append(event)
                case Ping():
                    self.pings += 1
                case Pong():
                    self.pongs += 1
                case Info() | Err():
                    yield event


class Connection:
    """An open connection; `open` makes it usable, and any error makes it useless. Every wait ends
    after `settings.timeout` seconds without progress: a server that hangs is Unavailable, too."""

    def __init__(self, settings: NatsSettings, name: str = "penstock") -> None:
        self._settings, self._name = settings, name
        self.api, self.is_elsewhere = settings.api, settings.is_elsewhere  # JetStream's
        self._socket: socket.socket | None = None  # None: closed
        self._arrived = _Arrived()  # over this socket
        self._progress = -1, 0.0  # what `expect` was given last, and when that last changed
        self._numbers = count(2)  # of reply subjects and subscriptions; the inbox is 1
        self.quiet_at = 0.0  # monotonic time at which the socket was last known to be empty
        self.received_at = 0.0  # monotonic time of the last bytes from the server
        # Called while the server keeps us waiting, with the seconds for which it has.
        self.watch: Callable[[float], None] = lambda _: None
        self.inbox = f"{settings.inbox_prefix}.{secrets.token_hex(11)}"  # the same over all sockets
        self.info: dict[str, Any] = {}  # the server's last; kept when the socket is lost
        self.address = ""  # of the server that was connected to last

    @property
    def version(self) -> tuple[int, ...]:
        """The server's version, such as (2, 12, 1)."""
        return version_of(str(self.info.get("version", "0")))

    @property
    def max_payload(self) -> int:
        """Bytes that headers and body of one message may have."""
        return int(self.info.get("max_payload", 1 << 20))

    def open(self) -> None:
        """Connects to the first server that lets us: of the list, then of the cluster that an
        earlier one named. Raises Unavailable, or SettingsError when one refused us and none took
        us."""
        refusal: SettingsError | None = None
        failures = []
        for address in addresses(self._settings, self.info.get("connect_urls") or ()):
            try:
                self._handshake(address)
            except SettingsError as error:
                refusal = error
            except (OSError, Unavailable, Malformed) as error:
                failures.append(f"{address}: {reason_of(error)}")
            else:
                return
            self.close()
        if refusal is not None:
            raise refusal
        raise Unavailable(
            f"no NATS server can be reached ({'; '.join(failures)})",
            "nats.unreachable",
            hint="is nats-server running, and is its url right?",
        )

    @property
    def descriptor(self) -> int | None:
        """The socket's, to wait for it; None when it is closed. `receive` reads all that came."""
        return None if self._socket is None else self._socket.fileno()

    def close(self) -> None:
        """Drops the socket; what was in flight may or may not have been stored."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def send(self, data: bytes | memoryview) -> None:
        """Hands all of `data` to the kernel, reading meanwhile: a server that waits for us to
        read its acknowledgements never waits for ever. Raises Unavailable, SettingsError."""
        sock = self._open_socket()
        view = memoryview(data)
        while view:
            try:
                view = view[sock.send(view) :]
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._wait_for_room()
                self._take_in()
            except ssl.SSLWantReadError:
                self._wait(write=False)
            except OSError as error:
                raise self._lost(error) from error
        self._answer_pings()

    def _wait_for_room(self) -> None:
        started = time.monotonic()
        while not self._wait(write=True, timeout=min(_POLL, self._settings.timeout)):
            waited = time.monotonic() - started
            self.watch(waited)
            if waited >= self._settings.timeout:
                raise Unavailable(
                    f"{self.address} has accepted no data for {self._settings.timeout} s", "nats"
                )

    def receive(self, timeout: float | None = None) -> list[Msg]:
        """The messages that are there; waits up to `timeout` seconds (0 does not wait; None is
        the settings' timeout) for a first one. Raises Unavailable, SettingsError."""
        deadline = time.monotonic() + (self._settings.timeout if timeout is None else timeout)
        self._read()
        arrived = self._arrived.messages
        while not arrived and (left := deadline - time.monotonic()) > 0:
            if self._wait(write=False, timeout=left):
                self._read()
        messages = list(arrived)
        arrived.clear()
        return messages

    @property
    def has_messages(self) -> bool:
        """Whether `receive` has some already: `send` read them. No poll shows these."""
        return bool(self._arrived.messages)

    def request(
        self,
        subject: str,
        payload: bytes = b"",
        timeout: float | None = None,
        *,
        headers: bytes = b"",
    ) -> Msg:
        """One question, one answer (503: no listener); other messages stay for `receive`. `headers`
        are whole, or none. Raises Unavailable (no answer), SettingsError (may not ask)."""
        (answer,) = self.requests([(subject, payload, headers)], timeout)
        return answer

    def another(self, answer: Msg, timeout: float | None = None) -> Msg:
        """One more answer to the same question. Raises as `request`."""
        found: list[Msg] = []

        def take(message: Msg) -> bool | None:
            if message.subject != answer.subject:
                return None
            found.append(message)
            return True

        self._answered(take, answer.subject.decode(), timeout)
        return found[0]

    def requests(
        self, asked: Sequence[tuple[str, bytes, bytes]], timeout: float | None = None
    ) -> list[Msg]:
        """Several questions (subject, payload, headers), answered in order. Raises as `request`."""
        found: list[Msg] = []
        for at in range(0, len(asked), _TOGETHER):
            found += self._together(asked[at : at + _TOGETHER], timeout)
        return found

    def _together(
        self, asked: Sequence[tuple[str, bytes, bytes]], timeout: float | None
    ) -> list[Msg]:
        found: dict[bytes, Msg] = {}
        replies = [self._reply().encode() for _ in asked]
        wanted = set(replies)
        for (subject, payload, headers), reply in zip(asked, replies, strict=True):
            if headers:
                self.send(protocol.hpub(subject.encode(), reply, headers, payload))
            else:
                self.send(protocol.pub(subject, reply.decode(), payload))

        def take(message: Msg) -> bool | None:
            if message.subject not in wanted:
                return None
            found[message.subject] = message
            return len(found) == len(wanted)

        self._answered(take, asked[0][0], timeout)
        return [found[reply] for reply in replies]

    def request_many(self, subject: str, payload: bytes) -> list[Msg]:
        """One question with several answers, up to one with a status. Raises as `request` does."""
        reply, found = self._reply(), list[Msg]()
        self.send(protocol.pub(subject, reply, payload))

        def take(message: Msg) -> bool | None:
            if message.subject != reply.encode():
                return None
            found.append(message)
            return status_of(message.headers) > 0

        self._answered(take, subject)
        return found

    def _reply(self) -> str:
        return f"{self.inbox}.r{next(self._numbers)}"

    def collect(self, take: Callable[[Msg], bool | None], timeout: float) -> bool:
        """Passes messages to `take` until it returns True, and those that have arrived with that
        one; True then, and False after `timeout` seconds without a message that it takes. Those
        for which it returns None are kept for `receive`. Raises Unavailable, SettingsError."""
        since = time.monotonic()  # without one
        kept: list[Msg] = []
        try:
            while True:
                left, done = since + timeout - time.monotonic(), False
                self.watch(time.monotonic() - since)
                arrived, now = self.receive(max(0.0, min(left, _POLL))), time.monotonic()
                for message in arrived:
                    taken = take(message)
                    if taken is None:
                        kept.append(message)
                    else:
                        done, since = done or taken, now
                if done or left <= 0:
                    return done
        finally:
            self._arrived.messages.extendleft(reversed(kept))

    def _answered(
        self, take: Callable[[Msg], bool | None], subject: str, timeout: float | None = None
    ) -> None:
        if not self.collect(take, timeout or self._settings.timeout):
            raise Unavailable(f"{self.address} does not answer on {subject}", "nats")

    def subscribe(self, subject: str) -> None:
        """`receive` gives messages under the subject (may have wildcards). Raises as `send`."""
        self.send(protocol.sub(subject, next(self._numbers)))
        self.ping()

    def check(self) -> None:
        """Takes in what arrived. Raises Unavailable if the connection is closed, SettingsError."""
        while self._wait(write=False, timeout=0):
            self._read()

    def expect_anew(self) -> None:
        """Something is about to be sent while no answer is due: silence so far was no fault."""
        self._progress = -1, time.monotonic()

    def expect(self, progress: int) -> None:
        """Called while an answer is due, with a number that grows with the answers: raises
        Unavailable when it did not for `settings.timeout` seconds."""
        now = time.monotonic()
        if progress != self._progress[0]:
            self._progress = progress, now
        elif now - self._progress[1] > self._settings.timeout:
            raise Unavailable(f"{self.address} acknowledges nothing any more", "nats")

    def ping(self) -> None:
        """Makes sure that the server is there and has read what we sent. Raises as `send` does."""
        before = self._arrived.pongs
        self.send(protocol.PING)
        deadline = time.monotonic() + self._settings.timeout
        while self._arrived.pongs == before:
            left = deadline - time.monotonic()
            if left <= 0:
                limit = self._settings.timeout
                raise Unavailable(f"{self.address} does not answer a ping in {limit} s", "nats")
            if self._wait(write=False, timeout=left):
                self._read()

    def _handshake(self, address: Address) -> None:
        self._arrived = _Arrived()
        self.address = str(address)
        self._socket, info = dial(address, self._settings)
        self.info = dict(info.fields)
        options = {
            "verbose": False, "pedantic": False, "headers": True, "no_responders": True,
            "lang": "python", "name": self._name, "version": "1", "protocol": 1, "echo": False,
            **identify(self._settings, address, str(self.info.get("nonce", ""))),
        }  # fmt: skip
        self.send(protocol.connect(options) + protocol.sub(f"{self.inbox}.*", 1))
        self.ping()

    def _open_socket(self) -> socket.socket:
        if self._socket is None:
            raise Unavailable("the connection is closed", "nats")
        return self._socket

    def _wait(self, *, write: bool, timeout: float | None = None) -> bool:
        """True when the socket is ready; without a timeout of its own, not being so is an error."""
        poll = select.poll()
        poll.register(self._open_socket(), _READ | (select.POLLOUT if write else 0))
        ready = poll.poll((self._settings.timeout if timeout is None else timeout) * 1000)
        if not write:
            self.quiet_at = time.monotonic()
        if not ready and timeout is None:
            raise Unavailable(
                f"{self.address} has accepted no data for {self._settings.timeout} s", "nats"
            )
        return bool(ready)

    def _read(self) -> None:
        """Takes in whatever has arrived; not inside of a message of ours, for a PONG may follow."""
        self._take_in()
        self._answer_pings()

    def _answer_pings(self) -> None:
        pings, self._arrived.pings = self._arrived.pings, 0
        if pings:
            self.send(protocol.PONG * pings)

    def _take_in(self) -> None:
        sock = self._open_socket()
        while True:
            try:
                data = sock.recv(_CHUNK)
            except (BlockingIOError, ssl.SSLWantReadError):
                self.quiet_at = time.monotonic()
                return
            except ssl.SSLWantWriteError:
                self._wait(write=True)
                continue
            except OSError as error:
                raise self._lost(error) from error
            if not data:
                raise Unavailable(f"{self.address} closed the connection", "nats")
            self.received_at = time.monotonic()
            refusal = None
            for event in self._arrived.feed(data):
                if isinstance(event, Info):
                    self.info.update(event.fields)
                else:
                    refusal = refusal or error_of(event.text, self.address, self._settings)
            # Last: after a denied request the connection goes on, and has lost nothing.
            if refusal is not None:
                raise refusal
            if len(data) < _CHUNK and not isinstance(sock, ssl.SSLSocket):
                return

    def _lost(self, error: OSError) -> Unavailable:
        return Unavailable(
            f"the connection to {self.address} is lost: {reason_of(error)}", "nats.connection-lost"
        )


def version_of(text: str) -> tuple[int, ...]:
    """`2.12.1-beta` -> (2, 12, 1)."""
    numbers = text.split("-", maxsplit=1)[0].split(".")
    return tuple(int(number) for number in numbers if number.isdecimal())
