"""The outlet: where tasks get the pages that their tickets name, from the planner's buffer.

One conversation a connection: a ticket's request comes in, pages go out until its end, and then the
next request. While an epoch runs the task says what is stored, over the same connection. A key that
only tickets carry opens it (multiprocessing's HMAC challenge); it listens on a unix socket in the
private run folder, or where the cluster reaches the driver.
"""

import pickle
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Protocol

import ormsgpack

from penstock.connections import Server
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
    """Serves pages to tasks at a `Server`'s `address`, `bind` and `port`. After `open` the
    attributes `address` and `key` are what tickets must carry.

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
        bind: str = "",
        port: int = 0,
    ) -> None:
        self._draw = draw
        self._stored = stored
        self._closing = closing
        self._watch = watch
        self._failure: PenstockError | None = None
        self._server = Server(address, self._attend, bind=bind, port=port)
        self._is_open = False

    @property
    def address(self) -> str:
        """Where tasks connect to; complete after `open`."""
        return self._server.address

    @property
    def key(self) -> bytes:
        """What tickets must carry."""
        return self._server.key

    def open(self) -> None:
        """Listens; idempotent. Raises what `Server.open` does."""
        if self._is_open:
            return
        self._server.open()
        self._is_open = True
        threading.Thread(target=self._look, daemon=True).start()

    def close(self) -> None:
        """Takes no more tasks; nothing depends on it."""
        self._is_open = False
        self._server.close()

    def _look(self) -> None:
        while self._watch is not None and self._is_open:
            try:
                self._watch()
            except Exception as error:
                self._failure = PenstockError.of(error, "saving positions")
                return
            time.sleep(LOOK)

    def _attend(self, connection: Connection) -> None:
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
