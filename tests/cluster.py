"""A real standalone Spark cluster: a master, and workers that see nothing of the driver's folder.

Every worker has a loopback address of its own, a TMPDIR of its own, and a mount namespace in which
the folder `hidden` is empty: neither the files nor the unix sockets in it can be reached. Where
mount namespaces are not permitted, workers run as another user instead.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil
import pyspark

from penstock.model.errors import Unavailable
from penstock.spark.session.launch import MODULES

_HOME = Path(pyspark.__file__).resolve().parent
_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
_MOUNT = 'mount -t tmpfs none "$0" && exec "$@"'
_PORTS = ("--port", "0", "--webui-port", "0")
# Of the daemons, which do little.
_JAVA = ("-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


@cache
def _namespace() -> tuple[str, ...]:
    """What starts a command in a mount namespace of its own; nothing if that is not permitted."""
    own = ("unshare", "--mount") if os.geteuid() == 0 else ("unshare", "--map-root-user", "--mount")
    with tempfile.TemporaryDirectory() as folder:
        return own if _works([*own, "sh", "-c", _MOUNT, folder, "true"]) else ()


def _works(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def hiding(folder: Path) -> list[str]:
    """A prefix for commands that may not see into `folder`; raises Unavailable."""
    if namespace := _namespace():
        return [*namespace, "sh", "-c", _MOUNT, str(folder)]
    if _works([*_NOBODY, sys.executable, "-c", "import penstock"]):
        folder.chmod(0o700)
        return _NOBODY
    raise Unavailable("neither a mount namespace nor another user is permitted here")


class Cluster:
    """A master on 127.0.0.1; `scale(n)` sees to it that n workers with one core each are there.

    `hidden` is a folder for the driver's TMPDIR: workers cannot see into it.
    """

    def __init__(self) -> None:
        # Short: run folders in it hold unix sockets.
        self.hidden = Path(tempfile.mkdtemp(prefix="driver-"))
        self._folder = Path(tempfile.mkdtemp(prefix="cluster-"))
        self._prefix = hiding(self.hidden)
        self._master: subprocess.Popen[bytes] | None = None
        self._workers: list[subprocess.Popen[bytes]] = []
        self._started = 0
        self.url = ""

    def __enter__(self) -> Self:
        command = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", *_PORTS]
        self._master = self._start("master", [], command)
        self.url = self._logged("master", r"Starting Spark master at (spark://\S+)")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.scale(0)
        if self._master is not None:
            self._master.kill()
            self._master.wait()
        for folder in (self._folder, self.hidden):
            shutil.rmtree(folder, ignore_errors=True)

    def scale(self, workers: int) -> None:
        """Starts or kills workers, the last one first, until there are so many."""
        while len(self._workers) < workers:
            self._add()
        while len(self._workers) > workers:
            _kill(self._workers.pop())

    def end_applications(self) -> int:
        """As an operator does on the master's page; returns how many there were."""
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with browser.open(self._page(), timeout=60) as answer:
            page = answer.read().decode()
        forms = re.findall(r'<form action="app/kill/".*?</form>', page, re.DOTALL)
        for form in forms:
            fields = dict(re.findall(r'name="([^"]+)" value="([^"]*)"', form))
            body = urllib.parse.urlencode(fields).encode()
            browser.open(f"{self._page()}/app/kill/", body, timeout=60).close()
        assert forms, page
        return len(forms)

    def _page(self) -> str:
        port = self._logged("master", r"service 'MasterUI' on port (\d+)")
        return f"http://127.0.0.1:{port}"

    def executors(self) -> list[psutil.Process]:
        """The executors' JVMs, all workers', the first worker's first."""
        return [
            child
            for worker in self._workers
            for child in psutil.Process(worker.pid).children()
            if child.name() == "java"
        ]

    def seen_by_workers(self) -> list[str]:
        """What a worker's process sees in `hidden`, if it sees anything."""
        script = "import os, sys; print(*os.listdir(sys.argv[1]), sep='\\n')"
        command = [*self._prefix, sys.executable, "-c", script, str(self.hidden)]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        return found.stdout.split() if found.returncode == 0 else []

    def _add(self) -> None:
        self._started += 1
        name = f"worker-{self._started}"
        tmp = self._folder / f"{name}-tmp"
        tmp.mkdir(mode=0o777)
        tmp.chmod(0o777)
        command = [
            "org.apache.spark.deploy.worker.Worker", "--host", f"127.0.1.{self._started}",
            *_PORTS, "--cores", "1", "--memory", "1g", "--work-dir", str(tmp), self.url,
        ]  # fmt: skip
        self._workers.append(self._start(name, self._prefix, command, TMPDIR=str(tmp)))
        self._logged(name, r"(Successfully registered) with master")

    def _start(
        self, name: str, prefix: list[str], command: list[str], **environment: str
    ) -> subprocess.Popen[bytes]:
        java = [*prefix, "java", *_JAVA, *MODULES, "-cp", f"{_HOME}/jars/*", *command]
        known = {key: value for key, value in os.environ.items() if not key.startswith("SPARK_")}
        environment = {
            **known,
            "SPARK_HOME": str(_HOME),
            "SPARK_SCALA_VERSION": "2.13",
            "JDK_JAVA_OPTIONS": " ".join(_JAVA[1:]),  # of executors, too
            **environment,
        }
        with self._log(name).open("wb") as log:
            return subprocess.Popen(java, stdout=log, stderr=log, env=environment)

    def _logged(self, name: str, pattern: str) -> str:
        deadline = time.monotonic() + 120
        while not (found := re.search(pattern, self._log(name).read_text(errors="replace"))):
            assert time.monotonic() < deadline, self._log(name).read_text(errors="replace")[-3000:]
            time.sleep(0.05)
        return found[1]

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"


def _kill(worker: subprocess.Popen[bytes]) -> None:
    """With its executors, and their Python workers."""
    left = [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)]
    for process in left:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    worker.wait()
