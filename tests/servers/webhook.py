"""A webhook of the suite."""

import json
import threading
from typing import Any

from tests.servers.http import HttpHandler, HttpStandIn


class _Handler(HttpHandler):
    def do_POST(self) -> None:
        hook: WebhookServer = self.stand_in
        body = self.body()
        with hook.lock:
            code = hook.answers.pop(0) if hook.answers else 200
            if code == 200:
                hook.taken.append(json.loads(body))
            hook.paths.append(self.path)
        if code == 0:  # no answer, until the server ends
            hook.over.wait(60)
            return
        self.send(code, b"ok", {"Location": "/elsewhere"} if code in (302, 307) else {})

    def do_GET(self) -> None:
        self.stand_in.paths.append("GET")
        self.send(200, b"ok", {})


class WebhookServer(HttpStandIn):
    """`answers` are the codes of the next answers, 0: none at all; then 200. `taken` are the bodies
    that were answered so."""

    handler = _Handler

    def __init__(self, *answers: int) -> None:
        super().__init__()
        self.answers, self.lock, self.over = list(answers), threading.Lock(), threading.Event()
        self.taken: list[Any] = []
        self.paths: list[str] = []

    def __exit__(self, *_: object) -> None:
        self.over.set()
        super().__exit__()

    def of(self, kind: str) -> list[Any]:
        return [each for each in self.taken if each["kind"] == kind]
