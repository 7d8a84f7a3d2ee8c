"""Processes of this machine."""

import os
from contextlib import suppress
from pathlib import Path


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


def machine() -> str:
    """This boot of this machine, and this namespace of process ids; "" where that is unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
