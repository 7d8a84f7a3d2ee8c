"""The pipeline under test: `penstock run` as a child process, as a user would start it."""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.servers import Nats, free_port

from .variants import merged
from .viewers import viewers

STREAM = "BENCH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A started pipeline."""

    pid: int
    started: float
    log: Path
    port: int

    def check(self) -> None:
        """Raises when the process is gone."""
        stat = Path(f"/proc/{self.pid}/stat")
        if not stat.exists() or " Z " in stat.read_text():
            raise RuntimeError(f"the pipeline ended:\n{self.log.read_text()[-3000:]}")

    def published(self) -> int:
        """Changes that the sink has stored, as /status says."""
        try:
            sinks = self.status()["sinks"]
        except (OSError, ValueError):
            return 0
        return sum(int(sink["published"]) for sink in sinks)

    def status(self) -> Any:
        """The /status document."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/status", timeout=5) as answer:
            return json.load(answer)


@contextmanager
def run_pipeline(
    folder: Path, backend: Mapping[str, Any], nats: Nats, *, extra: dict[str, Any]
) -> Iterator[Running]:
    """Runs the shipped defaults on `backend`; `extra` holds further keys of the pipeline file."""
    document: dict[str, Any] = {
        "backends": [{"name": "default", **backend}],
        "sink": {"type": "jetstream", "url": nats.url, "stream": STREAM},
    }
    with run_file(folder, merged(document, extra)) as running:
        yield running


@contextmanager
def run_file(folder: Path, document: Mapping[str, Any]) -> Iterator[Running]:
    """Runs a pipeline file that has backends and a sink.

    `viewers`: so many dashboards are open. Ends it gracefully; raises with the end of its log if it
    died.
    """
    port = free_port()
    document = dict(document)
    watched = viewers(f"http://127.0.0.1:{port}", document.pop("viewers", 0))
    own = {"name": "bench", "state": str(folder / "state"), "ops": {"port": port}}
    file = folder / "pipeline.yaml"
    file.write_text(yaml.safe_dump(merged(own, document)))
    log = folder / "pipeline.log"
    with log.open("ab") as output:
        started = time.time()
        process = subprocess.Popen(
            [sys.executable, "-m", "penstock", "run", str(file)], stdout=output, stderr=output
        )
    try:
        with watched:
            yield Running(pid=process.pid, started=started, log=log, port=port)
        # A caller may have killed it.
        if process.poll() not in (None, -signal.SIGKILL):
            raise RuntimeError(f"the pipeline ended:\n{log.read_text()[-3000:]}")
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
