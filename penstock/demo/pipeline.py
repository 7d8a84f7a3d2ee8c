"""The pipeline of the demo, run for real: `penstock run` on a pipeline file, in a child process."""

import signal
import sys
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from penstock.demo.servers import Daemon, free_port
from penstock.model.errors import Unavailable

STREAM = "CDC"


def into_stream(backend: Mapping[str, Any], subject: str) -> Mapping[str, Any]:
    """The part of a pipeline file that says from where and to where."""
    return {
        "backends": [{"name": "default", **backend}],
        "sink": {
            "type": "jetstream",
            "url": "${NATS_URL}",
            "stream": STREAM,
            "subject": subject,
            "encoding": "msgpack",
            "breaker": {"timeout": "2s"},
        },
    }


class DemoPipeline(Daemon):
    """`penstock run` on a pipeline file in `folder`, with backends and a sink as the file has them,
    and the variables that it refers to. Constructing one starts nothing."""

    def __init__(
        self, folder: Path, document: Mapping[str, Any], variables: Mapping[str, str]
    ) -> None:
        super().__init__("the pipeline", folder / "pipeline.log")
        self.file = folder / "pipeline.yaml"
        self.variables = dict(variables)
        self._port = free_port()
        self.ops = f"http://127.0.0.1:{self._port}"
        self._document = document

    def start(self) -> None:
        """Writes the file and starts the process."""
        folder = self.file.parent
        document = {
            "name": "shop",
            **self._document,
            "state": str(folder / "state"),
            "ops": {"bind": "127.0.0.1", "port": self._port},
        }
        self.file.write_text(yaml.safe_dump(document, sort_keys=False))
        command = [sys.executable, "-m", "penstock", "run", str(self.file)]
        self.spawn(command, {"TMPDIR": str(folder), **self.variables}, folder)

    def ready(self) -> bool:
        """Whether what is written to the source from now on will be published."""
        try:
            urllib.request.urlopen(f"{self.ops}/ready", timeout=5).close()  # noqa: S310 - our own port
        except OSError:
            return False
        return True

    def check(self) -> None:
        """Raises Unavailable, with the end of its log, when the process has ended."""
        if (code := self.exit_code) is not None:
            raise Unavailable(
                f"the pipeline ended with exit code {code}; the end of its log:\n{self.tail()}",
                hint=f"the whole log: {self.log_file}",
            )

    def stop(self) -> int:
        """Stops the pipeline by `POST /shutdown`, and returns its exit code."""
        if self.running:
            try:
                request = urllib.request.Request(f"{self.ops}/shutdown", method="POST")  # noqa: S310
                urllib.request.urlopen(request, timeout=10).close()  # noqa: S310 - our own port
            except OSError:
                self.signal(signal.SIGTERM)
        if not self.wait(60):
            self.kill()
        return self.exit_code or 0
