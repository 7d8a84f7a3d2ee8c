"""A destination goes back again and again, and each time the pipeline that reads again, or loads
anew, what it lacks is killed at another of the named steps.

`python -m tests.sinks.tables.back SOURCE TARGET STORE`: prints each step that it did.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers import Database
from tests.sinks.tables.destinations import File, Server
from tests.sinks.tables.kept import Kept
from tests.sinks.tables.steps import BUSY, CHANGING, LOADING, arm
from tests.waiting import until

ROWS = "SELECT id, v FROM t ORDER BY id"


class Back:
    """One source, one destination, and flows in forks."""

    def __init__(self, source: Database, destination: Server | File, store: Path) -> None:
        self.source, self.destination, self.store = source, destination, store
        self.number = 1000

    @contextmanager
    def flowing(self, step: str = "", **options: Any) -> Iterator[int]:
        """A process with a flow; it is killed in the end, if not before."""
        until(lambda: not self.source.execute(BUSY), 60)
        if (process := os.fork()) == 0:
            self._flow(step, options)
        try:
            yield process
        finally:
            os.kill(process, signal.SIGKILL)
            ended = os.waitpid(process, 0)[1]
            assert os.WIFSIGNALED(ended) and os.WTERMSIG(ended) == signal.SIGKILL, (step, ended)

    def _flow(self, step: str, options: dict[str, Any]) -> None:
        try:
            if step:
                arm(step)
            tables = {"t": {}, "other": {}}
            with Kept(
                self.source, self.destination.target, tables, self.store,
                snapshot={"chunk_rows": 1}, **options,
            ) as flow:  # fmt: skip
                while True:
                    flow.check()
                    time.sleep(0.02)
        finally:
            os._exit(1)

    def change(self) -> None:
        for _ in range(20):
            self.number += 1
            self.source.execute(
                f"INSERT INTO t VALUES ({self.number}, 'new');"
                f" DELETE FROM t WHERE id = {self.number - 600};"
                f" UPDATE t SET v = 'at {self.number}' WHERE id % 50 = {self.number % 50}"
            )

    def arrives(self) -> None:
        def are_equal() -> bool:
            return self.source.execute(ROWS) == self.destination.execute(ROWS)

        until(are_equal, 60)

    def is_acknowledged(self) -> None:
        ((end,),) = self.source.execute("SELECT pg_current_wal_insert_lsn()::text")
        confirmed = (
            "SELECT pg_logical_emit_message(true, 'x', 'of no table');"  # an idle slot may wait
            "SELECT 1 FROM pg_replication_slots"
            f" WHERE confirmed_flush_lsn >= '{end}' AND slot_name = 'kept'"
        )
        until(lambda: self.source.execute(confirmed), 60)

    def goes_back(self, *, saves: bool) -> None:
        with self.flowing(saves=True, on_gap="resnapshot"):
            self.change()
            self.arrives()
            self.is_acknowledged()
            self.destination.keep()
        with self.flowing(saves=saves):
            self.change()
            self.arrives()
            if saves:
                self.is_acknowledged()
        self.destination.put_back()

    def is_killed(self, step: str) -> None:
        """While what is lacking comes again; then another process goes on."""
        with self.flowing(step, on_gap="resnapshot") as process:
            until(lambda: os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT), 60)
        with self.flowing(on_gap="resnapshot"):
            self.arrives()
            self.change()
            self.arrives()
        assert len(self.destination.execute(ROWS)) == len(self.source.execute(ROWS))


def main(source: str, target: str, store: str) -> None:
    of = lambda url: Database(name=url.rpartition("/")[2], url=url)  # noqa: E731
    destination = Server(of(target)) if "://" in target else File(Path(target))
    back = Back(of(source), destination, Path(store))
    for step in (*CHANGING, *LOADING):
        back.goes_back(saves=step in LOADING)
        back.is_killed(step)
        print(step, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
