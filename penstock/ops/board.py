"""The reports of all processes, merged in the service process.

The reader, the tasks and the commit process report (`ops/reporter.py`): by datagrams to a unix
socket on the driver's host, by TCP from other hosts.
"""

import contextlib
import math
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import orjson

from penstock.model.errors import SettingsError
from penstock.ops.reporter import LIMIT, ROWS, EntryKind
from penstock.process.closing import Closes

# Fields that are counts of the process that reports them, from 0; the board shows the sum over all
# processes, so a total does not fall when a worker is replaced.
COUNTERS = frozenset(
    {
        "acknowledged",
        "batches",
        "duplicates",
        "errors",
        "events",
        "pages",
        "published",
        "reconnects",
    }
)
# Counters of processes. A process that ended does not count any more; the oldest are forgotten.
_REMEMBERED = 50_000  # a sink of tables has five for each
# Entries that are reported again all the time: one that is not for so many seconds has gone.
_EXPIRES = {"partition": 60.0}
# Kinds of entries that are named by a backend.
_OF_BACKENDS = frozenset({"query", "source", "partition", "gap", "batch", "measure", "snapshots"})
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The merged reports of one (kind, name). Times are the board's monotonic clock.

    `at`: the last report. `changed`: when each field last got another value. `calm`: when each
    number was last at or below its bound (0 unless the board has another for it), for fields that
    ever were.
    """

    fields: Mapping[str, Any]
    at: float
    since: float
    changed: Mapping[str, float]
    calm: Mapping[str, float]

    def merged(
        self, fields: Mapping[str, Any], at: float, bounds: Mapping[str, float] = _NOTHING
    ) -> "Entry":
        """This entry after a report of `fields` at `at`. Pure."""
        moved = {key: at for key, new in fields.items() if self.fields.get(key, ...) != new}
        calm = {
            key: at
            for key, value in fields.items()
            if isinstance(value, int | float) and value <= bounds.get(key, 0)
        }
        # The moment at which a number leaves its bound still counts as calm.
        leaving = {
            key: at
            for key in moved
            if key not in calm and _is_calm(self.fields.get(key), bounds.get(key, 0))
        }
        return Entry(
            fields={**self.fields, **fields},
            at=at,
            since=self.since,
            changed={**self.changed, **moved},
            calm={**self.calm, **calm, **leaving},
        )


def _is_calm(value: Any, bound: float) -> bool:
    return value is None or (isinstance(value, int | float) and value <= bound)


Snapshot = Mapping[tuple[str, str], Entry]


def rows_of(snapshot: Snapshot, kind: EntryKind, name: str) -> dict[str, Entry]:
    """What `Reporter.report_rows` reported of `name`: key -> its entry."""
    prefix = f"{name}/"
    return {
        found.removeprefix(prefix): entry
        for (its, found), entry in snapshot.items()
        if its == kind and found.startswith(prefix)
    }


class Board(Closes):
    """Receives reports in a daemon thread, from `start()` on; also usable in a `with`.

    `path` is the socket; its folder is made with mode 0700. `bounds` are limits of numeric fields,
    below or at which they count as calm.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        bounds: Mapping[str, float] = _NOTHING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.path = Path(path)
        self.started = clock()
        self.ignored = 0  # messages that were no report
        self._bounds = bounds
        self._clock = clock
        self._entries: dict[tuple[str, str], Entry] = {}
        self._counted: OrderedDict[tuple[str, str, str, str], float] = OrderedDict()
        self._lock = threading.RLock()
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        return self.start()

    def start(self) -> Self:
        """Binds the socket, replacing one that a dead process left; raises SettingsError."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.unlink(missing_ok=True)
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.bind(str(self.path))
        except OSError as error:
            hint = "name another state folder: short (a socket's path has 107 bytes) and writable"
            what = error.strerror or error
            raise SettingsError(f"cannot listen on {self.path}: {what}", hint=hint) from error
        threading.Thread(target=self._receive, name="board", daemon=True).start()
        return self

    def snapshot(self) -> Snapshot:
        """Everything known now."""
        now = self._clock()
        with self._lock:
            for key, entry in list(self._entries.items()):
                if now - entry.at > _EXPIRES.get(key[0], math.inf):
                    del self._entries[key]
            return dict(self._entries)

    def entry(self, kind: EntryKind, name: str) -> Mapping[str, Any]:
        """The latest fields of one reporter; empty before its first report."""
        found = self._entries.get((kind, name))
        return found.fields if found else _NOTHING

    def forget(self, backend: str) -> None:
        """Drops what was reported of a backend that is not followed any more."""
        with self._lock:
            for kind, name in [*self._entries]:
                if kind in _OF_BACKENDS and name.partition("/")[0] == backend:
                    del self._entries[kind, name]

    def serve(self, connection: Connection) -> None:
        """Takes the reports of one TCP connection and confirms each; raises EOFError or OSError
        at its end."""
        while True:
            self._take(connection.recv_bytes(4 * LIMIT))
            connection.send_bytes(b"")

    def post(
        self,
        kind: EntryKind,
        name: str,
        fields: Mapping[str, Any],
        totals: Mapping[str, float] = _NOTHING,
        sender: str = "",
    ) -> None:
        """Merges a report. `totals` are all that the process `sender` has counted so far."""
        now = self._clock()
        with self._lock:
            entry = self._entries.get((kind, name))
            entry = entry or Entry(fields={}, at=now, since=now, changed={}, calm={})
            counted = {
                key: value
                for key, value in {**fields, **totals}.items()
                if (key in COUNTERS or key in totals) and isinstance(value, int | float)
            }
            sums = {
                key: entry.fields.get(key, 0) + self._gain((kind, name, key, sender), value)
                for key, value in counted.items()
            }
            self._entries[kind, name] = entry.merged({**fields, **sums}, now, self._bounds)

    def report(
        self,
        kind: EntryKind,
        name: str,
        fields: Mapping[str, Any],
        counts: Mapping[str, float] = _NOTHING,
    ) -> None:
        """See `Reporter`; of the board's own process."""
        with self._lock:
            before = {key: self._counted.get((kind, name, key, ""), 0) for key in counts}
            self.post(kind, name, fields, {key: before[key] + n for key, n in counts.items()})

    def add(self, kind: EntryKind, name: str, counts: Mapping[str, float]) -> None:
        """See `Reporter`."""
        self.report(kind, name, _NOTHING, counts)

    def _gain(self, key: tuple[str, str, str, str], value: float) -> float:
        """How much a process's counter grew; one that fell belongs to a new process."""
        before = self._counted.get(key, 0)
        self._counted[key] = value
        self._counted.move_to_end(key)
        if len(self._counted) > _REMEMBERED:
            self._counted.popitem(last=False)
        return value - before if value >= before else value

    def close(self) -> None:
        """Stops listening."""
        found, self._socket = self._socket, None
        if found is not None:
            self.path.unlink(missing_ok=True)
            # close() alone does not wake a thread that is in recv.
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)
            found.close()

    def _receive(self) -> None:
        listening = self._socket
        while listening is not None and listening is self._socket:
            try:
                data = listening.recv(4 * LIMIT)
            except OSError:
                return
            self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            kind, name, fields, totals, sender = orjson.loads(data)
            if kind in ROWS:
                for key, row in fields.items():
                    self.post(kind, f"{name}/{key}", row)
            else:
                self.post(kind, name, fields, totals, sender)
        except (ValueError, TypeError, AttributeError):
            self.ignored += bool(data)
