"""Reports of many processes, gathered in one: datagrams on a unix socket.

The planner, the tasks and the commit process report; the main process holds the board. A report
never fails its sender, and holds it up for a moment at most: when nobody listens, or the socket is
full (ten datagrams, mostly) for longer than that, it is dropped; but what it counts is sent later.
"""

import contextlib
import os
import socket
import struct
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Literal, Self

import orjson

from penstock.errors import SettingsError

__all__ = ["COUNTERS", "Board", "Entry", "EntryKind", "Reporter", "Snapshot"]

EntryKind = Literal["pipeline", "query", "source", "sink", "batch", "table"]

# Below the kernel's default buffer (208 KiB), which holds some of them.
_LIMIT = 32_768
# Seconds and microseconds that a report waits for room.
_MOMENT = struct.pack("ll", 0, 100_000)
# Each process counts these from nothing; the board shows the sum over all processes that ever
# reported, so a total neither falls when a worker is replaced nor flips between two workers.
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
_LONGEST_TEXT = 1_000
# Counters of processes: there is a new one for every micro-batch, and each soon ends.
_REMEMBERED = 10_000
_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Reporter:
    """Sends reports to a board. Costs microseconds; pickles; may be used across a fork."""

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._socket: socket.socket | None = None
        self._owner = 0
        self._is_stuck = False  # the last report found no room: the next does not wait
        self._owed: dict[tuple[str, str], Mapping[str, float]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Reporter, (self.path,)

    def report(self, kind: EntryKind, name: str, fields: Mapping[str, Any]) -> None:
        """The latest values of some fields; fields that are not named stay as they were.

        A field of `COUNTERS` is this process's own count, and only grows.
        """
        self._send(kind, name, fields, _NOTHING)

    def add(self, kind: EntryKind, name: str, counts: Mapping[str, float]) -> None:
        """Adds to counters instead of saying what they are."""
        self._send(kind, name, _NOTHING, counts)

    def _send(
        self, kind: str, name: str, fields: Mapping[str, Any], counts: Mapping[str, float]
    ) -> None:
        # A report must never hurt what it reports on, whatever is in it.
        with contextlib.suppress(OSError, TypeError, ValueError, RecursionError):
            to = self._opened()
            if owed := self._owed.pop((kind, name), None):
                counts = {key: owed.get(key, 0) + counts.get(key, 0) for key in {**owed, **counts}}
            said = [kind, name, dict(fields), dict(counts), self._owner]
            data = orjson.dumps(said, str, _OPTIONS)
            if len(data) > _LIMIT:
                said[2] = _cut(fields)
                data = orjson.dumps(said, str, _OPTIONS)
            try:
                to.sendto(data, socket.MSG_DONTWAIT if self._is_stuck else 0, self.path)
                self._is_stuck = False
            except BlockingIOError:
                self._is_stuck = True
                self._owed[kind, name] = counts

    def _opened(self) -> socket.socket:
        """This process's own socket: across a fork, another."""
        if self._socket is None or self._owner != os.getpid():
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _MOMENT)
            self._owner = os.getpid()
            self._is_stuck = False
            self._owed.clear()
        return self._socket


def _cut(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that fit: long texts are cut, then the largest fields are left out."""
    cut = {
        key: f"{value[:_LONGEST_TEXT]}…"
        if isinstance(value, str) and len(value) > _LONGEST_TEXT
        else value
        for key, value in fields.items()
    }
    sizes = {key: len(orjson.dumps(value, str, _OPTIONS)) for key, value in cut.items()}
    while sizes and sum(sizes.values()) > _LIMIT - 1000:
        largest = max(sizes, key=lambda key: sizes[key])
        del sizes[largest], cut[largest]
    return cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What is known of one (kind, name). Times are the board's monotonic clock.

    `at`: the last report. `changed`: when each field last got another value. `calm`: when each
    number was last at or below its bound (0 unless the board was told another), for fields that
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
        # The moment a number leaves its bound still counts as calm: it was until now.
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


class Board:
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
        self.ignored = 0  # datagrams that were no report
        self._bounds = bounds
        self._clock = clock
        self._entries: dict[tuple[str, str], Entry] = {}
        self._counted: OrderedDict[tuple[str, str, str, int], int] = OrderedDict()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

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

    def now(self) -> float:
        """The time on the board's clock: what entries are compared with."""
        return self._clock()

    def reporter(self) -> Reporter:
        """A reporter to this board."""
        return Reporter(self.path)

    def snapshot(self) -> Snapshot:
        """Everything known now."""
        with self._lock:
            return dict(self._entries)

    def entry(self, kind: EntryKind, name: str) -> Mapping[str, Any]:
        """The latest fields of one reporter; empty before its first report."""
        found = self._entries.get((kind, name))
        return found.fields if found else _NOTHING

    def post(
        self,
        kind: EntryKind,
        name: str,
        fields: Mapping[str, Any],
        counts: Mapping[str, float] = _NOTHING,
        sender: int = 0,
    ) -> None:
        """What a datagram does, from inside the process. `sender` is a process id."""
        now = self._clock()
        with self._lock:
            entry = self._entries.get((kind, name))
            entry = entry or Entry(fields={}, at=now, since=now, changed={}, calm={})
            gains = {
                key: self._gain((kind, name, key, sender), value)
                for key, value in fields.items()
                if key in COUNTERS and isinstance(value, int)
            }
            sums = {
                key: entry.fields.get(key, 0) + gains.get(key, 0) + counts.get(key, 0)
                for key in gains.keys() | counts.keys()
            }
            self._entries[kind, name] = entry.merged({**fields, **sums}, now, self._bounds)

    def _gain(self, key: tuple[str, str, str, int], value: int) -> int:
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
            # Wakes the thread out of recv; closing alone would not.
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)
            found.close()

    def _receive(self) -> None:
        listening = self._socket
        while listening is not None and listening is self._socket:
            try:
                data = listening.recv(4 * _LIMIT)
            except OSError:
                return
            self._take(data)

    def _take(self, data: bytes) -> None:
        try:
            kind, name, fields, counts, sender = orjson.loads(data)
            self.post(kind, name, fields, counts, sender)
        except (ValueError, TypeError, AttributeError):
            self.ignored += bool(data)
