"""Python workers as forks of one process that has imported what they need: the fork server.

Spark starts some seven Python processes for a query, and each imports PySpark, Arrow and penstock:
half a second of CPU or more. With `spark.fork_server` (the default, on one machine) the program
that Spark takes for Python is `launcher`, which has the `server` fork a `worker`. PySpark's own
hook, `spark.python.daemon.module`, holds for the workers of tasks only: the reader process and the
five kinds of worker that plan a query ignore it (a test shows it).
"""

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

_LAUNCHER = Path(__file__).with_name("launcher.py")

# Forking needs a single thread: no threads of OpenBLAS (which use their own) nor of the allocator
# that Arrow brings and does not use. Spark needs one hash seed in all workers.
_SINGLE = {
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "PYTHONHASHSEED": "0",
    "PYTHONUNBUFFERED": "1",
}


# What Spark asks a Python twice at a start, by `-c`: to start one takes a twentieth of a second.
VERSION = "import sys; print('%d.%d' % sys.version_info[:2])"


class Forks:
    """A fork server in `folder`, which imports `plugins` (`feeds/NAME`, `sinks/NAME`) too, and runs
    from `start` on: who asks before waits for it. `python` is the program for PYSPARK_PYTHON.
    Raises OSError when there can be none (the path is too long for a socket)."""

    def __init__(self, folder: Path, plugins: Sequence[str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        place = folder / "forkserver"
        place.unlink(missing_ok=True)
        self.python, self._plugins = folder / "python", plugins
        self._process: subprocess.Popen[bytes] | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        try:
            self._listener.bind(str(place))
            self._listener.listen(64)
        except OSError:
            self._listener.close()
            raise
        launcher = shlex.join([
            sys.executable, "-S", "-I", str(_LAUNCHER), str(place), sys.executable,
        ])  # fmt: skip
        python, version = shlex.quote(sys.executable), "{}.{}".format(*sys.version_info)
        self.python.write_text(
            f'#!/bin/sh\n[ "$1" = -m ] && exec {launcher} "$@"\n'
            f'[ "$2" = {shlex.quote(VERSION)} ] && echo {version} && exit\nexec {python} "$@"\n'
        )
        self.python.chmod(0o700)

    def start(self) -> None:
        """Starts the server, once. Raises OSError (there are too many processes)."""
        if self._process is not None:
            return
        number = self._listener.fileno()
        with self._listener:  # the server's, from then on
            self._process = subprocess.Popen(  # noqa: S603 - our own Python
                [
                    sys.executable, "-m", "penstock.spark.session.forks.server",
                    str(number), *self._plugins,
                ],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=[number],
                env={**os.environ, **_SINGLE},
            )  # fmt: skip

    def close(self) -> None:
        """The server ends when its workers have ended, or ends them; this does not wait."""
        self._listener.close()
        if self._process is not None:
            assert self._process.stdin is not None
            with suppress(OSError):
                self._process.stdin.close()
