"""The outlet: where tasks get the pages that their tickets name, from the planner's buffer.

One conversation a connection: a ticket's request comes in, pages go out until its end, and then the
next request. While an epoch runs the task says what is stored, over the same connection. A key that
only tickets carry opens it (multiprocessing's HMAC challenge); it listens on a unix socket in the
private run folder, or where the cluster reaches the driver.
"""

import pickle
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import (
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)
from multiprocessing.context import AuthenticationError
from typing import Protocol

import ormsgpack

from penstock.errors import Malformed, PenstockError
from penstock.handover.conversation import DONE, END, FAILED, PAGE, STORED, Request, place_of
from penstock.handover.ticket import head_of
from penstock.page import Page
from penstock.position import PartitionId, Place

__all__ = ["Draw", "PageServer"]

# Seconds between looks at the clock and at what the task says, while no page comes.
LOOK = 0.1


class Draw(Protocol):
    """`Planner.draw`: what the outlet draws from."""

    def __call__(
        self, partition: PartitionId, after: Place | None, until: Place | None, wait: float
    ) -> tuple[Sequence[Page], bool]:
        """The buffered pages behind `after` (up to `until`), waiting at most `wait` seconds for
        the first; and whether nothing more will come. Raises what reading failed with."""
        ...


class PageServer:
    """Serves pages to tasks. `address` is `unix:PATH` (without a path: one in a new private
    folder) or `tcp:HOST`; after `open` the attributes
    `address` and `key` are what tickets must carry.

    `stored` hears what tasks say is durable; `watch` is called again and again by a thread of its
    own, and what it raises ends every conversation; when `closing` is true, epochs end.
    """

    def __init__(
        self,
        address: str,
        draw: Draw,
        *,
        stored: Callable[[PartitionId, Place], None] = lambda _, __: None,
        closing: Callable[[], bool] = lambda: False,
        watch: Callable[[], None] | None = None,
    ) -> None:
        self._draw = draw
        self._stored = stored
        self._closing = closing
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
                self._watch()
            except Exception as error:
                self._failure = PenstockError.of(error, "saving positions")
                return
            time.sleep(LOOK)

    def _attend(self, connection: Connection) -> None:
        # The challenge is here, not in the listener: a stranger that says nothing must not keep
        # others from the door.
        with connection, suppress(EOFError, OSError, AuthenticationError):
            deliver_challenge(connection, self.key)
            answer_challenge(connection, self.key)
            while True:
                message = connection.recv_bytes()
                try:
                    if message[:1] in (STORED, DONE):
                        self._hear(message)
                    else:
                        self._serve(connection, Request.unpack(message))
                    if message[:1] != STORED:
                        connection.send_bytes(END)
                except PenstockError as error:
                    connection.send_bytes(FAILED + pickle.dumps(error))

    def _serve(self, connection: Connection, request: Request) -> None:
        begun = time.monotonic()
        deadline, latest = begun + request.seconds, begun + max(request.seconds, request.most)
        after, over = request.after, False
        while not over:
            wait = LOOK if request.until else max(0.0, min(LOOK, deadline - time.monotonic()))
            pages, over = self._draw(request.partition, after, request.until, wait)
            for page in pages:
                connection.send_bytes(PAGE + head_of(page))
                connection.send_bytes(page.payload)
                after = page.last
            while connection.poll():
                self._hear(connection.recv_bytes())
            if self._failure is not None:
                raise self._failure
            if request.until is None:
                ends = latest if pages else deadline
                over = over or self._closing() or time.monotonic() >= ends

    def _hear(self, message: bytes) -> None:
        if message[:1] not in (STORED, DONE):
            raise Malformed("a task spoke out of turn")
        partition, text = ormsgpack.unpackb(message[1:])
        place = place_of(text)
        if place is not None:
            self._stored(PartitionId(partition), place)
