"""A real nats-server, embedded."""

import json
import signal
import socket
import uuid
from pathlib import Path
from typing import Any

from penstock.demo.programs import nats_server
from penstock.demo.server import EmbeddedServer


class Nats(EmbeddedServer):
    """A nats-server with JetStream."""

    stops_on = signal.SIGINT

    def __init__(self, folder: Path | str | None = None) -> None:
        self.bin = nats_server()
        self._name = f"penstock-{uuid.uuid4().hex[:12]}"
        super().__init__("nats", folder)

    @property
    def url(self) -> str:
        """nats://127.0.0.1:PORT, without a login."""
        return f"nats://{self.host}:{self.port}"

    def _configuration(self) -> dict[str, Any]:
        return {
            "host": self.host,
            "port": self.port,
            "server_name": self._name,
            "jetstream": {"store_dir": str(self.folder / "jetstream")},
        }

    def _start(self, *, again: bool) -> None:
        file = self.folder / "nats.conf"
        # The server's own format is a superset of JSON.
        file.write_text(json.dumps(self._configuration(), indent=2))
        file.chmod(0o600)
        self.daemon.start(
            [str(self.bin), "-c", str(file)], ready=self._ready, timeout=self.timeout, again=again
        )

    def _ready(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=5) as connection:
                # Another server may hold the port: compare the name.
                return self._name.encode() in connection.recv(65536)
        except OSError:
            return False
