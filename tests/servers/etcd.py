"""A real etcd, embedded: one member, or a cluster of several."""

import os
import shutil
import ssl
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from penstock.demo.servers import EmbeddedServer, free_port
from penstock.model.errors import Unavailable


def etcd_program() -> Path:
    """The program: on the PATH, or where scripts/test unpacks Debian's; raises Unavailable."""
    found = shutil.which("etcd")
    unpacked = Path(sys.prefix, "etcd", "usr", "bin", "etcd")
    if found is None and not unpacked.exists():
        raise Unavailable("etcd is not installed", hint="apt-get install etcd-server (as root)")
    return Path(found or unpacked)


class Etcd(EmbeddedServer):
    """An etcd server; `options` are more of its options, without the dashes."""

    def __init__(
        self, folder: Path | str | None = None, options: Mapping[str, str] | None = None
    ) -> None:
        self.bin = etcd_program()
        self.options = dict(options or {})
        self._member = f"penstock-{uuid.uuid4().hex[:12]}"
        self._peer = 0
        # No setting of the user's own etcd.
        self.environment = {name: "" for name in os.environ if name.startswith("ETCD_")}
        super().__init__("etcd", folder)

    @property
    def endpoint(self) -> str:
        """127.0.0.1:PORT."""
        return f"{self.host}:{self.port}"

    @property
    def url(self) -> str:
        """etcd://127.0.0.1:PORT, without a login and a prefix."""
        return f"etcd://{self.endpoint}"

    def _command(self, *, again: bool) -> Sequence[str]:
        self._peer = self._peer if again else free_port()
        scheme = "https" if "cert-file" in self.options else "http"
        peer = f"http://{self.host}:{self._peer}"
        options = {
            "name": self._member,
            "data-dir": str(self.folder / "data"),
            "listen-client-urls": f"{scheme}://{self.endpoint}",
            "advertise-client-urls": f"{scheme}://{self.endpoint}",
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"{self._member}={peer}",
            **self.options,
        }
        return [str(self.bin), *(f"--{name}={value}" for name, value in options.items())]

    def _ready(self) -> bool:
        scheme = "https" if "cert-file" in self.options else "http"
        context = ssl._create_unverified_context() if scheme == "https" else None
        try:
            address = f"{scheme}://{self.endpoint}/health"
            with urllib.request.urlopen(address, timeout=2, context=context) as answer:
                return b'"true"' in answer.read(4096)
        except (urllib.error.URLError, OSError):
            return False
