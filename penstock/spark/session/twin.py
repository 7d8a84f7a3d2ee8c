"""A forked process takes the place of a Python that Spark started: its files, environment, folder,
arguments, and its name in `ps`."""

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
from pathlib import Path
from typing import Any, Self

__all__ = ["Twin", "become"]

_FILES = 3
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """What a stand-in handed over: `python -m module arguments`, and its standard files; a worker
    of its daemon's gets a fourth, the connection to the JVM."""

    folder: str
    module: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    files: tuple[int, ...]

    @classmethod
    def receive(cls, connection: socket.socket) -> Self:
        """Raises ValueError when it is no `-m MODULE`, OSError when the stand-in is gone."""
        size, files, _, _ = socket.recv_fds(connection, 4, _FILES + 1)
        try:
            told = _whole(connection, int.from_bytes(size, "big"))
            folder, count, *words = [os.fsdecode(word) for word in told.split(b"\0")]
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

    def close(self) -> None:
        """Lets go of the files."""
        _close(self.files)

    def settle(self, parent: int) -> None:
        """In the fork: takes the place over. Dies when `parent` does."""
        os.setpgid(0, 0)
        _die_with(parent)
        for number, file in enumerate(self.files[:_FILES]):
            os.dup2(file, number)
        _close(self.files[:_FILES])
        os.chdir(self.folder)
        _search(os.environ.get("PYTHONPATH", ""), self.environment.get("PYTHONPATH", ""))
        os.environ.clear()
        os.environ.update(self.environment)
        time.tzset()
        _rename([sys.executable, "-m", self.module, *self.arguments])
        # Python's own generator is seeded anew in every fork, numpy's is not.
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()


def become(twin: Twin) -> None:
    """Runs the module as `python -m` does. The JVM's end being gone is no error: it was stopped,
    or it died, and says so itself."""
    found = importlib.util.find_spec(twin.module)
    if found is None or found.origin is None:
        raise ModuleNotFoundError(f"No module named {twin.module}")
    sys.argv = [found.origin, *twin.arguments]
    if len(twin.files) > _FILES:
        os._exit(_work(socket.socket(fileno=twin.files[_FILES])))
    try:
        if twin.module == "pyspark.daemon":  # over TCP: the stand-in is none
            _daemon().manager()
            return
        loader: Any = found.loader
        main = types.ModuleType("__main__")
        main.__dict__.update(__file__=found.origin, __spec__=found, __loader__=loader)
        main.__package__ = found.parent
        sys.modules["__main__"] = main
        exec(loader.get_code(twin.module), main.__dict__)  # noqa: S102 - a module of Spark's
    except (ConnectionError, EOFError):
        os._exit(1)


def _whole(connection: socket.socket, size: int) -> bytes:
    """So many bytes, in as many pieces as they come: a socket with a timeout waits for one only."""
    told = b""
    while len(told) < size:
        piece = connection.recv(size - len(told))
        if not piece:
            raise ConnectionAbortedError("the stand-in ended in the middle of a sentence")
        told += piece
    return told


def _daemon() -> Any:
    """PySpark's, which prints a traceback for every worker that finds the JVM gone: without."""
    daemon: Any = importlib.import_module("pyspark.daemon")
    worker = daemon.worker

    def quiet(connection: socket.socket, authenticated: bool) -> Any:
        try:
            return worker(connection, authenticated)
        except (ConnectionError, EOFError):
            return 1

    def tell(*words: Any, **more: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            print(*words, **more)

    daemon.worker, daemon.print = quiet, tell
    return daemon


def _work(connection: socket.socket) -> int:
    """As a fork of PySpark's daemon does: says who it is, and works for as long as the JVM has
    work; returns an exit code."""
    daemon = _daemon()
    with daemon.enable_faulthandler():
        try:
            connection.sendall(os.getpid().to_bytes(4, "big"))
            while (code := daemon.worker(connection, True)) == 0:
                if not os.environ.get("SPARK_REUSE_WORKER"):
                    break
                gc.collect()
            while connection.recv(1024):  # until the JVM has read all
                pass
        except ConnectionError:
            return 1
        except BaseException:
            traceback.print_exc()
            return 1
    return int(code)


def _close(files: Sequence[int]) -> None:
    for file in files:
        os.close(file)


def _die_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def _search(ours: str, theirs: str) -> None:
    """Modules are looked for where the stand-in's PYTHONPATH says, first."""
    known = set(ours.split(os.pathsep))
    added = [path for path in theirs.split(os.pathsep) if path and path not in known]
    sys.path[:] = [*sys.path[:1], *added, *sys.path[1:]]


def _rename(command: Sequence[str]) -> None:
    """In place of the fork server's arguments, as far as there is room: whoever looks for a worker
    by its command finds it."""
    if sys.platform != "linux":
        return
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    if begin == 0:
        return
    room = end - begin
    text = b" ".join(map(os.fsencode, command))[: room - 2]
    # The last byte not being null tells Linux that this is a title, and ends at its first null.
    ctypes.memmove(begin, text.ljust(room - 1, b"\0") + b".", room)
