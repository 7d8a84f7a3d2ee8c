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
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from typing import Any, Protocol

from penstock.microbatch.draw import Draw
from penstock.microbatch.options import SourceOptions
from penstock.microbatch.ticket import (
    PAGE,
    FoundGap,
    Report,
    ReportedPlaces,
    Request,
    Signal,
    messages_of,
)
from penstock.model.errors import Malformed, PenstockError
from penstock.model.page import Page
from penstock.process.connections import Server

# Seconds between two looks whether an epoch ends, which asks the file system: while pages go out,
# and while there are none. What wakes a draw without a page has it looked at, too.
PAUSE, QUIET = 0.1, 1.0


class Pages(Protocol):
    """What a page server serves: a reading's pages, or partitions."""

    def draw(self, request: Request) -> Draw:
        """The answer to a request."""

    def take(self, report: Report) -> None:
        """Takes in what a task reports. The task gets the PenstockError that it raises."""

    def check(self) -> None:
        """Called for each page of an open epoch. What it raises ends every conversation of one."""

    def is_over(self) -> bool:
        """Whether an open epoch ends now; asked every `PAUSE` seconds, or every `QUIET` ones."""


class PageServer(Server):
    """Serves `pages` to tasks, whose tickets carry `address` and `key` as they are after `open`."""

    def __init__(self, address: str, pages: Pages, *, bind: str = "", port: int = 0) -> None:
        super().__init__(address, self._converse, bind=bind, port=port)
        self._pages = pages

    @classmethod
    def of(cls, options: SourceOptions, pages: Pages) -> "PageServer":
        """A source's: on the host that executors reach, or in the private run folder."""
        chosen, runtime = options.pages, options.runtime
        address = f"tcp:{chosen.host}" if chosen.host else "unix:"
        if runtime and not chosen.host:
            address = f"unix:{runtime}/pages-{os.getpid()}"
        return cls(address, pages, bind=chosen.bind, port=chosen.port)

    def _converse(self, connection: Connection) -> None:
        line = _Line(connection)
        answering: threading.Thread | None = None
        while True:
            message = connection.recv()
            if answering is not None and (message is Signal.DONE or isinstance(message, Request)):
                answering.join()  # its end was sent: the task is done with it
                answering = None
            if isinstance(message, Request):
                # What is stored is taken in while pages go out: it makes room for more.
                answering = threading.Thread(target=self._answer, args=(line, message), daemon=True)
                answering.start()
            elif message is Signal.DONE:
                line.send_value(Signal.END)
            else:
                self._take(line, message)

    def _take(self, line: "_Line", report: Any) -> None:
        try:
            if not isinstance(report, Report):
                raise Malformed("a task sent an unknown message", "microbatch")
            self._pages.take(report)
            if isinstance(report, FoundGap):
                line.send_value(Signal.RECORDED)
        except PenstockError as error:
            line.send_value(error)

    def _answer(self, line: "_Line", request: Request) -> None:
        with suppress(OSError):  # the client is gone
            try:
                self._send_pages(line, request)
                line.send_value(Signal.END)
            except OSError:
                raise
            except Exception as error:
                line.send_value(PenstockError.of(error, "serving pages"))

    def _send_pages(self, line: "_Line", request: Request) -> None:
        begun = time.monotonic()
        deadline, latest = begun + request.seconds, begun + max(request.seconds, request.most)
        is_open, over, look_at = not request.ranges, False, begun
        with closing(self._pages.draw(request)) as draw:
            if draw.begins:
                line.send_value(ReportedPlaces(draw.begins))
            while not over and not line.is_closed:
                pause = min(look_at, deadline) - time.monotonic() if is_open else PAUSE
                wait = max(0.0, pause)
                drawn, over = draw.next(wait)
                for each in drawn:
                    if isinstance(each, Page):
                        head, *payload = messages_of(each)
                        line.send(PAGE + head, *payload)
                    else:
                        line.send_value(each)
                if is_open:
                    self._pages.check()
                    now, ends = time.monotonic(), latest if drawn else deadline
                    over = over or now >= ends
                    if not drawn or now >= look_at:
                        over = self._pages.is_over() or over
                        look_at = now + (PAUSE if drawn else QUIET)


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
        with self._lock:
            for message in messages:
                self._connection.send_bytes(message)

    def send_value(self, value: Any) -> None:
        self.send(pickle.dumps(value))
