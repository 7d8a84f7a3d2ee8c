"""Where a local session gets its Python workers from: a fork server, started beside the JVM."""

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["Pythons"]

_STAND_IN = Path(__file__).with_name("standin.py")

# The fork server's command is as long as its children's may become.
_ROOM = "-" * 200
# Forking needs a single thread: no threads of OpenBLAS (which use their own) nor of the allocator
# that Arrow brings and does not use. Spark wants one hash seed for all workers.
_SINGLE = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
}


class Pythons:
    """A running fork server, in `folder`, and the program that Spark takes for Python.

    Raises OSError when there can be none; workers are then started in Spark's own way.
    """

    def __init__(self, folder: Path, plugins: Sequence[str]) -> None:
        place = folder / "forkserver"
        self.python = folder / "python"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place))
            listener.listen(64)
            self._process = subprocess.Popen(  # noqa: S603 - our own Python
                [
                    sys.executable, "-m", "penstock.spark.session.forkserver",
                    str(listener.fileno()), *plugins, _ROOM,
                ],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[listener.fileno()],
                env={**os.environ, **_SINGLE},
            )  # fmt: skip
        stand_in = shlex.join([
            sys.executable, "-S", "-I", str(_STAND_IN), str(place), sys.executable,
        ])  # fmt: skip
        real = shlex.quote(sys.executable)
        self.python.write_text(
            f'#!/bin/sh\n[ "$1" = -m ] && exec {stand_in} "$@"\nexec {real} "$@"\n'
        )
        self.python.chmod(0o700)

    def close(self) -> None:
        """The server ends when its children have, or ends them; nobody needs to wait."""
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
