"""The page server: where tasks get the pages that their tickets name, from the reader process.

One conversation a connection: a ticket's request comes in, pages go out until its end, and then the
next request. While an epoch runs the task reports what is stored, over the same connection. A key
that only tickets carry opens it (multiprocessing's HMAC challenge); it listens on a unix socket in
the private run folder, or where the cluster reaches the driver.
"""

import os
import pickle
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from typing import Any

from penstock.microbatch.conversation import (
    BOOKMARKS,
    DONE,
    END,
    FAILED,
    GAP,
    PAGE,
    RECORDED,
    REQUEST,
    ROWS,
    STORED,
    FoundGap,
    Request,
    Rows,
    read_bookmarks,
    read_stored,
)
from penstock.microbatch.draw import Draw
from penstock.microbatch.options import SourceOptions
from penstock.microbatch.ticket import messages_of
from penstock.model.errors import PenstockError
from penstock.model.page import Page
from penstock.model.position import Bookmarks, Position
from penstock.process.connections import Server

# Seconds that the clock is not read while no page comes.
PAUSE = 0.1


class PageServer:
    """Serves pages to tasks at a `Server`'s `address`, `bind` and `port`. After `open` the
    attributes `address` and `key` are what tickets must carry.

    `draw` gives what a request is answered with. `stored` is called with what tasks report
    (`marked`, `lost` and `status` where they read the source by themselves);
    `watch(seconds)` again and again by a thread of its own, and what it raises ends every
    conversation; when `stopping` is true, epochs end.
    """

    def __init__(
        self,
        address: str,
        draw: Callable[[Request], Draw],
        *,
        stored: Callable[[Position], None] = lambda _: None,
        marked: Callable[[Bookmarks], None] = lambda _: None,
        lost: Callable[[FoundGap], None] = lambda _: None,
        status: Callable[[Rows], None] = lambda _: None,
        stopping: Callable[[], bool] = lambda: False,
        watch: Callable[[float], None] | None = None,
        bind: str = "",
        port: int = 0,
    ) -> None:
        self._draw = draw
        self._stored = stored
        self._marked = marked
        self._lost = lost
        self._status = status
        self._stopping = stopping
        self._watch = watch
        self._failure: PenstockError | None = None
        self._server = Server(address, self._attend, bind=bind, port=port)
        self._is_open = False

    @classmethod
    def of(
        cls, options: SourceOptions, draw: Callable[[Request], Draw], **more: Any
    ) -> "PageServer":
        """A source's: on the host that executors reach, or in the private run folder."""
        pages, runtime = options.pages, options.runtime
        address = f"tcp:{pages.host}" if pages.host else "unix:"
        if runtime and not pages.host:
            address = f"unix:{runtime}/pages-{os.getpid()}"
        return cls(address, draw, bind=pages.bind, port=pages.port, **more)

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
        threading.Thread(target=self._run_watch, daemon=True).start()

    def close(self) -> None:
        """Takes no more tasks; nothing depends on it."""
        self._is_open = False
        self._server.close()

    def _run_watch(self) -> None:
        while self._watch is not None and self._is_open:
            try:
                self._watch(PAUSE)
            except Exception as error:
                self._failure = PenstockError.of(error, "saving positions")
                return

    def _attend(self, connection: Connection) -> None:
        line = _Line(connection)
        answering: threading.Thread | None = None
        while True:
            message = connection.recv_bytes()
            if answering is not None and message[:1] in (REQUEST, DONE):
                answering.join()  # its end was sent: the task is done with it
                answering = None
            if message[:1] not in (STORED, DONE, BOOKMARKS, GAP, ROWS):
                # What is stored is taken in while pages go out: it makes room for more.
                answering = threading.Thread(target=self._answer, args=(line, message), daemon=True)
                answering.start()
                continue
            try:
                self._take(message)
                if message[:1] == DONE:
                    line.send(END)
                elif message[:1] == GAP:
                    line.send(RECORDED)
            except PenstockError as error:
                line.send(FAILED + pickle.dumps(error))

    def _take(self, message: bytes) -> None:
        if message[:1] == BOOKMARKS:
            self._marked(read_bookmarks(message))
        elif message[:1] == ROWS:
            self._status(Rows.unpack(message))
        elif message[:1] == GAP:
            self._lost(FoundGap.unpack(message))
        else:
            self._stored(read_stored(message))

    def _answer(self, line: "_Line", message: bytes) -> None:
        with suppress(OSError):  # the client is gone
            try:
                self._serve(line, Request.unpack(message))
                line.send(END)
            except OSError:
                raise
            except Exception as error:
                line.send(FAILED + pickle.dumps(PenstockError.of(error, "serving pages")))

    def _serve(self, line: "_Line", request: Request) -> None:
        begun = time.monotonic()
        deadline, latest = begun + request.seconds, begun + max(request.seconds, request.most)
        is_open, over = not request.ranges, False
        with closing(self._draw(request)) as draw:
            while not over and not line.is_closed:
                wait = max(0.0, min(PAUSE, deadline - time.monotonic())) if is_open else PAUSE
                drawn, over = draw.next(wait)
                for each in drawn:
                    if isinstance(each, Page):
                        head, *payload = messages_of(each)
                        line.send(PAGE + head, *payload)
                    else:
                        line.send(each.pack())
                if self._failure is not None:
                    raise self._failure
                if is_open:
                    ends = latest if drawn else deadline
                    over = over or self._stopping() or time.monotonic() >= ends


class _Line:
    """A connection over which two threads send: one message, or a page's two, at a time."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    @property
    def is_closed(self) -> bool:
        """Whether the client is gone: the thread that receives has closed it."""
        return self._connection.closed

    def send(self, *messages: bytes) -> None:
        """Sends messages that belong together."""
        with self._lock:
            for message in messages:
                self._connection.send_bytes(message)
