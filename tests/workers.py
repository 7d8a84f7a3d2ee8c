"""Spark's Python workers below a process: forks of the fork server, or Python processes."""

from contextlib import suppress

import psutil

FORK_SERVER = "penstock.spark.session.forks.server"


def python_workers(top: psutil.Process) -> dict[int, str]:
    """Process id -> kind (`worker`, `source_runner`, ...: at most 15 bytes) of those that are
    alive; neither launchers nor the daemons that fork workers."""
    found = {}
    for process in top.children(recursive=True):
        with suppress(psutil.Error):  # some end meanwhile
            command = process.cmdline()
            parent = process.parent()
            if FORK_SERVER in command:
                if parent is not None and FORK_SERVER in parent.cmdline():
                    found[process.pid] = process.name()
            elif _is_worker(command) and process.children() == []:
                kind = command[-1].rpartition(".")[2].removeprefix("python_streaming_")
                found[process.pid] = kind[:15]
    return found


def _is_worker(command: list[str]) -> bool:
    launched = any("launcher.py" in word for word in command)
    return bool(command) and command[-1].startswith("pyspark.") and not launched
