"""A process of its own that may be killed: it follows a feed into a file, or writes to a sink.

It is given what it needs on its standard input, pickled: a command line would show secrets.
"""

import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from penstock.feeds import Feed
from penstock.stream.stream import Stream
from penstock.testing.claims import hold


class Child:
    """`work(*given)` in a process, from `start` on. `folder`: for its files, until the end."""

    def __init__(self, work: Any, *given: Any) -> None:
        self._folder = TemporaryDirectory(prefix="penstock-prove-")
        self.folder = Path(self._folder.name)
        self._given = work, self.folder, given
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        self._folder.cleanup()

    def start(self) -> None:
        """Again after a kill."""
        command = [sys.executable, "-m", "penstock.testing.child"]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(  # noqa: S603
                command, stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        self._process = process
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(pickle.dumps(self._given))
            process.stdin.flush()  # open until the end of one of both

    def kill(self) -> None:
        """SIGKILL: nothing of it runs any more."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def verify(self) -> None:
        """Raises Broken where it has ended by itself with an error."""
        code = self._process.poll() if self._process is not None else 0
        log = (self.folder / "log").read_text(errors="replace").strip().splitlines()
        hold(not code, f"the child process ended with {code}: {' '.join(log[-1:])}")


class ChildReader(Child):
    """Follows a feed from a token, or after what the process before has stored: each line of its
    file has changes, and the token after them."""

    def __init__(self, feed: Feed, token: Mapping[str, Any]) -> None:
        super().__init__(_follow, feed, token)

    def changes(self) -> list[dict[str, Any]]:
        """What is stored."""
        return [each for line in _lines(self.folder) for each in line["changes"]]

    def wait(self, count: int, patience: float) -> None:
        """Until so many changes are stored."""
        until = time.monotonic() + patience
        while (found := len(self.changes())) < count:
            self.verify()
            hold(time.monotonic() < until, f"{found} of {count} changes in {patience:.0f} s")
            time.sleep(0.02)


def _lines(folder: Path) -> list[dict[str, Any]]:
    """Those that are whole: a process may have been killed in the middle of one."""
    file = folder / "changes"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _follow(folder: Path, feed: Feed, token: Mapping[str, Any]) -> None:
    whole = _lines(folder)
    if whole:
        token = whole[-1]["token"]
    text = "".join(json.dumps(line) + "\n" for line in whole)
    (folder / "whole").write_text(text)
    (folder / "whole").rename(folder / "changes")
    stream = Stream(feed, at=token)
    with (folder / "changes").open("a") as file:
        for batch in stream.batches():
            found = [
                {
                    "event_id": row["event_id"],
                    "partition": row["partition"],
                    "image": json.loads(row["after"] or row["before"] or row["key"]),
                }
                for row in batch.to_pylist()
            ]
            file.write(json.dumps({"changes": found, "token": stream.token}) + "\n")
            file.flush()
            os.fsync(file.fileno())
            stream.acknowledge()


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


if __name__ == "__main__":
    work, folder, given = pickle.load(sys.stdin.buffer)  # noqa: S301
    threading.Thread(target=_end_with_parent, daemon=True).start()
    work(folder, *given)
