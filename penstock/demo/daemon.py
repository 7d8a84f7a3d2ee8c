"""One server process: started until it is ready, stopped, killed, started again.

Independent of PostgreSQL and NATS. The process has its own session, so that Ctrl-C in the terminal
reaches the demo only, which stops the servers in order.
"""

import atexit
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from penstock.model.errors import Unavailable

_PORT_TAKEN = ("address already in use", "could not bind")
# After a kill PostgreSQL's children run on for a moment, and hold the shared memory.
_NOT_YET = ("pre-existing shared memory block", "lock file", *_PORT_TAKEN)


class PortTaken(Unavailable):
    """The server could not listen on its port."""


class Daemon:
    """A child process with a log file; constructing one starts nothing."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id; raises Unavailable when it does not run."""
        if self._process is None or self._process.poll() is not None:
            raise Unavailable(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(
        self,
        command: Sequence[str],
        *,
        ready: Callable[[], bool],
        user: int | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        again: bool = False,
    ) -> None:
        """Starts the process and waits until `ready()`.

        Raises PortTaken or Unavailable with the end of the log. With `again` a port (or shared
        memory) that the previous run still holds is waited for.
        """
        deadline = time.monotonic() + timeout
        output = ""
        while True:
            logged = self._spawn(command, user, env)
            if self._became_ready(ready, deadline):
                return
            self.signal(signal.SIGKILL)
            self.wait(10)
            # At the deadline the last try may not have logged anything yet.
            output = self.log.read_bytes()[logged:].decode(errors="replace").lower() or output
            if again and time.monotonic() < deadline and any(text in output for text in _NOT_YET):
                time.sleep(0.1)
                continue
            kind = PortTaken if any(text in output for text in _PORT_TAKEN) else Unavailable
            raise kind(f"{self.name} did not start; the end of its log:\n{self.tail(40)}")

    def _spawn(
        self, command: Sequence[str], user: int | None, env: Mapping[str, str] | None
    ) -> int:
        with self.log.open("ab") as log:
            logged = log.tell()
            self._process = subprocess.Popen(  # noqa: S603 - our own servers
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=None if env is None else {**os.environ, **env},
                user=user,
                group=user,
                extra_groups=None if user is None else [],
                cwd="/",
                start_new_session=True,
            )
        atexit.register(self.signal, signal.SIGKILL)
        return logged

    def _became_ready(self, ready: Callable[[], bool], deadline: float) -> bool:
        while self.running and time.monotonic() < deadline:
            if ready():
                # Another server may have answered on the port while this one exited.
                return self.running
            time.sleep(0.02)
        return False

    def signal(self, number: int) -> None:
        """Sends a signal, if the process is alive."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def wait(self, timeout: float) -> bool:
        """Waits until the process has ended; False when it has not in time."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        atexit.unregister(self.signal)
        return True

    def tail(self, lines: int = 15) -> str:
        """The last lines of the log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
