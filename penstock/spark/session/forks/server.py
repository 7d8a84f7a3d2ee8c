"""The fork server: a process with one thread, so that forking is safe.

It ends, and its workers with it, when the service does.
"""

import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from penstock.process.plugins import plugin
from penstock.spark.session.forks.worker import ForkRequest, run

# What Spark's workers import before they know what they are for.
_MODULES = (
    "numpy", "pyarrow", "pyspark.daemon", "pyspark.worker", "pyspark.sql.worker.utils",
    "pyspark.sql.worker.create_data_source", "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.plan_data_source_read", "pyspark.sql.worker.write_into_data_source",
    "pyspark.sql.worker.python_streaming_sink_runner",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "penstock.spark.datasource",
    # What connecting to a host by its name imports.
    "encodings.idna",
)  # fmt: skip

# Seconds that children have to end by themselves when the service has ended, and after they were
# asked to.
_GRACE = 2.0
_ASKED = 1.0
_PATIENCE = 5.0


@dataclass(slots=True, kw_only=True)
class _Child:
    """`connection` is its launcher's, None after that has ended; `until`: when it is killed."""

    connection: socket.socket | None
    until: float | None = None


class ForkServer:
    """Serves the launchers that connect to `listener`, until standard input ends."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._children: dict[int, _Child] = {}
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)

    def serve(self) -> ForkRequest | None:
        """Returns None at the end; in a child, the request that it is to run."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake)
        while True:
            ready = self._ready()
            if self._listener.fileno() in ready and (request := self._fork()):
                return request
            self._reap()
            self._end_orphans(ready)
            if 0 in ready:
                self._end()
                return None

    def _ready(self) -> set[int]:
        poll = select.poll()
        for number in (0, self._listener.fileno(), self._woken):
            poll.register(number, select.POLLIN)
        for child in self._children.values():
            if child.connection is not None:
                poll.register(child.connection, select.POLLIN)
        waiting = any(child.until is not None for child in self._children.values())
        found = {number for number, _ in poll.poll(100 if waiting else None)}
        if self._woken in found:
            with suppress(BlockingIOError):
                os.read(self._woken, 4096)
        return found

    def _fork(self) -> ForkRequest | None:
        """In the child: the request."""
        connection, _ = self._listener.accept()
        connection.settimeout(_PATIENCE)
        try:
            request = ForkRequest.receive(connection)
        except (OSError, ValueError):
            connection.close()  # the launcher replaces itself by Python
            return None
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError:  # no memory, too many processes: Spark's own way may still work
            request.close()
            connection.close()
            return None
        if pid == 0:
            self._release(connection)
            request.take_over(parent)
            return request
        self._add(pid, request, connection)
        return None

    def _add(self, pid: int, request: ForkRequest, connection: socket.socket) -> None:
        request.close()
        with suppress(OSError):
            os.setpgid(pid, pid)
        self._children[pid] = _Child(connection=connection)
        with suppress(OSError):
            connection.sendall(b"b")

    def _release(self, connection: socket.socket) -> None:
        """Closes what a child must not hold open: the ends of its siblings would not be seen."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        for sibling in self._children.values():
            if sibling.connection is not None:
                sibling.connection.close()
        connection.close()
        self._listener.close()
        os.close(self._woken)
        os.close(self._wake)

    def _reap(self) -> None:
        """Sends launchers the exit codes of their workers."""
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            child = self._children.pop(pid, None)
            if child is None or child.connection is None:
                continue
            code = os.waitstatus_to_exitcode(status)
            with suppress(OSError):
                child.connection.sendall((code if code >= 0 else 128 - code).to_bytes(4, "big"))
            child.connection.close()

    def _end_orphans(self, ready: set[int]) -> None:
        """Ends workers whose launcher has ended: SIGTERM, then SIGKILL to their process group."""
        now = time.monotonic()
        for pid, child in self._children.items():
            if child.connection is not None and child.connection.fileno() in ready:
                child.connection.close()
                child.connection = None
                _signal(pid, signal.SIGTERM)
                child.until = now + _ASKED
            if child.until is not None and now >= child.until:
                _signal(pid, signal.SIGKILL, group=True)

    def _end(self) -> None:
        """The service has ended, so the JVM ends, and the workers have nothing left to do."""
        self._listener.close()
        self._await(_GRACE)
        for pid in self._children:
            _signal(pid, signal.SIGTERM)
        self._await(_ASKED)
        for pid in self._children:
            _signal(pid, signal.SIGKILL, group=True)

    def _await(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._children and (rest := until - time.monotonic()) > 0:
            poll = select.poll()
            poll.register(self._woken, select.POLLIN)
            if poll.poll(rest * 1000):
                os.read(self._woken, 4096)
            self._reap()


def _signal(pid: int, number: int, *, group: bool = False) -> None:
    with suppress(ProcessLookupError, PermissionError):
        (os.killpg if group else os.kill)(pid, number)


def preload(plugins: Sequence[str]) -> None:
    """Imports all of it, and the plug-ins that are named `feeds/postgres`, `sinks/jetstream`."""
    for module in _MODULES:
        importlib.import_module(module)
    for each in plugins:
        kind, _, name = each.partition("/")
        plugin(kind, name)
    # Objects that are alive now stay: the workers' collectors need not touch (and copy) them.
    gc.collect()
    gc.freeze()


def main() -> None:
    """The program: its arguments are LISTENER, an inherited socket's number, and plug-ins."""
    number, *plugins = sys.argv[1:]
    preload(plugins)
    request = ForkServer(socket.socket(fileno=int(number))).serve()
    if request is not None:
        run(request)


if __name__ == "__main__":
    main()
