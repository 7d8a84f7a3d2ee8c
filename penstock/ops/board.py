"""The reports of all processes (`ops/reporter.py`), merged in the service process."""

import contextlib
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import exp
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Self, TypeVar

import orjson

from penstock.model.errors import SettingsError
from penstock.ops.reporter import LIMIT, parted
from penstock.ops.reports import KINDS, StatusReport, described
from penstock.process.closing import Closes

# Counters of processes. A process that ended does not count any more; the oldest are forgotten.
_REMEMBERED = 50_000  # a sink of tables has five for each
_LATELY = 10.0  # seconds over which a rate is told
_IDLE = 60.0  # seconds without a change stored, after which a latency is not the present's
_NOTHING: Mapping[str, Any] = MappingProxyType({})

R = TypeVar("R", bound=StatusReport)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry(Generic[R]):
    """The merged reports of one thing. Times are the board's monotonic clock. `at`: the last
    report. `changed`: when each field last got another value. `calm`: when each field was last
    empty, or at or below its bound (0 unless the board has another for it), for those that ever
    were. `gained`: of what is rated, weighed by its age; see `rate`."""

    report: R
    at: float
    since: float
    changed: Mapping[str, float]
    calm: Mapping[str, float]
    gained: float = 0.0

    def rate(self, now: float) -> float:
        """Of what is rated, how much was done a second, lately."""
        return self.gained / _LATELY * exp((self.at - now) / _LATELY)

    def merged(
        self, report: R, gains: Mapping[str, float], at: float, bounds: Mapping[str, float]
    ) -> "Entry[R]":
        """This entry after a report at `at`, and what counters have gained. Pure."""
        known, about = self.report.named, described(type(report))
        fields = {
            name: {**known.get(name, _NOTHING), **value} if about[name].merge == "keys" else value
            for name, value in report.named.items()
            if about[name].merge != "count"
        }
        for key, gain in gains.items():
            name, _, part = key.partition(".")
            if not part:
                fields[name] = (known.get(name) or 0) + gain
            else:
                counts = fields.setdefault(name, dict(known.get(name) or _NOTHING))
                counts[part] = counts.get(part, 0) + gain
        moved = {name: at for name, new in fields.items() if known.get(name, ...) != new}
        # The moment at which a number leaves its bound still counts as calm.
        calm = {
            name: at
            for name, new in fields.items()
            if any(_is_calm(value, bounds.get(name, 0)) for value in (new, known.get(name)))
        }
        whole = {**known, **fields}
        return Entry(
            report=report if whole == report.named else type(report)(**whole),
            at=at,
            gained=self.gained * exp((self.at - at) / _LATELY)
            + sum(gain for key, gain in gains.items() if about[key.partition(".")[0]].rated),
            since=self.since,
            changed={**self.changed, **moved},
            calm={**self.calm, **calm},
        )


def is_idle(sink: Entry[Any], now: float) -> bool:
    """Whether what a sink reported of its latency is of long ago."""
    return now - sink.changed.get("acknowledged", sink.since) > _IDLE


def _is_calm(value: Any, bound: float) -> bool:
    return not value or (isinstance(value, int | float) and value <= bound)


class Snapshot:
    """Everything known at one time: the entries of each kind, by name."""

    def __init__(self, entries: Mapping[str, Mapping[str, Entry[Any]]] = _NOTHING) -> None:
        self._entries = entries

    def of(self, kind: type[R]) -> Mapping[str, Entry[R]]:
        return self._entries.get(kind.kind, _NOTHING)

    def get(self, kind: type[R], name: str) -> Entry[R] | None:
        return self.of(kind).get(name)

    def latest(self, kind: type[R], name: str) -> R:
        """What is known of one; nothing before its first report."""
        entry = self.get(kind, name)
        return kind() if entry is None else entry.report

    def rows(self, kind: type[R], name: str) -> dict[str, Entry[R]]:
        """What `Reporter.report_rows` reported of `name`: key -> its entry."""
        prefix = f"{name}/"
        return {
            found.removeprefix(prefix): entry
            for found, entry in self.of(kind).items()
            if found.startswith(prefix)
        }


class Board(Closes):
    """Receives reports in a daemon thread, within a `with`. `path` is the socket; its folder is
    made with mode 0700. `bounds`: up to where numeric fields count as calm."""

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
        self._bounds, self._clock = bounds, clock
        self._entries: dict[str, dict[str, Entry[Any]]] = {}  # of each kind, by name
        self._counted: OrderedDict[tuple[str, str, str, str], float] = OrderedDict()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        # Of each kind that is passed on: to what.
        self._passed: dict[str, Callable[[str, Any], None]] = {}

    def __enter__(self) -> Self:
        """Binds the socket, replacing one that a dead process left; raises SettingsError."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.unlink(missing_ok=True)
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.bind(str(self.path))
        except OSError as error:
            hint = "name another state folder: short (a socket's path has 107 bytes) and writable"
            what = error.strerror or error
            raise SettingsError(
                f"cannot listen on {self.path}: {what}", "ops", hint=hint
            ) from error
        threading.Thread(target=self._receive, name="board", daemon=True).start()
        return self

    def snapshot(self) -> Snapshot:
        now = self._clock()
        with self._lock:
            for kind, entries in self._entries.items():
                for name, entry in [*entries.items()]:
                    if now - entry.at > KINDS[kind].expires:
                        del entries[name]
            return Snapshot({kind: dict(entries) for kind, entries in self._entries.items()})

    def forget(self, backend: str) -> None:
        """Drops what was reported of a backend that is not followed any more."""
        with self._lock:
            for kind, entries in self._entries.items():
                for name in [*entries] if KINDS[kind].of_backend else ():
                    if name.partition("/")[0] == backend:
                        del entries[name]

    @contextlib.contextmanager
    def passing_on(self, kind: type[R], take: Callable[[str, R], None]) -> Iterator[None]:
        """Within it, `take` gets each report of the kind, and whose it is."""
        self._passed[kind.kind] = take
        try:
            yield
        finally:
            del self._passed[kind.kind]

    def serve(self, connection: Connection) -> None:
        """Confirms the reports of one TCP connection; raises EOFError or OSError at its end."""
        while True:
            self._take(connection.recv_bytes(4 * LIMIT))
            connection.send_bytes(b"")

    def post(
        self,
        name: str,
        report: StatusReport,
        totals: Mapping[str, float] = _NOTHING,
        sender: str = "",
    ) -> None:
        """Merges a report. Its counters, and `totals`, are those of the process `sender`."""
        if (take := self._passed.get(report.kind)) is not None:
            take(name, report)
        if not report.is_kept:
            return
        with self._lock:
            gains = {
                key: self._gain((report.kind, name, key, sender), total)
                for key, total in {**parted(report)[1], **totals}.items()
            }
            self._merge(name, report, gains)

    def add(self, name: str, report: StatusReport) -> None:
        with self._lock:
            self._merge(name, report, parted(report)[1])

    def _merge(self, name: str, report: StatusReport, gains: Mapping[str, float]) -> None:
        now, entries = self._clock(), self._entries.setdefault(report.kind, {})
        entry = entries.get(name)
        entry = entry or Entry(report=type(report)(), at=now, since=now, changed={}, calm={})
        entries[name] = entry.merged(report, gains, now, self._bounds)

    def _gain(self, key: tuple[str, str, str, str], value: float) -> float:
        """How much a process's counter grew; one that fell belongs to a new process."""
        before = self._counted.get(key, 0)
        self._counted[key] = value
        self._counted.move_to_end(key)
        if len(self._counted) > _REMEMBERED:
            self._counted.popitem(last=False)
        return value - before if value >= before else value

    def close(self) -> None:
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
            made = KINDS[kind]
            if made.has_rows:
                for key, row in fields.items():
                    self.post(f"{name}/{key}", made(**row))
            else:
                self.post(name, made(**fields), totals, sender)
        except (ValueError, TypeError, AttributeError, KeyError):
            self.ignored += bool(data)
