"""The pipeline of the demo, run for real: `penstock run` on a pipeline file, in a child process."""

import secrets
import shutil
import signal
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping
from math import inf
from pathlib import Path
from typing import Any, Self

import yaml

from penstock.demo.servers import Daemon, answers, free_port
from penstock.model.errors import PenstockError, Unavailable


class DemoFolder:
    """A temporary folder, which is removed in the end unless it `is_kept` or a run failed."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="penstock-demo-"))
        self.is_kept = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        if not self.is_kept and not isinstance(error, PenstockError):
            shutil.rmtree(self.path, ignore_errors=True)


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
        self.token = secrets.token_hex(8)
        self._document = document

    def start(self) -> None:
        folder = self.file.parent
        document = {
            "name": "shop",
            **self._document,
            "state": str(folder / "state"),
            "ops": {"bind": "127.0.0.1", "port": self._port, "token": self.token},
        }
        self.file.write_text(yaml.safe_dump(document, sort_keys=False))
        command = [sys.executable, "-m", "penstock", "run", str(self.file)]
        self.spawn(command, {"TMPDIR": str(folder), **self.variables}, folder)

    def ready(self) -> bool:
        """Whether what is written to the source from now on will be published."""
        return answers(f"{self.ops}/ready")

    def check(self) -> None:
        """Raises Unavailable, with the end of its log, when the process has ended."""
        if (code := self.exit_code) is not None:
            raise Unavailable(
                f"the pipeline ended with exit code {code}; the end of its log:\n{self.tail()}",
                "demo",
                hint=f"the whole log: {self.log_file}",
            )

    def wait_for(
        self,
        phase: str,
        done: Callable[[], bool],
        timeout: float = inf,
        show: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Shows the phase until it is `done`. Raises Unavailable, also after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while not done():
            self.check()
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"{phase} took longer than {timeout:.0f} s:\n{self.tail()}", "demo"
                )
            show(phase)
            time.sleep(0.2)

    def stop(self) -> int:
        """Stops the pipeline by `POST /shutdown`, and returns its exit code."""
        if self.running:
            try:
                request = urllib.request.Request(  # noqa: S310 - our own port
                    f"{self.ops}/shutdown",
                    method="POST",
                    headers={"Authorization": f"Bearer {self.token}"},
                )
                urllib.request.urlopen(request, timeout=10).close()  # noqa: S310 - our own port
            except OSError:
                self.signal(signal.SIGTERM)
        if not self.wait(60):
            self.kill()
        return self.exit_code or 0
