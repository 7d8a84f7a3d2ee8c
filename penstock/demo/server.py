"""What the embedded servers share: a folder, a fixed port, starting and stopping."""

import shutil
import signal
import tempfile
from abc import abstractmethod
from pathlib import Path
from typing import Self

from penstock.demo.daemon import Daemon, PortTaken
from penstock.demo.programs import free_port
from penstock.process.closing import Closes

_ATTEMPTS = 5


class EmbeddedServer(Closes):
    """A server on 127.0.0.1 in `folder`; a temporary one unless given, removed in the end."""

    stops_on = signal.SIGTERM  # what ends it in order

    def __init__(self, name: str, folder: Path | str | None) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self.timeout = 60.0  # seconds that a start may take
        self._temporary = folder is None
        self.folder = Path(folder or tempfile.mkdtemp(prefix=f"penstock-{name}-")).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.daemon = Daemon(name, self.folder / "log")

    @property
    def pid(self) -> int:
        """The process id of the server; raises Unavailable when it does not run."""
        return self.daemon.pid

    @property
    def log(self) -> str:
        """Everything the server logged so far."""
        return self.daemon.log.read_text(errors="replace")

    def start(self) -> None:
        """Starts the server and waits until it serves; again, on the same port.

        Raises Unavailable with the end of its log.
        """
        if self.daemon.running:
            return
        again = self.port != 0
        for attempt in range(_ATTEMPTS):
            self.port = self.port if again else free_port()
            try:
                self._start(again=again)
            except PortTaken:
                if again or attempt == _ATTEMPTS - 1:
                    raise
            else:
                return

    def kill(self) -> None:
        """Ends the server as a crash would: SIGKILL."""
        self.daemon.signal(signal.SIGKILL)
        self.daemon.wait(30)

    def stop(self, *, timeout: float = 30.0) -> None:
        """Ends the server in order; by force when it takes longer than `timeout` seconds."""
        self.daemon.signal(self.stops_on)
        if not self.daemon.wait(timeout):
            self.kill()

    def close(self) -> None:
        """Ends the server in order, and removes its temporary folder."""
        self.stop()
        self._clean_up()

    @abstractmethod
    def _start(self, *, again: bool) -> None: ...

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
