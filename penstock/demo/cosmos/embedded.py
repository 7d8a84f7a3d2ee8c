"""The stand-in as a process of its own."""

import socket
import sys
from pathlib import Path

from penstock.demo.cosmos.server import KEY
from penstock.demo.server import EmbeddedServer


class EmbeddedCosmos(EmbeddedServer):
    """A Cosmos DB stand-in on a free port."""

    key = KEY

    def __init__(self, folder: Path | str | None = None) -> None:
        super().__init__("cosmos", folder)

    @property
    def url(self) -> str:
        """The endpoint of the account."""
        return f"http://{self.host}:{self.port}"

    def _start(self, *, again: bool) -> None:
        command = [sys.executable, "-m", "penstock.demo.cosmos.server", str(self.port)]
        self.daemon.start(command, ready=self._ready, timeout=self.timeout, again=again)

    def _ready(self) -> bool:
        try:
            socket.create_connection((self.host, self.port), 5).close()
        except OSError:
            return False
        return True
