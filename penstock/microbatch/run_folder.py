"""The run folder: scratch space of one run of the service, private and removed at its end.

It holds the board's socket, the stop file, Spark's scratch files and the checkpoints. The next run
removes the folder of a killed one. Nothing in it is needed to resume.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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


def pause_reader(folder: Path, backend: str, *, is_paused: bool) -> None:
    file = folder / f"{_PAUSED}-{backend}"
    if is_paused:
        file.touch()
    else:
        file.unlink(missing_ok=True)


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


def read_task_slots(folder: str | None) -> int | None:
    """What `write_task_slots` wrote last; None if it did not."""
    try:
        return int((Path(folder or "/nowhere") / _SLOTS).read_text())
    except FileNotFoundError:
        return None


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
