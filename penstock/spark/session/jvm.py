"""The processes of a Spark session that is to be opened: its JVM, and the fork server of its Python
workers. They start while this process imports PySpark, which it does not need for that.
"""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.process.closing import Closes, closing_on_failure
from penstock.spark.session.archive import ClassArchive, cached_archive
from penstock.spark.session.forks import Forks
from penstock.spark.session.launch import make_home, our_jars, our_java
from penstock.spark.session.plan import SessionPlan

# In the folder: our own SPARK_HOME, where the JVM writes its port, and the list of its classes.
_HOME, _CONNECTION, _CLASSES = "spark-home", "jvm", "classes"

# With these PySpark takes another Spark, or a JVM that runs.
_USERS = ("SPARK_HOME", "PYSPARK_GATEWAY_PORT")

_POLL = 0.01  # seconds


class Jvm(Closes):
    """Starts them, the fork server by `start_forks`; Java 17 or newer. `process` is None where
    PySpark starts the JVM: on a cluster, without Java, with a SPARK_HOME or with settings that only
    Spark's launcher understands. `settings` are the session's, `environment` the variables that are
    set while it is opened. Raises OSError."""

    def __init__(self, plan: SessionPlan) -> None:
        self.plan = plan
        self.archive: ClassArchive | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self._forks: Forks | None = None
        with closing_on_failure(self):
            self._start(plan)

    def _start(self, plan: SessionPlan) -> None:
        # Workers run in this environment, not in whatever `python3` is on the PATH.
        places = {"PYSPARK_PYTHON": sys.executable}
        users = "PYSPARK_PYTHON" in os.environ or "spark.pyspark.python" in plan.conf
        own = plan.is_local and not any(map(os.environ.get, _USERS))
        java = our_java(plan.conf) if own else None
        self.archive = self._archive_of(java)
        if plan.is_local and plan.fork_server and not users:
            with suppress(OSError):
                self._forks = Forks(plan.folder, plan.plugins)
                places["PYSPARK_PYTHON"] = str(self._forks.python)
        options = "" if self.archive is None else self.archive.options()
        self.settings = plan.settings(forks=self._forks is not None, java=options)
        if own:
            home = make_home(plan.folder / _HOME, self.settings)
            places["SPARK_HOME"] = str(home)
        self.environment: Mapping[str, str] = {
            key: value for key, value in places.items() if key not in os.environ
        }
        if java is not None:
            self._connection.unlink(missing_ok=True)
            conf = [f"--conf={key}={value}" for key, value in self.settings.items()]
            self.process = subprocess.Popen(  # noqa: S603 - our own script
                [home / "bin" / "spark-submit", *conf, "pyspark-shell"],
                stdin=subprocess.PIPE,  # it ends when this does
                env={
                    **os.environ, **self.environment, "SPARK_CONNECT_MODE": "0",
                    "_PYSPARK_DRIVER_CONN_INFO_PATH": str(self._connection),
                },
            )  # fmt: skip

    def start_forks(self) -> None:
        """Starts the fork server, if there is to be one and it does not run."""
        if self._forks is not None:
            with suppress(OSError):  # Python is started for each worker then
                self._forks.start()

    @property
    def _connection(self) -> Path:
        return self.plan.folder / _CONNECTION

    def _archive_of(self, java: Path | None) -> ClassArchive | None:
        path, classes = self.plan.class_archive, self.plan.folder / _CLASSES
        if isinstance(path, Path):
            return ClassArchive(path, classes, is_ours=False)
        if not path or java is None or (cached := cached_archive(java, our_jars())) is None:
            return None
        return ClassArchive(cached, classes, is_ours=True)

    def gateway(self) -> tuple[int, str] | None:
        """Where the JVM listens, and its secret, as soon as it does; None if it has ended."""
        assert self.process is not None
        while not self._connection.exists():
            if self.process.poll() is not None:
                return None
            time.sleep(_POLL)
        written = self._connection.read_bytes()
        return int.from_bytes(written[:4]), written[8:].decode()

    @contextmanager
    def placed(self) -> Iterator[None]:
        """Within it the environment is set; nothing else that this process starts gets it."""
        os.environ.update(self.environment)
        try:
            yield
        finally:
            for key in self.environment:
                del os.environ[key]

    def close(self) -> None:
        """Ends what runs; the JVM ends by itself, some time after its standard input."""
        if self.process is not None:
            assert self.process.stdin is not None
            with suppress(OSError):
                self.process.stdin.close()
        for each in (self._forks, self.archive):
            if each is not None:
                each.close()

    def drop(self) -> None:
        """The same at once: no session was opened."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self.close()
        shutil.rmtree(self.plan.folder / _HOME, ignore_errors=True)  # it is of this plan


class EarlyJvm(Closes):
    """The JVM of a session whose plan is not certain yet; ends what is left of it."""

    def __init__(self) -> None:
        self._started: Jvm | None = None

    def guess(self, plan: SessionPlan) -> None:
        """Starts the JVM of a session that probably has this plan. Its fork server would take the
        time of what makes the plan certain."""
        self._start(plan)

    def start(self, plan: SessionPlan) -> Jvm | None:
        """What a session with this plan needs: what runs already, and the rest. None where that
        fails: who opens the session reports why."""
        if (started := self._start(plan)) is not None:
            started.start_forks()
        return started

    def _start(self, plan: SessionPlan) -> Jvm | None:
        if self._started is not None and self._started.plan != plan:
            self.close()
        if self._started is None:
            with suppress(OSError, ModuleNotFoundError):
                self._started = Jvm(plan)
        return self._started

    def close(self) -> None:
        started, self._started = self._started, None
        if started is not None:
            started.drop()
