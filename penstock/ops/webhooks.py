"""Posts notifications to webhooks: a thread for each, so that none holds up anything else.

A URL is in no log and no error: a webhook is called by its number in `ops.notify`.
"""

import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

import orjson
import structlog

from penstock.model.problems import blot
from penstock.model.version import __version__
from penstock.ops.board import Board
from penstock.ops.notifications import Notification, StatusChanges, message, sample
from penstock.ops.reports import ProcessReport
from penstock.ops.status import Status
from penstock.ops.thresholds import Webhook
from penstock.process.backoff import delays
from penstock.process.closing import Closes
from penstock.process.repeated import Repeated

_TIMEOUT = 10.0  # seconds that each step of a request may take
_EVERY = 0.5  # seconds between two looks at what waits
_WAITING = 100  # notifications of one webhook; then the oldest is dropped
_AT_STOP = 2.0  # seconds that a stop waits for what is being sent
_ANSWER = 4_096  # bytes of it that are read
# Of the answers with 4xx, those after which another try may help.
_PASSING = (408, 425, 429)

log = structlog.get_logger("penstock")
_tries = partial(delays, first=1.0, limit=60.0)


class NotTaken(Exception):
    """A webhook did not take a notification; the text has nothing of its URL. `passes`: another try
    may help."""

    def __init__(self, why: str, *, passes: bool) -> None:
        super().__init__(why)
        self.passes = passes


class _NoRedirect(HTTPRedirectHandler):
    """Following one would turn a POST into a GET."""

    def redirect_request(self, *_: Any) -> None:
        return None


def post(webhook: Webhook, notification: Notification, *, timeout: float = _TIMEOUT) -> None:
    """Raises NotTaken."""
    body = orjson.dumps(message(notification, webhook.message_format))
    agent = {"Content-Type": "application/json", "User-Agent": f"penstock/{__version__}"}
    request = Request(webhook.url.get_secret_value(), body, agent)  # noqa: S310 - http(s) only
    try:
        with build_opener(_NoRedirect).open(request, timeout=timeout) as answer:
            answer.read(_ANSWER)
    except HTTPError as error:
        error.close()
        passes = error.code >= 500 or error.code in _PASSING
        raise NotTaken(f"HTTP {error.code}", passes=passes) from None
    except (OSError, HTTPException, ValueError) as error:
        # The text of any other error may have the URL.
        reason = error.reason if isinstance(error, URLError) else error
        why = reason.strerror if isinstance(reason, OSError) else None
        raise NotTaken(why or type(reason).__name__, passes=True) from None


class Sender(Closes):
    """Sends what is `put`, in order; tries again until it is taken or refused for good. `name` is
    what the log calls the webhook."""

    def __init__(
        self, webhook: Webhook, name: str, board: Board, *, timeout: float = _TIMEOUT
    ) -> None:
        self._webhook, self._name, self._board, self._timeout = webhook, name, board, timeout
        self._waiting: deque[Notification] = deque()
        self._waits, self._again_at, self._is_failing = _tries(), 0.0, False
        self._repeated = Repeated(self._send, interval=_EVERY, name=name).start()

    def put(self, notification: Notification) -> None:
        """Never waits."""
        if notification.kind in self._webhook.when:
            if len(self._waiting) >= _WAITING:
                self._drop(self._waiting.popleft(), "too many wait")
            self._waiting.append(notification)

    def close(self, patience: float = 0.0) -> None:
        """Waits so many seconds for what is being sent; the rest is dropped."""
        self._repeated.close(patience)
        while self._waiting:
            self._drop(self._waiting.popleft(), "the process ends")

    def _send(self) -> None:
        while self._waiting and time.monotonic() >= self._again_at:
            if self._repeated.is_closed:
                return
            notification = self._waiting.popleft()
            try:
                post(self._webhook, notification, timeout=self._timeout)
            except NotTaken as error:
                self._failed(notification, error)
            else:
                self._count("sent")
                if self._is_failing:
                    log.info("a webhook takes notifications again", webhook=self._name)
                self._waits, self._is_failing = _tries(), False

    def _failed(self, notification: Notification, error: NotTaken) -> None:
        self._count("failed")
        if not error.passes or self._repeated.is_closed:
            self._drop(notification, str(error))
            return
        if not self._is_failing:
            log.warning("a webhook is tried again", webhook=self._name, error=str(error))
        self._is_failing = True
        self._waiting.appendleft(notification)
        self._again_at = time.monotonic() + next(self._waits)

    def _drop(self, notification: Notification, why: str) -> None:
        self._count("dropped")
        kind, title = notification.kind, notification.title
        log.error("a notification was dropped", webhook=self._name, kind=kind, title=title, why=why)

    def _count(self, outcome: str) -> None:
        self._board.add("", ProcessReport(notifications={outcome: 1}))


class Notifier(Closes):
    """Notifies webhooks of a pipeline's changes; `secrets` are blotted out."""

    def __init__(
        self, webhooks: Sequence[Webhook], board: Board, *, settled: float, secrets: set[str]
    ) -> None:
        began, host = time.time(), socket.gethostname()
        self._changes = StatusChanges(host=host, settled=settled, began=began)
        self._secrets = secrets
        self._senders = [Sender(each, _name(n), board) for n, each in enumerate(webhooks)]

    def hide(self, secrets: set[str]) -> None:
        self._secrets = self._secrets | secrets

    def look(self, status: Status) -> None:
        """Call it about once a second; never waits."""
        if not self._senders:
            return
        for each in self._changes.notifications(status, time.monotonic(), time.time()):
            clean = replace(each, lines=[blot(line, self._secrets) for line in each.lines])
            for sender in self._senders:
                sender.put(clean)

    def close(self) -> None:
        """Takes no longer than _AT_STOP, however many webhooks hang."""
        deadline = time.monotonic() + _AT_STOP
        for sender in self._senders:
            sender.close(max(0.0, deadline - time.monotonic()))


def try_each(webhooks: Sequence[Webhook], pipeline: str) -> Iterator[tuple[str, str]]:
    """Posts a sample to each, once: its name, and why it did not take it."""
    test = sample(pipeline, host=socket.gethostname(), at=time.time())
    for n, webhook in enumerate(webhooks):
        try:
            post(webhook, test)
        except NotTaken as error:
            yield _name(n), str(error)
        else:
            yield _name(n), ""


def _name(number: int) -> str:
    return f"ops.notify[{number}]"
