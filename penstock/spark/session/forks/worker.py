"""A forked process takes the place of a Python that Spark started: its files, environment, folder
and arguments. `ps` shows the fork server's command for it, and the worker's kind as its name."""

import ctypes
import gc
import importlib
import importlib.util
import os
import signal
import socket
import sys
import time
import traceback
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

_FILES = 3
_DAEMON = "pyspark.daemon"
# prctl(2)
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkRequest:
    """What a launcher hands over: `python -m module arguments`, and its standard files; a fourth is
    the connection to the JVM."""

    folder: str
    module: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    files: tuple[int, ...]

    @classmethod
    def receive(cls, connection: socket.socket) -> Self:
        """Raises ValueError when it is no `-m MODULE`, OSError when the launcher is gone."""
        size, files, _, _ = socket.recv_fds(connection, 4, _FILES + 1)
        try:
            text = _read(connection, int.from_bytes(size, "big"))
            folder, count, *words = [os.fsdecode(word) for word in text.split(b"\0")]
            option, module, *arguments = words[: int(count)]
            if option != "-m" or len(files) not in (_FILES, _FILES + 1):
                raise ValueError(option)
            pairs = [word.partition("=") for word in words[int(count) :]]
        except (ValueError, OSError):
            _close(files)
            raise
        return cls(
            folder=folder,
            module=module,
            arguments=tuple(arguments),
            environment={name: value for name, _, value in pairs},
            files=tuple(files),
        )

    @property
    def kind(self) -> str:
        """`worker`, `source_runner`, `create_data_source`, ...: the module, or the daemon's."""
        module = self.arguments[0] if self.module == _DAEMON and self.arguments else self.module
        return module.rpartition(".")[2].removeprefix("python_streaming_")

    def close(self) -> None:
        _close(self.files)

    def take_over(self, parent: int) -> None:
        """In the fork: takes over what the launcher had. It is killed when `parent` ends."""
        os.setpgid(0, 0)
        _set_up_process(parent, self.kind)
        for number, file in enumerate(self.files[:_FILES]):
            os.dup2(file, number)
        _close(self.files[:_FILES])
        os.chdir(self.folder)
        _extend_path(os.environ.get("PYTHONPATH", ""), self.environment.get("PYTHONPATH", ""))
        os.environ.clear()
        os.environ.update(self.environment)
        time.tzset()
        # Python's own generator is seeded anew in every fork, numpy's is not.
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()


def run(request: ForkRequest) -> None:
    """Runs the module as `python -m` does. A closed connection to the JVM is no error: the JVM was
    stopped, or it died, which is logged elsewhere."""
    found = importlib.util.find_spec(request.module)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"No module named {request.module}")
    sys.argv = [found.origin, *request.arguments]
    if len(request.files) > _FILES:
        connection = socket.socket(fileno=request.files[_FILES])
        if request.module == _DAEMON:
            os._exit(_work(connection))
        _use(connection)
    loader: Any = found.loader
    main = types.ModuleType("__main__")
    main.__dict__.update(__file__=found.origin, __spec__=found, __loader__=loader)
    main.__package__ = found.parent
    sys.modules["__main__"] = main
    try:
        exec(loader.get_code(request.module), main.__dict__)  # noqa: S102 - a module of Spark's
    except (ConnectionError, EOFError):
        os._exit(1)


def _use(connection: socket.socket) -> None:
    """PySpark uses this connection to the JVM, and does not make one."""
    util: Any = importlib.import_module("pyspark.worker_util")
    connect = util.local_connect_and_auth

    def connected(place: Any, secret: Any) -> tuple[Any, socket.socket]:
        if place != os.environ["PYTHON_WORKER_FACTORY_SOCK_PATH"]:
            return connect(place, secret)  # type: ignore[no-any-return]
        connection.settimeout(int(os.environ.get("SPARK_AUTH_SOCKET_TIMEOUT", "15")))
        size = int(os.environ.get("SPARK_BUFFER_SIZE", "65536"))
        return connection.makefile("rwb", size), connection

    util.local_connect_and_auth = connected


def _read(connection: socket.socket, size: int) -> bytes:
    """Reads exactly so many bytes; MSG_WAITALL does not wait on a socket with a timeout."""
    text = b""
    while len(text) < size:
        if not (piece := connection.recv(size - len(text))):
            raise ConnectionAbortedError("the launcher ended in the middle of its request")
        text += piece
    return text


def _work(connection: socket.socket) -> int:
    """As a fork of PySpark's daemon: sends its id, works for the JVM, returns an exit code."""
    daemon: Any = importlib.import_module(_DAEMON)
    with daemon.enable_faulthandler():
        try:
            connection.sendall(os.getpid().to_bytes(4, "big"))
            while (code := daemon.worker(connection, True)) == 0:
                if not os.environ.get("SPARK_REUSE_WORKER"):
                    break
                gc.collect()
            while connection.recv(1024):  # until the JVM has read all
                pass
        except (ConnectionError, EOFError):
            return 1
        except BaseException:
            traceback.print_exc()
            return 1
    return int(code)


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)


def _set_up_process(parent: int, name: str) -> None:
    """Linux only: the process is killed when its parent ends, and has a name of its own."""
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        library.prctl(_PR_SET_NAME, os.fsencode(name))


def _extend_path(ours: str, theirs: str) -> None:
    """The launcher's PYTHONPATH comes first."""
    known = set(ours.split(os.pathsep))
    added = [path for path in theirs.split(os.pathsep) if path and path not in known]
    sys.path[:] = [*sys.path[:1], *added, *sys.path[1:]]
