"""Server processes: started until they are ready, stopped, killed, started again; and nats-server.

Each process has its own session, so that Ctrl-C in the terminal reaches the demo only, which stops
them in order.
"""

import atexit
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Self

from penstock.model.errors import Unavailable
from penstock.process.closing import Closes
from penstock.process.plugins import to_install

_PORT_TAKEN = ("address already in use", "could not bind")
# After a kill PostgreSQL's children run on for a moment, and hold the shared memory.
_NOT_YET = ("pre-existing shared memory block", "lock file", *_PORT_TAKEN)


def free_port() -> int:
    """A TCP port of 127.0.0.1 that is free now, below those that kernels give to connections:
    another process takes it only if it asks for this one."""
    while True:
        port = 10_000 + secrets.randbelow(10_000)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port


def answers(url: str) -> bool:
    """Whether a server of ours answers a GET."""
    try:
        urllib.request.urlopen(url, timeout=5).close()  # noqa: S310 - our own port
    except OSError:
        return False
    return True


def beside_python(program: str, *, extra: str) -> Path:
    """A program next to this Python, else on the PATH; raises Unavailable naming the extra."""
    ours = Path(sys.executable).with_name(program)
    found = ours if ours.exists() else shutil.which(program)
    if found is None:
        hint = f"pip install '{to_install(extra)}'"
        raise Unavailable(f"{program} is not installed", "demo", hint=hint)
    return Path(found)


class Daemon:
    """A child process with a log file; constructing one starts nothing."""

    user: int | None = None  # whom it runs as; ourselves

    def __init__(self, name: str, log_file: Path) -> None:
        self.name, self.log_file = name, log_file
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id; raises Unavailable when it does not run."""
        if self._process is None or not self.running:
            raise Unavailable(f"{self.name} is not running", "demo")
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """None until it has ended."""
        return None if self._process is None else self._process.poll()

    @property
    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.splitlines()[-lines:])

    def spawn(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path | str = "/"
    ) -> None:
        """Starts the process, with these variables on top of ours."""
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own servers
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                user=self.user,
                group=self.user,
                extra_groups=None if self.user is None else [],
                cwd=folder,
                start_new_session=True,
            )
        atexit.register(self.signal, signal.SIGKILL)

    def signal(self, number: int) -> None:
        if self._process is not None and self.running:
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

    def kill(self) -> None:
        """Ends the process and what it started, as a crash would: SIGKILL."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self.wait(30)


class EmbeddedServer(Daemon, Closes):
    """A server on 127.0.0.1 in `folder`; a temporary one unless given, removed in the end."""

    stops_on = signal.SIGTERM  # what ends it in order
    scheme = "http"
    host = "127.0.0.1"
    environment: Mapping[str, str] = MappingProxyType({})

    def __init__(self, name: str, folder: Path | str | None) -> None:
        self.port = 0
        self.timeout = 60.0  # seconds that a start may take
        self._temporary = folder is None
        self.folder = Path(folder or tempfile.mkdtemp(prefix=f"penstock-{name}-")).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        super().__init__(name, self.folder / "log")

    @property
    def url(self) -> str:
        """Without a login."""
        return f"{self.scheme}://{self.host}:{self.port}"

    @abstractmethod
    def _command(self, *, again: bool) -> Sequence[str]:
        """What starts it on `port`, after making the files that it needs; `again`: as before."""

    @abstractmethod
    def _ready(self) -> bool:
        """Whether it serves, and not another server on its port."""

    def start(self) -> None:
        """Waits until it serves; again, on the same port, which (or shared memory) the previous run
        may still hold for a moment. Raises Unavailable with the end of its log."""
        if self.running:
            return
        again, attempts, output = self.port != 0, 5, ""
        deadline = time.monotonic() + self.timeout
        while True:
            self.port = self.port if again else free_port()
            command = self._command(again=again)
            logged = self.log_file.stat().st_size if self.log_file.exists() else 0
            self.spawn(command, self.environment)
            if self._became_ready(deadline):
                return
            self.kill()
            attempts -= 1
            # At the deadline the last try may not have logged anything yet.
            output = self.log_file.read_bytes()[logged:].decode(errors="replace").lower() or output
            passing = _NOT_YET if again else _PORT_TAKEN
            more = time.monotonic() < deadline and (again or attempts)
            if not more or not any(text in output for text in passing):
                raise Unavailable(
                    f"{self.name} did not start; the end of its log:\n{self.tail(40)}", "demo"
                )
            time.sleep(0.1)

    def _became_ready(self, deadline: float) -> bool:
        while self.running and time.monotonic() < deadline:
            if self._ready():
                # Another server may have answered on the port while this one exited.
                return self.running
            time.sleep(0.02)
        return False

    def stop(self, *, timeout: float = 30.0) -> None:
        """Ends the server in order; by force when it takes longer than `timeout` seconds."""
        self.signal(self.stops_on)
        if not self.wait(timeout):
            self.kill()

    def close(self) -> None:
        """Ends the server in order, and removes its temporary folder."""
        self.stop()
        self._clean_up()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._clean_up()
            raise
        return self

    def _clean_up(self) -> None:
        if self._temporary:
            shutil.rmtree(self.folder, ignore_errors=True)


class Nats(EmbeddedServer):
    """A real nats-server with JetStream."""

    stops_on = signal.SIGINT
    scheme = "nats"

    def __init__(self, folder: Path | str | None = None) -> None:
        self.bin = beside_python("nats-server", extra="demo")
        self._server_name = f"penstock-{uuid.uuid4().hex[:12]}"
        super().__init__("nats", folder)

    def _configuration(self) -> str:
        """The server's own format is a superset of JSON."""
        jetstream = {"store_dir": str(self.folder / "jetstream")}
        own = {"host": self.host, "port": self.port, "server_name": self._server_name}
        return json.dumps({**own, "jetstream": jetstream}, indent=2)

    def _command(self, *, again: bool) -> Sequence[str]:
        file = self.folder / "nats.conf"
        file.write_text(self._configuration())
        file.chmod(0o600)
        return [str(self.bin), "-c", str(file)]

    def _ready(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=5) as connection:
                return self._server_name.encode() in connection.recv(65536)
        except OSError:
            return False
