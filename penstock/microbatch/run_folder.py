"""The run folder: scratch space of one run of the service, private and removed at its end.

It holds the board's socket, the stop file, Spark's scratch files and the checkpoints. The next run
removes the folder of a killed one. Nothing in it is needed to resume.
"""

import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.process.closing import Closes
from penstock.process.processes import is_alive

# The board's socket.
BOARD = "board"
# The service makes this file: readers take no more changes, save, acknowledge and report that.
# `stop-QUERY` is the same for the reader of one query.
STOP = "stop"

# `paused-BACKEND`: its reader takes no more changes while the file is there.
_PAUSED = "paused"

# The name of the instance.
_OWNER = "owner"

# How many tasks of each query may run at a time.
_SLOTS = "task-slots"

# `bell-PID`: the socket of a reader process, which the service wakes when it changed one of these.
_BELL = "bell"

_PREFIX = "penstock-run-"


@contextmanager
def run_folder() -> Iterator[Path]:
    """A fresh folder, mode 0700, with a short path (it holds a unix socket)."""
    _sweep(Path(tempfile.gettempdir()))
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_stopping(folder: str | None, query: str) -> bool:
    files = (STOP, f"{STOP}-{query}")
    return folder is not None and any((Path(folder) / each).exists() for each in files)


def query_name(backend: str, attempt: int) -> str:
    return f"{backend}-{attempt}"


def stop_query(folder: Path, query: str) -> None:
    (folder / f"{STOP}-{query}").touch()
    _ring(folder)


def stop_queries(folder: Path) -> None:
    """All of them."""
    (folder / STOP).touch()
    _ring(folder)


def pause_reader(folder: Path, backend: str, *, is_paused: bool) -> None:
    file = folder / f"{_PAUSED}-{backend}"
    if is_paused:
        file.touch()
    else:
        file.unlink(missing_ok=True)
    _ring(folder)


def is_paused(folder: str | None, backend: str) -> bool:
    return folder is not None and (Path(folder) / f"{_PAUSED}-{backend}").exists()


def write_owner(folder: Path, owner: str) -> None:
    """Names the instance to all processes of the run."""
    (folder / _OWNER).write_text(owner)


def read_owner(folder: str | None) -> str:
    """The name that `write_owner` wrote; "" without one."""
    file = Path(folder or "/nowhere") / _OWNER
    return file.read_text() if file.exists() else ""


def write_task_slots(folder: Path, slots: int) -> None:
    new = folder / f"{_SLOTS}.new"
    new.write_text(str(slots))
    new.replace(folder / _SLOTS)
    _ring(folder)


def read_task_slots(folder: str | None) -> int | None:
    """What `write_task_slots` wrote last; None if it did not."""
    try:
        return int((Path(folder or "/nowhere") / _SLOTS).read_text())
    except FileNotFoundError:
        return None


class Bell(Closes):
    """Calls `changed`, in a thread, when the service has changed what readers look at in `folder`.
    Nothing depends on it: who looks now and then sees the same later."""

    def __init__(self, folder: str, changed: Callable[[], None]) -> None:
        self._path, self._changed = Path(folder) / f"{_BELL}-{os.getpid()}", changed
        self._path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self._path))
        threading.Thread(target=self._listen, name="bell", daemon=True).start()

    def _listen(self) -> None:
        with suppress(OSError):  # closed
            while self._path.exists():
                self._socket.recv(1)
                self._changed()

    def close(self) -> None:
        self._path.unlink(missing_ok=True)
        # Closing alone does not wake a thread that is in recv.
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _ring(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ringing:
        ringing.setblocking(False)
        for bell in folder.glob(f"{_BELL}-*"):
            with suppress(OSError):  # its process has ended, or has others to hear
                ringing.sendto(b"", str(bell))


def _sweep(parent: Path) -> None:
    for left in parent.glob(f"{_PREFIX}*-*"):
        pid = left.name.removeprefix(_PREFIX).split("-")[0]
        # One with our own id is of a process before us.
        is_left = pid.isdecimal() and (int(pid) == os.getpid() or not is_alive(int(pid)))
        if is_left and _is_ours(left):
            shutil.rmtree(left, ignore_errors=True)


def _is_ours(left: Path) -> bool:
    try:
        return left.stat().st_uid == os.getuid()
    except FileNotFoundError:  # its service ends now, or another service removes the folder
        return False
