"""Holds the messages of snapshots up, at a point that a test chooses."""

import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from penstock.snapshots.init_stream import InitStream


class Gate:
    """Before the `number`-th message under subjects that begin with `start`: it and all after it
    wait until `open`. `then`: raised after such a message was stored, as if its answer was lost."""

    def __init__(
        self,
        patch: pytest.MonkeyPatch,
        start: str,
        number: int = 1,
        then: Exception | None = None,
    ) -> None:
        self._reached, self._open = threading.Event(), threading.Event()
        counted, lock, publish = itertools.count(1), threading.Lock(), InitStream.publish

        def held(stream: InitStream, subject: str, *more: Any) -> int:
            if not subject.startswith(start):
                return publish(stream, subject, *more)
            with lock:
                is_held = next(counted) >= number
            if is_held:
                self._reached.set()
                assert self._open.wait(120)
            sequence = publish(stream, subject, *more)
            if is_held and then is not None:
                raise then
            return sequence

        patch.setattr(InitStream, "publish", held)

    def reached(self) -> None:
        """Returns when a message waits."""
        assert self._reached.wait(120)

    def during(self, job: Callable[[], object], meanwhile: Callable[[], object]) -> None:
        """Runs a job in a thread, and does something while a message waits; raises what the job
        raises."""
        with ThreadPoolExecutor() as pool:
            running = pool.submit(job)
            self.reached()
            meanwhile()
            self.open()
            running.result(120)

    def open(self) -> None:
        """Lets all pass."""
        self._open.set()
