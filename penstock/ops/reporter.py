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
from typing import Any, Protocol

import orjson

from penstock.ops.reports import SinkReport, StatusReport, TableStatus, described
from penstock.process.backoff import delays
from penstock.process.connections import connect

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
    """Costs microseconds; pickles; may be used across a fork and by several threads. `address` is
    the path of the board's socket, or `tcp:HOST:PORT`, where `key` is needed."""

    def __init__(self, address: str | Path, key: bytes = b"") -> None:
        self._address = str(address)
        self._key = key
        # By process: after a fork the child has a socket and totals of its own.
        self._ways: dict[int, _Datagrams | _Tcp] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Reporter, (self._address, self._key)

    def report(self, name: str, report: StatusReport) -> None:
        """The latest values of the fields that it names. Counters are this process's own."""
        self._send((report.kind, name), report.named, _NOTHING)

    def add(self, name: str, report: StatusReport) -> None:
        """The same, but what counters are is added to them."""
        self._send((report.kind, name), *parted(report))

    def report_rows(self, name: str, rows: Mapping[str, StatusReport]) -> None:
        """Each row, all of one kind, as the entry `NAME/KEY`. Rows have no counters."""
        with contextlib.suppress(TypeError, ValueError, RecursionError):
            for kind, chunk in _chunks(rows):
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

    def _way(self) -> "_Datagrams | _Tcp":
        if self._address.startswith("tcp:"):
            return _Tcp(self._address, self._key)
        return _Datagrams(self._address)


def parted(report: StatusReport) -> tuple[dict[str, Any], dict[str, float]]:
    """The fields that it names, and its counters: `FIELD`, or `FIELD.KEY` of a mapping. Pure."""
    fields, counts, about = dict[str, Any](), dict[str, float](), described(type(report))
    for name, found in report.named.items():
        if about[name].merge != "count":
            fields[name] = found
        elif isinstance(found, Mapping):
            counts |= {f"{name}.{key}": count for key, count in found.items()}
        else:
            counts[name] = found
    return fields, counts


class TakesReports(Protocol):
    """The board, or a reporter to it."""

    def add(self, name: str, report: StatusReport) -> None: ...


def add_sink_report(board: TakesReports, sink: str, status: Mapping[str, Any]) -> None:
    """Reports what a sink says, see `Progress.report`; `published` and the like are what is new.
    Raises TypeError for a field that is none."""
    for table in status.get("tables", ()):
        done = {name.lower(): count for name, count in table.get("applied", {}).items()}
        row = TableStatus(**table | ({"applied": done} if done else {}))
        board.add(row.name, row)
    found = {key: value for key, value in status.items() if key not in ("tables", "error")}
    if not status.get("connected", True):
        found |= {"last_error": status.get("error", ""), "errors": 1}
    if found:
        board.add(sink, SinkReport(**found))


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
            item[2] = _fitted(fields)
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
        """Sends the report at once."""
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
        self._address, self._key = address, key
        self._totals = _Totals()
        self._waiting: dict[Key, Mapping[str, Any]] = {}
        self._is_sending = False
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="reports", daemon=True).start()

    def send(self, key: Key, fields: Mapping[str, Any], counts: Mapping[str, float]) -> None:
        """Keeps the report for the thread."""
        orjson.dumps(fields, str, _OPTIONS)  # raises here what would end the thread
        with self._changed:
            self._totals.add(key, counts)
            self._waiting[key] = {**self._waiting.get(key, _NOTHING), **fields}
            self._changed.notify_all()

    def flush(self) -> None:
        """Waits a moment for what is kept."""
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


def _chunks(rows: Mapping[str, StatusReport]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The kind of the rows, and the rows in parts that fit into a report each."""
    chunk: dict[str, Any] = {}
    room, kind = LIMIT - 1000, ""
    for key, row in rows.items():
        kept, kind = _fitted(row.named), row.kind
        size = len(key.encode()) + len(orjson.dumps(kept, str, _OPTIONS)) + 10
        if chunk and size > room:
            yield kind, chunk
            chunk, room = {}, LIMIT - 1000
        chunk[key] = kept
        room -= size
    if chunk:
        yield kind, chunk


def _fitted(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that fit: long texts are shortened, then the largest fields are left out."""
    fitted = {
        key: f"{value[:_LONGEST_TEXT]}…"
        if isinstance(value, str) and len(value) > _LONGEST_TEXT
        else value
        for key, value in fields.items()
    }
    sizes = {key: len(orjson.dumps(value, str, _OPTIONS)) for key, value in fitted.items()}
    while sizes and sum(sizes.values()) > LIMIT - 1000:
        largest = max(sizes, key=lambda key: sizes[key])
        del sizes[largest], fitted[largest]
    return fitted
