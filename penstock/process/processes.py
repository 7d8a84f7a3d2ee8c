"""Processes of this machine, and the signals that end this one."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def is_alive(pid: int) -> bool:
    """Whether the process runs. A zombie does not: it has ended, and its parent has not asked how;
    in a container whose first process never asks, it stays for ever."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    with suppress(OSError):
        # After the name, which may hold anything.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        return state not in ("Z", "X")
    return True


def elapsed() -> float:
    """Monotonic seconds, with the machine's sleep where known: for what expires meanwhile."""
    return time.clock_gettime(_CLOCK)


def _this_machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


@dataclass
class Machine:
    """`name` is this machine's boot and namespace of process ids, "" where that is unknown."""

    name: str = field(default_factory=_this_machine)

    def runs(self, pid: int) -> bool:
        return is_alive(pid)


@contextmanager
def ending_at_signals(stop: Callable[[str], None]) -> Iterator[None]:
    """SIGINT and SIGTERM call `stop` with their name, meanwhile; only the main thread of a process
    can have it so."""

    def ask(number: int, _: FrameType | None) -> None:
        stop(signal.Signals(number).name)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StopRequest:
    """A flag that one thread waits for. Unlike `threading.Event`, a signal handler may set it: an
    event's lock can be held by the very thread that the handler interrupts."""

    def __init__(self) -> None:
        self._is_set = False
        self._woken: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """From any thread, or a signal handler."""
        self._is_set = True
        self._woken.put(None)

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float) -> bool:
        """Waits at most `timeout` seconds for it; whether it is set."""
        if not self._is_set:
            with suppress(Empty):
                self._woken.get(timeout=timeout)
        return self._is_set
