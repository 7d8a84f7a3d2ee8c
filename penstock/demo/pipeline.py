"""The pipeline of the demo, run for real: `penstock run` on a pipeline file, in a child process."""

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from penstock.demo.programs import free_port
from penstock.model.errors import Unavailable

STREAM = "CDC"


class DemoPipeline:
    """`penstock run` on a pipeline file in `folder`, with a backend and a subject as the file has
    them, and the variables that it refers to. Constructing one starts nothing."""

    def __init__(
        self, folder: Path, backend: Mapping[str, Any], subject: str, variables: Mapping[str, str]
    ) -> None:
        self.file = folder / "pipeline.yaml"
        self.log = folder / "pipeline.log"
        self.port = free_port()
        self.ops = f"http://127.0.0.1:{self.port}"
        self.variables = dict(variables)
        self._backend = backend
        self._subject = subject
        self._env = {**os.environ, "TMPDIR": str(folder), **variables}
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Writes the file and starts the process."""
        self.file.write_text(yaml.safe_dump(self._document(), sort_keys=False))
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - ourselves
                [sys.executable, "-m", "penstock", "run", str(self.file)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
                cwd=self._folder,
                # Ctrl-C reaches the demo only, which stops the writer first and then the pipeline.
                start_new_session=True,
            )

    def _document(self) -> dict[str, Any]:
        return {
            "name": "shop",
            "backends": [{"name": "default", **self._backend}],
            "sink": {
                "type": "jetstream",
                "url": "${NATS_URL}",
                "stream": STREAM,
                "subject": self._subject,
                "encoding": "msgpack",
                "breaker": {"timeout": "2s"},
            },
            "state": str(self._folder / "state"),
            "ops": {"bind": "127.0.0.1", "port": self.port},
        }

    def ready(self) -> bool:
        """Whether what is written to the source from now on will be published."""
        try:
            urllib.request.urlopen(f"{self.ops}/ready", timeout=5).close()  # noqa: S310 - our own port
        except OSError:
            return False
        return True

    def check(self) -> None:
        """Raises Unavailable, with the end of its log, when the process has ended."""
        if self._process is not None and (code := self._process.poll()) is not None:
            raise Unavailable(
                f"the pipeline ended with exit code {code}; the end of its log:\n{self.tail()}",
                hint=f"the whole log: {self.log}",
            )

    def stop(self, timeout: float = 60.0) -> int:
        """Stops the pipeline by `POST /shutdown`, and returns its exit code."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            try:
                request = urllib.request.Request(f"{self.ops}/shutdown", method="POST")  # noqa: S310
                urllib.request.urlopen(request, timeout=10).close()  # noqa: S310 - our own port
            except OSError:
                self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            return self._process.wait(30)

    def kill(self) -> None:
        """Ends it and everything it started, at once."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)

    def tail(self, lines: int = 15) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
