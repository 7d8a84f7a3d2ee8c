"""Forked workers: each behaves as the Python that Spark wanted to start, and none is orphaned."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from penstock.spark.session.forks import VERSION, Forks
from penstock.spark.session.launch import our_jars
from tests.waiting import until

pytestmark = pytest.mark.live


@pytest.fixture
def forks(tmp_path: Path) -> Iterator[Forks]:
    """A fork server without plug-ins."""
    started = Forks(tmp_path, [])
    started.start()
    try:
        yield started
    finally:
        started.close()
        started._process.wait(120)


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """`module(code)` writes one where only the worker's PYTHONPATH leads; returns its name."""
    folder = tmp_path / "modules"
    folder.mkdir()

    def write(code: str) -> str:
        (folder / "errand.py").write_text(textwrap.dedent(code))
        path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
        monkeypatch.setenv("PYTHONPATH", path)
        return "errand"

    return write


def start(forks: Forks, *words: str, **more: str) -> "subprocess.Popen[str]":
    """As Spark does: a program, files, an environment."""
    return subprocess.Popen(
        [str(forks.python), *words], env={**os.environ, **more}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def told(forks: Forks, *words: str, say: str = "", **more: str) -> tuple[int, str, str]:
    """Exit code, output and errors."""
    process = start(forks, *words, **more)
    output, errors = process.communicate(say, timeout=120)
    return process.returncode, output, errors


def gone(pid: int) -> bool:
    """Ended, and not only waiting to be noticed."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


WAIT = """
    import os, sys, time
    print(os.getpid(), flush=True)
    time.sleep(600)
"""


def waiting(forks: Forks, name: str) -> "tuple[subprocess.Popen[str], int]":
    """A launcher and the process id of its worker. The server has told the launcher of it: where
    that ends before, the launcher becomes a Python, which waits, too."""
    process = start(forks, "-m", name)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    assert pid != process.pid
    until(lambda: Path(f"/proc/{process.pid}/fd/0").readlink() == Path(os.devnull))
    return process, pid


def test_a_fork_has_the_files_arguments_environment_and_exit_code(
    forks: Forks, module: Callable[[str], str]
) -> None:
    name = module("""
        import os, sys
        print(__name__, sys.argv[1:], os.environ["COLOUR"], sys.stdin.read(), sys.stdin.isatty())
        print(sys.modules["__main__"].__spec__.name, os.environ.get("HOME"), file=sys.stderr)
        sys.exit(7)
    """)
    code, output, errors = told(
        forks, "-m", name, "one", "zwei drei", say="grün", COLOUR="a=b\nc", HOME="/x"
    )
    assert code == 7
    assert output == "__main__ ['one', 'zwei drei'] a=b\nc grün False\n"
    assert errors == "errand /x\n"


def test_it_is_a_fork_of_what_is_imported_and_has_a_name_of_its_own(
    forks: Forks, module: Callable[[str], str]
) -> None:
    name = module("""
        import os, psutil, sys
        print("pyspark.worker" in sys.modules and "penstock.spark.datasource" in sys.modules)
        print(psutil.Process().name())
        print(os.getpgrp() == os.getpid(), len(os.listdir("/proc/self/fd")), os.getppid())
    """)
    code, output, _ = told(forks, "-m", name, "word")
    imported, itself, state = output.splitlines()
    assert (code, imported) == (0, "True")
    assert itself == "errand"
    # Three standard files, and the folder that is being listed.
    assert state == f"True 4 {forks._process.pid}"


def test_no_two_forks_draw_the_same_numbers(forks: Forks, module: Callable[[str], str]) -> None:
    name = module("""
        import random, numpy, uuid
        print(random.random(), numpy.random.rand(), uuid.uuid4())
    """)
    first, second = (told(forks, "-m", name)[1].split() for _ in range(2))
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_forks_hash_alike_and_the_server_has_one_thread(
    forks: Forks, module: Callable[[str], str]
) -> None:
    name = module("print(hash('penstock'))")
    assert told(forks, "-m", name) == told(forks, "-m", name)
    assert psutil.Process(forks._process.pid).num_threads() == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_end_of_the_launcher_ends_the_worker(
    forks: Forks, module: Callable[[str], str], number: int
) -> None:
    process, pid = waiting(forks, module(WAIT))
    process.send_signal(number)
    process.wait(120)
    until(lambda: gone(pid))


def test_a_worker_that_ignores_sigterm_is_killed_with_its_children(
    forks: Forks, module: Callable[[str], str]
) -> None:
    name = module("""
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = os.fork()
        if child:
            print(child, flush=True)
        time.sleep(600)
    """)
    process, grandchild = waiting(forks, name)
    process.kill()
    process.wait(120)
    until(lambda: gone(grandchild))


def test_a_killed_fork_is_a_dead_worker_to_spark(
    forks: Forks, module: Callable[[str], str]
) -> None:
    process, pid = waiting(forks, module(WAIT))
    os.kill(pid, signal.SIGKILL)
    assert process.wait(120) == 128 + signal.SIGKILL


def test_without_the_server_a_worker_ends_and_the_next_one_is_a_python_of_its_own(
    forks: Forks, module: Callable[[str], str]
) -> None:
    process, pid = waiting(forks, module(WAIT))
    forks._process.kill()
    assert process.wait(120) != 0
    until(lambda: gone(pid))
    name = module("import sys; print('pyspark' in sys.modules, sys.stdin.read()); sys.exit(3)")
    assert told(forks, "-m", name, say="x")[:2] == (3, "False x\n")


def test_when_the_service_ends_nothing_is_left(forks: Forks, module: Callable[[str], str]) -> None:
    process, pid = waiting(forks, module(WAIT))
    forks.close()  # what the kernel does when the service is killed
    assert forks._process.wait(120) == 0
    until(lambda: gone(pid))
    assert process.wait(120) != 0


def test_anything_but_a_module_is_run_by_python_itself(forks: Forks) -> None:
    code, output, _ = told(forks, "-c", "import sys; print('pyspark' in sys.modules)")
    assert (code, output) == (0, "False\n")


def test_spark_s_question_for_the_version_has_the_answer_of_python(forks: Forks) -> None:
    core = next(each for each in our_jars() if each.name.startswith("spark-core_"))
    with zipfile.ZipFile(core) as jar:
        asks = jar.read("org/apache/spark/api/python/PythonUtils$.class")
    assert VERSION.encode() in asks
    assert told(forks, "-c", VERSION) == told(forks, "-c", f"{VERSION} # by Python itself")


def test_a_module_that_is_not_there_is_an_error(forks: Forks) -> None:
    code, _, errors = told(forks, "-m", "no_such_module")
    assert code != 0
    assert "no_such_module" in errors


@pytest.mark.parametrize(("error", "quiet"), [("BrokenPipeError", True), ("ValueError", False)])
def test_only_a_closed_connection_prints_no_traceback(
    forks: Forks, module: Callable[[str], str], error: str, quiet: bool
) -> None:
    code, _, errors = told(forks, "-m", module(f"raise {error}('oh')"))
    assert code == 1
    assert ("Traceback" not in errors) == quiet


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder: a socket's path has little room, pytest's own are too deep."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


class Daemon:
    """PySpark's daemon, as the JVM starts it and speaks to it."""

    def __init__(
        self, python: Path | str, sockets: Path | None, module: str, *, reuse: bool
    ) -> None:
        """Without `sockets`, over TCP."""
        unix = {
            "PYTHON_UNIX_DOMAIN_ENABLED": "true",
            "PYTHON_WORKER_FACTORY_SOCK_DIR": str(sockets),
        }
        environment = {
            **os.environ,
            **(unix if sockets else {"PYTHON_WORKER_FACTORY_SECRET": "secret"}),
            "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
            **({"SPARK_REUSE_WORKER": "1"} if reuse else {}),
        }
        self.process = subprocess.Popen(
            [str(python), "-m", "pyspark.daemon", module], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        output = self.process.stdout
        assert output is not None
        number = int.from_bytes(output.read(4), "big")
        self._place: Any = output.read(number) if sockets else ("127.0.0.1", number)

    def connect(self) -> socket.socket:
        """Asks for a worker."""
        unix = isinstance(self._place, bytes)
        connection = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
        connection.settimeout(120)
        connection.connect(self._place)
        return connection

    def worker(self) -> tuple[socket.socket, int]:
        """A connection to a new one, and its process id."""
        connection = self.connect()
        return connection, int.from_bytes(connection.recv(4), "big")

    def kill(self, pid: int) -> None:
        """Has the daemon kill a worker."""
        assert self.process.stdin is not None
        self.process.stdin.write(pid.to_bytes(4, "big", signed=True))
        self.process.stdin.flush()

    def end(self) -> str:
        """What it had to say."""
        return self.process.communicate(timeout=120)[1].decode()


ECHO = """
    def main(infile, outfile):
        line = infile.readline()
        if not line:
            raise EOFError
        outfile.write(line.upper())
"""


@pytest.fixture
def echo(module: Callable[[str], str], tmp_path: Path) -> str:
    """A worker's module that Spark's daemon takes for one of its own."""
    module(ECHO)
    (tmp_path / "modules" / "errand.py").rename(tmp_path / "modules" / "pyspark_errand.py")
    return "pyspark_errand"


def test_a_daemon_is_a_launcher_and_its_workers_are_forks(
    forks: Forks, sockets: Path, echo: str
) -> None:
    daemon = Daemon(forks.python, sockets, echo, reuse=True)
    (first, one), (second, other) = daemon.worker(), daemon.worker()
    for pid in (one, other):
        assert psutil.Process(pid).ppid() == forks._process.pid
        assert psutil.Process(pid).name() == echo
    itself = psutil.Process(daemon.process.pid)
    assert itself.children() == []
    assert itself.memory_info().rss < 20 * 2**20
    for said in (b"one\n", b"more\n"):  # a worker that is used again
        first.sendall(said)
        assert first.recv(100) == said.upper()
    second.close()
    until(lambda: gone(other))
    assert not gone(one)
    assert daemon.end() == ""
    until(lambda: gone(one))
    assert list(sockets.iterdir()) == []
    first.close()


def test_a_worker_that_spark_does_not_use_again_ends_when_its_work_is_read(
    forks: Forks, sockets: Path, echo: str
) -> None:
    daemon = Daemon(forks.python, sockets, echo, reuse=False)
    connection, pid = daemon.worker()
    connection.sendall(b"work\n")
    assert connection.recv(100) == b"WORK\n"
    assert not gone(pid)
    connection.close()
    until(lambda: gone(pid))
    assert daemon.end() == ""


def test_a_daemon_kills_the_worker_that_spark_names_and_no_other(
    forks: Forks, sockets: Path, echo: str
) -> None:
    daemon = Daemon(forks.python, sockets, echo, reuse=True)
    (first, one), (second, other) = daemon.worker(), daemon.worker()
    for nobody in (0, -1, 2**22 + 1):  # a group, everybody, more than Linux has
        daemon.kill(nobody)
    daemon.kill(one)
    until(lambda: gone(one))
    assert not gone(other)
    assert not gone(daemon.process.pid)
    assert daemon.end() == ""
    first.close()
    second.close()


def test_the_workers_of_a_daemon_that_is_killed_end(forks: Forks, sockets: Path, echo: str) -> None:
    daemon = Daemon(forks.python, sockets, echo, reuse=True)
    connection, pid = daemon.worker()
    daemon.process.kill()
    daemon.process.communicate(timeout=120)
    until(lambda: gone(pid))
    connection.close()


def test_without_the_fork_server_pyspark_s_own_daemon_runs(
    forks: Forks, sockets: Path, echo: str
) -> None:
    forks._process.kill()
    forks._process.wait(120)
    daemon = Daemon(forks.python, sockets, echo, reuse=True)
    connection, pid = daemon.worker()
    assert psutil.Process(pid).ppid() == daemon.process.pid
    connection.sendall(b"work\n")
    assert connection.recv(100) == b"WORK\n"
    connection.close()
    daemon.end()


def test_a_daemon_without_its_fork_server_closes_the_connection(
    forks: Forks, sockets: Path, echo: str
) -> None:
    daemon = Daemon(forks.python, sockets, echo, reuse=True)
    forks._process.kill()
    forks._process.wait(120)
    with daemon.connect() as connection:
        assert connection.recv(4) == b""
    assert daemon.end() == ""


def left(python: Path | str, sockets: Path) -> str:
    """What PySpark's daemon prints when the JVM closes the connection of a new worker."""
    daemon = Daemon(python, sockets, "pyspark.worker", reuse=True)
    connection, pid = daemon.worker()
    connection.close()
    until(lambda: gone(pid))
    return daemon.end()


def test_over_tcp_pyspark_s_own_daemon_runs(forks: Forks, echo: str) -> None:
    daemon = Daemon(forks.python, None, echo, reuse=True)
    with daemon.connect() as connection:
        worker = int.from_bytes(connection.recv(4), "big")
        assert psutil.Process(worker).ppid() == daemon.process.pid
    daemon.end()


def test_a_worker_whose_connection_is_closed_prints_nothing(forks: Forks, sockets: Path) -> None:
    assert "BrokenPipeError" in left(sys.executable, sockets)  # PySpark's own way
    assert left(forks.python, sockets) == ""


def test_where_no_socket_fits_there_is_none(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    with pytest.raises(OSError, match="too long"):
        Forks(folder, [])
