"""moto, embedded: a stand-in for Amazon DynamoDB and its streams. It keeps all in memory."""

import urllib.request
from pathlib import Path

from penstock.demo.programs import beside_python
from penstock.demo.server import EmbeddedServer


class Moto(EmbeddedServer):
    """A moto server; any credentials do."""

    def __init__(self, folder: Path | str | None = None) -> None:
        self.bin = beside_python("moto_server", extra="demo-dynamodb")
        super().__init__("moto", folder)

    @property
    def url(self) -> str:
        """The endpoint of every service."""
        return f"http://{self.host}:{self.port}"

    def _start(self, *, again: bool) -> None:
        command = [str(self.bin), "-H", self.host, "-p", str(self.port)]
        self.daemon.start(command, ready=self._ready, timeout=self.timeout, again=again)

    def _ready(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.url}/moto-api/", timeout=5).close()  # noqa: S310 - our own port
        except OSError:
            return False
        return True
