"""The page server: where tasks get the pages that their tickets name, from the reader process.

One conversation a connection: a ticket's request comes in, pages go out until its end, and then the
next request. While an epoch runs the task reports what is stored, over the same connection. A key
that only tickets carry opens it (multiprocessing's HMAC challenge); it listens on a unix socket in
the private run folder, or where the cluster reaches the driver.
"""

import pickle
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from multiprocessing.connection import (
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)
from multiprocessing.context import AuthenticationError

from penstock.errors import PenstockError
from penstock.handover.conversation import (
    DONE,
    END,
    FAILED,
    PAGE,
    STORED,
    Request,
    read_stored,
)
from penstock.handover.ticket import head_of
from penstock.position import Position
from penstock.reading.draw import Draw

__all__ = ["PageServer"]

# Seconds between looks at the clock while no page comes.
LOOK = 0.1


class PageServer:
    """Serves pages to tasks. `address` is `unix:PATH` (without a path: one in a new private
    folder) or `tcp:HOST`; after `open` the attributes `address` and `key` are what tickets must
    carry.

    `draw` gives what a request is answered with. `stored` is called with what tasks report;
    `watch(seconds)` again and again by a thread of its own, and what it raises ends every
    conversation; when `stopping` is true, epochs end.
    """

    def __init__(
        self,
        address: str,
        draw: Callable[[Request], Draw],
        *,
        stored: Callable[[Position], None] = lambda _: None,
        stopping: Callable[[], bool] = lambda: False,
        watch: Callable[[float], None] | None = None,
    ) -> None:
        self._draw = draw
        self._stored = stored
        self._stopping = stopping
        self._watch = watch
        self._failure: PenstockError | None = None
        self._wanted = address
        self._listener: Listener | None = None
        self.key = secrets.token_bytes(32)
        self.address = ""

    def open(self) -> None:
        """Listens (on a free port, if it is TCP); idempotent."""
        if self._listener is not None:
            return
        kind, _, rest = self._wanted.partition(":")
        if kind == "unix":
            self._listener = Listener(rest or None, "AF_UNIX", backlog=16)
            self.address = f"unix:{self._listener.address}"
        else:
            self._listener = Listener((rest, 0), "AF_INET", backlog=16)
            self.address = f"tcp:{rest}:{self._listener.address[1]}"
        for work in (self._accept, self._look):
            threading.Thread(target=work, args=(self._listener,), daemon=True).start()

    def close(self) -> None:
        """Takes no more tasks; nothing depends on it."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def _accept(self, listener: Listener) -> None:
        while self._listener is listener:
            try:
                connection = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def _look(self, listener: Listener) -> None:
        while self._watch is not None and self._listener is listener:
            try:
                self._watch(LOOK)
            except Exception as error:
                self._failure = PenstockError.of(error, "saving positions")
                return

    def _attend(self, connection: Connection) -> None:
        # The challenge is here, not in the listener: a stalled client must not block accept().
        with connection, suppress(EOFError, OSError, AuthenticationError):
            deliver_challenge(connection, self.key)
            answer_challenge(connection, self.key)
            sending: threading.Thread | None = None
            while True:
                message = connection.recv_bytes()
                if sending is not None and message[:1] != STORED:
                    sending.join()  # its end was sent: the task is done with it
                    sending = None
                if message[:1] not in (STORED, DONE):
                    # What is stored is taken in while pages go out: it makes room for more.
                    sending = threading.Thread(
                        target=self._answer, args=(connection, message), daemon=True
                    )
                    sending.start()
                    continue
                try:
                    self._stored(read_stored(message))
                    if message[:1] == DONE:
                        connection.send_bytes(END)
                except PenstockError as error:
                    connection.send_bytes(FAILED + pickle.dumps(error))

    def _answer(self, connection: Connection, message: bytes) -> None:
        with suppress(OSError):
            try:
                self._serve(connection, Request.unpack(message))
                connection.send_bytes(END)
            except PenstockError as error:
                connection.send_bytes(FAILED + pickle.dumps(error))

    def _serve(self, connection: Connection, request: Request) -> None:
        begun = time.monotonic()
        deadline, latest = begun + request.seconds, begun + max(request.seconds, request.most)
        is_open, over = not request.ranges, False
        with closing(self._draw(request)) as draw:
            while not over:
                wait = max(0.0, min(LOOK, deadline - time.monotonic())) if is_open else LOOK
                pages, over = draw.next(wait)
                for page in pages:
                    connection.send_bytes(PAGE + head_of(page))
                    connection.send_bytes(page.payload)
                if self._failure is not None:
                    raise self._failure
                if is_open:
                    ends = latest if pages else deadline
                    over = over or self._stopping() or time.monotonic() >= ends
                elif not pages and connection.closed:
                    return
