"""How processes report to the board: datagrams on the driver's host, TCP from other hosts.

A report never fails its sender, and delays it by 0.1 s at most. Counters are sent as this process's
totals, each time anew: a report that is lost costs nothing once a later one arrives.
"""

import contextlib
import os
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import AuthenticationError
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

import orjson

from penstock.process.backoff import delays
from penstock.process.connections import connect

EntryKind = Literal[
    "pipeline",
    "query",
    "source",
    "partition",
    "gap",
    "sink",
    "batch",
    "table",
    "measure",
    "snapshots",
]
# Kinds of which a backend has many: their reports have several entries, each named BACKEND/KEY.
ROWS = frozenset({"partition", "gap"})

# A sink's counters, one for each reason of a dead letter.
LETTERS = "dead_letters."
# A table's counters, one for each operation of changes that were applied.
APPLIED = "applied."
# A sink's counters of each worker: its commits, and the seconds that they took.
COMMITS, COMMIT_SECONDS = "commits.", "commit_seconds."

# Bytes of a report. Below the kernel's default buffer (208 KiB), which holds some of them.
LIMIT = 32_768
# Seconds that a sender waits for room in the datagram socket, or for the board's answers.
_MOMENT = 0.1
# Seconds that the TCP thread waits for each answer of the board.
_ANSWER = 10.0
_LONGEST_TEXT = 1_000
_OPTIONS = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
_NOTHING: Mapping[str, Any] = MappingProxyType({})

Key = tuple[str, str]


class Reporter:
    """Sends reports to a board. Costs microseconds; pickles; may be used across a fork and by
    several threads.

    `address` is the path of the board's socket, or `tcp:HOST:PORT`, where `key` is needed.
    """

    def __init__(self, address: str | Path, key: bytes = b"") -> None:
        self._address = str(address)
        self._key = key
        # By process: after a fork the child has a socket and totals of its own.
        self._ways: dict[int, _Way] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Reporter, (self._address, self._key)

    def report(
        self,
        kind: EntryKind,
        name: str,
        fields: Mapping[str, Any],
        counts: Mapping[str, float] = _NOTHING,
    ) -> None:
        """The latest values of some fields, and what to add to counters; fields that are not named
        stay as they were.

        A field of the board's `COUNTERS` is this process's own count, and only grows.
        """
        self._send((kind, name), fields, counts)

    def add(self, kind: EntryKind, name: str, counts: Mapping[str, float]) -> None:
        """Adds to counters instead of giving their values."""
        self._send((kind, name), _NOTHING, counts)

    def report_rows(
        self, kind: EntryKind, name: str, rows: Mapping[str, Mapping[str, Any]]
    ) -> None:
        """Reports each row as the entry `NAME/KEY`, in as few reports as hold them. `kind` is one
        of ROWS; rows have no counters."""
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            for chunk in _chunks(rows):
                self._send((kind, name), chunk, _NOTHING)

    def flush(self) -> None:
        """Waits a moment for reports that are not sent yet: this process may end."""
        if way := self._ways.get(os.getpid()):
            way.flush()

    def _send(self, key: Key, fields: Mapping[str, Any], counts: Mapping[str, float]) -> None:
        # A report must not fail its sender, whatever is in it.
        with contextlib.suppress(OSError, TypeError, ValueError, RecursionError):
            way = self._ways.get(os.getpid()) or self._ways.setdefault(os.getpid(), self._way())
            way.send(key, fields, counts)

    def _way(self) -> "_Way":
        if self._address.startswith("tcp:"):
            return _Tcp(self._address, self._key)
        return _Datagrams(self._address)


class ReportsEntries(Protocol):
    """A `Reporter`, or the board itself."""

    def report(
        self,
        kind: EntryKind,
        name: str,
        fields: Mapping[str, Any],
        counts: Mapping[str, float] = _NOTHING,
    ) -> None:
        """See `Reporter`."""
        ...

    def add(self, kind: EntryKind, name: str, counts: Mapping[str, float]) -> None:
        """See `Reporter`."""
        ...


def report_apart(board: ReportsEntries, sink: str, report: Mapping[str, Any]) -> dict[str, Any]:
    """Reports what of a sink's report has entries or counters of its own: dead letters, tables, and
    commits of workers; returns its other fields."""
    counts = {f"{LETTERS}{reason}": n for reason, n in report.get("dead_letters", {}).items()}
    for worker, (commits, seconds) in report.get("commits", {}).items():
        counts |= {f"{COMMITS}{worker}": commits, f"{COMMIT_SECONDS}{worker}": seconds}
    if counts:
        board.add("sink", sink, counts)
    for table in report.get("tables", ()):
        fields = {key: value for key, value in table.items() if key not in ("applied", "letters")}
        done = {f"{APPLIED}{name.lower()}": n for name, n in table.get("applied", {}).items()}
        if "letters" in table:
            done["letters"] = table["letters"]
        board.report("table", table_name(table), fields, done)
    apart = ("dead_letters", "tables", "commits")
    return {key: value for key, value in report.items() if key not in apart}


def table_name(table: Mapping[str, Any]) -> str:
    """Of a table's entry: of one source, where the sink keeps those of several."""
    parts = table["backend"], table.get("sid"), table["table"]
    return "/".join(part for part in parts if part)


class _Way(Protocol):
    """One process's way to the board."""

    def send(self, key: Key, fields: Mapping[str, Any], counts: Mapping[str, float]) -> None:
        """Sends, or keeps for later."""

    def flush(self) -> None:
        """Waits a moment for what was kept."""


class _Totals:
    """The sums of what one process has counted; `sender` names the process."""

    def __init__(self) -> None:
        self.sender = secrets.token_hex(8)  # process ids repeat, over time and over hosts
        self._sums: dict[Key, dict[str, float]] = {}

    def add(self, key: Key, counts: Mapping[str, float]) -> None:
        sums = self._sums.setdefault(key, {})
        for name, count in counts.items():
            sums[name] = sums.get(name, 0) + count

    def pack(self, key: Key, fields: Mapping[str, Any]) -> bytes:
        """The report of one entry, of LIMIT bytes at most."""
        item = [*key, dict(fields), self._sums.get(key, {}), self.sender]
        data = orjson.dumps(item, str, _OPTIONS)
        if len(data) > LIMIT:
            item[2] = _cut(fields)
            data = orjson.dumps(item, str, _OPTIONS)
        return data


class _Datagrams:
    """To a unix socket. When the board does not read, a report waits a moment, then is dropped."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        wait = struct.pack("ll", 0, int(_MOMENT * 1e6))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, wait)
        self._is_stuck = False  # the last report found no room: the next does not wait
        self._totals = _Totals()
        self._lock = threading.Lock()

    def send(self, key: Key, fields: Mapping[str, Any], counts: Mapping[str, float]) -> None:
        with self._lock:
            self._totals.add(key, counts)
            data = self._totals.pack(key, fields)
            try:
                self._socket.sendto(data, socket.MSG_DONTWAIT if self._is_stuck else 0, self._path)
                self._is_stuck = False
            except BlockingIOError:
                self._is_stuck = True

    def flush(self) -> None:
        """Nothing is kept."""


class _Tcp:
    """To a `connections.Server` whose board confirms each report. A thread connects, sends, and
    tries again; until then the latest fields of each entry are kept."""

    def __init__(self, address: str, key: bytes) -> None:
        self._address = address
        self._key = key
        self._totals = _Totals()
        self._waiting: dict[Key, Mapping[str, Any]] = {}
        self._is_sending = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="reports", daemon=True).start()

    def send(self, key: Key, fields: Mapping[str, Any], counts: Mapping[str, float]) -> None:
        orjson.dumps(fields, str, _OPTIONS)  # raises here what would end the thread
        with self._changed:
            self._totals.add(key, counts)
            self._waiting[key] = {**self._waiting.get(key, _NOTHING), **fields}
            self._changed.notify_all()

    def flush(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._is_sending, _MOMENT)

    def _run(self) -> None:
        waits = delays()
        while True:
            try:
                with connect(self._address, self._key, answers_within=_ANSWER) as connection:
                    while True:
                        self._deliver(connection)
                        waits = delays()
            except (OSError, EOFError, AuthenticationError):
                time.sleep(next(waits))

    def _deliver(self, connection: Connection) -> None:
        """Sends the next report; keeps it and raises OSError or EOFError if it is not confirmed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting)
            key = next(iter(self._waiting))
            fields = self._waiting.pop(key)
            data = self._totals.pack(key, fields)
            self._is_sending = True
        try:
            connection.send_bytes(data)
            connection.recv_bytes()
        except (OSError, EOFError):
            with self._changed:
                self._waiting[key] = {**fields, **self._waiting.get(key, _NOTHING)}
            raise
        finally:
            with self._changed:
                self._is_sending = False
                self._changed.notify_all()


def _chunks(rows: Mapping[str, Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The rows, in parts that fit into a report each."""
    chunk: dict[str, Any] = {}
    room = LIMIT - 1000
    for key, fields in rows.items():
        kept = _cut(fields)
        size = len(key.encode()) + len(orjson.dumps(kept, str, _OPTIONS)) + 10
        if chunk and size > room:
            yield chunk
            chunk, room = {}, LIMIT - 1000
        chunk[key] = kept
        room -= size
    if chunk:
        yield chunk


def _cut(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that fit: long texts are cut, then the largest fields are left out."""
    cut = {
        key: f"{value[:_LONGEST_TEXT]}…"
        if isinstance(value, str) and len(value) > _LONGEST_TEXT
        else value
        for key, value in fields.items()
    }
    sizes = {key: len(orjson.dumps(value, str, _OPTIONS)) for key, value in cut.items()}
    while sizes and sum(sizes.values()) > LIMIT - 1000:
        largest = max(sizes, key=lambda key: sizes[key])
        del sizes[largest], cut[largest]
    return cut
