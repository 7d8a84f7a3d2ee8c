"""The demo's two readers of the stream, each in a thread: the consumer keeps a copy of the tables,
and measures; the mirror is a replica in a SQLite file, which begins while the shop is open. Some of
its rows were there before the pipeline: they come from snapshots alone.
"""

import sqlite3
import time
from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from penstock.consumer.mirror.replica import Replica
from penstock.consumer.tail.reader import Message, TailReader
from penstock.demo.verdict import DemoReplica, TableRows, differences
from penstock.demo.workload import Background
from penstock.model.errors import Malformed, PenstockError, SettingsError, Unavailable

_WINDOW = 5.0  # seconds over which a rate is taken
WARM_UP = 5.0  # seconds whose latencies do not count


class Meter:
    """Events a second over the last seconds, and latencies in seconds after the warm-up. One thread
    adds, another reads; `now` is any monotonic clock."""

    def __init__(self) -> None:
        self._first: float | None = None
        self._recent: deque[float] = deque()
        self._latencies = array("d")

    def add(self, now: float, latency: float) -> None:
        if self._first is None:
            self._first = now
        self._recent.append(now)
        if now - self._first >= WARM_UP:
            self._latencies.append(latency)

    def rate(self, now: float) -> float:
        """Events a second over the window."""
        while self._recent and self._recent[0] < now - _WINDOW:
            self._recent.popleft()
        begun = now if self._first is None else self._first
        return len(self._recent) / max(1.0, min(_WINDOW, now - begun))

    def quantile(self, share: float) -> float | None:
        """The smallest latency that at least `share` of them do not exceed; None without any."""
        found = self._latencies[:]  # numpy exports the buffer, and then nothing can be added
        return float(np.quantile(found, share, method="inverted_cdf")) if found else None


class Consumer(Background):
    """Follows a stream, which need not exist yet, from its beginning until stopped."""

    def __init__(self, url: str, stream: str, keys: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__("consumer")
        self.replica = DemoReplica(keys)
        self.meter = Meter()
        self.latest: deque[Message] = deque(maxlen=12)
        self.error: PenstockError | None = None
        self.read_to = 0
        self._reader = TailReader(url, stream)

    def _run(self) -> None:
        with self._reader:
            while not self._stop.is_set():
                finishing = self._finish.is_set()
                try:
                    if self._step() == 0 and finishing and self.read_to >= self._reader.end():
                        return
                except Malformed as error:
                    self.replica.impossible.append(str(error))
                except (SettingsError, Unavailable) as error:
                    # The stream may be made a moment later, and a server may be restarting.
                    self.error = error
                    self._stop.wait(0.2)

    def _step(self) -> int:
        messages = self._reader.fetch(timeout=0.2)
        now = time.monotonic()
        for message in messages:
            self.replica.apply(message)
            if message.committed_at is not None:
                self.meter.add(now, (message.stored_at - message.committed_at).total_seconds())
        self.latest.extend(messages)
        self.read_to = self._reader.sequence
        return len(messages)


class DemoMirror(Background):
    """Of some tables, in `file`. `start`, and after the last change `finish`."""

    def __init__(self, url: str, file: Path, keys: Mapping[str, tuple[str, ...]]) -> None:
        super().__init__("mirror")
        self.file = file
        self.rows = 0
        self.error: PenstockError | None = None
        self._keys = keys
        self._replica = Replica(url, f"sqlite:///{file}", tables=list(keys))

    @property
    def is_loaded(self) -> bool:
        """Whether all rows that were there before are in it; or it has failed."""
        return self.error is not None or len(self._replica.copies) == len(self._keys)

    def problems(self, tables: Mapping[str, TableRows]) -> Iterator[str]:
        """How it differs from the tables as PostgreSQL answers them."""
        if self.error is not None:
            yield f"the mirror failed: {self.error}"
            return
        with closing(sqlite3.connect(self.file)) as connection:
            connection.row_factory = sqlite3.Row
            for table, columns in self._keys.items():
                rows, copies = tables[table], {}
                for row in map(dict, connection.execute(f'SELECT * FROM "{table}"')):
                    key = tuple(row[name] for name in columns)
                    like = rows.get(key, {})
                    copies[key] = {n: _as_in_messages(like.get(n), row[n]) for n in row}
                self.rows += len(copies)
                words = ("is missing", "is too many")
                yield from differences(f"the mirror: {table}", rows, copies, words)

    def _run(self) -> None:
        try:
            with self._replica as replica:
                replica.run(is_stopped=lambda: self._stop.is_set() or self._finish.is_set())
                if not self._stop.is_set():
                    replica.run(once=True, is_stopped=self._stop.is_set)
        except PenstockError as error:
            self.error = error


def _as_in_messages(value: Any, copy: Any) -> Any:
    """What SQLite has, in the form of messages; `value` says of which type it is."""
    if isinstance(value, bool) and copy in (0, 1):
        return bool(copy)
    if isinstance(value, (list, dict)) and isinstance(copy, str):
        return orjson.loads(copy)
    return copy
