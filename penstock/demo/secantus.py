"""SecantusDB, embedded: a stand-in for a MongoDB replica set of one member.

It is GPL, so it is always a process of its own, and nothing of it is imported.
"""

from collections.abc import Mapping
from pathlib import Path

import pymongo
from pymongo.errors import PyMongoError

from penstock.demo.programs import beside_python
from penstock.demo.server import EmbeddedServer


class Secantus(EmbeddedServer):
    """A SecantusDB; `options` are its options without the dashes, on top of ours; change the
    mapping before the next `start`. True: an option without a value."""

    def __init__(
        self, folder: Path | str | None = None, options: Mapping[str, object] | None = None
    ) -> None:
        self.bin = beside_python("secantusd-py", extra="demo-mongodb")
        self.options: dict[str, object] = {"sync-on-commit": True, **(options or {})}
        super().__init__("secantus", folder)

    @property
    def url(self) -> str:
        """mongodb://127.0.0.1:PORT, without a login."""
        return f"mongodb://{self.host}:{self.port}"

    def _start(self, *, again: bool) -> None:
        options = {
            "host": self.host,
            "port": self.port,
            "storage-path": self.folder / "data",
            **self.options,
        }
        command = [str(self.bin)]
        for name, value in options.items():
            if value is not False:
                command += [f"--{name}"] if value is True else [f"--{name}", str(value)]
        self.daemon.start(command, ready=self._ready, timeout=self.timeout, again=again)

    def _ready(self) -> bool:
        try:
            client: pymongo.MongoClient[dict[str, object]]
            with pymongo.MongoClient(self.url, serverSelectionTimeoutMS=500) as client:
                client.admin.command("ping")
        except PyMongoError:
            return False
        return True
