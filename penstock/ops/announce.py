"""Log lines for what the board's reports say: changes of a sink's state, dead letters as they come,
changes of a table's state, and each loss and recovery of a source's connection.

Processes only report; the service, which holds the board, logs each change once for all of them.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import structlog

from penstock.ops.board import Entry, Snapshot
from penstock.ops.reports import SinkReport, SourceReport, TableStatus

LogLevel = Literal["info", "warning", "error"]

log = structlog.get_logger("penstock")

# Field of a sink's report -> the event, and what is logged with it, of its details, too.
_EVENTS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "delivery": ("the sink's delivery is chosen", ("reason", "stream", "version")),
    "durability": ("the sink's durability is verified", ("durability_reason",)),
    "pressure": ("the sink's back-pressure changed", ("pressure_reason", "answer_ms")),
    "breaker": ("the sink's circuit breaker changed", ("breaker_reason",)),
}
# Log levels of states; any other is information.
_ALARMS: Mapping[str, LogLevel] = {
    "slow": "warning", "critical": "error", "open": "error", "half-open": "warning",
}  # fmt: skip
# A start in one of these states is not logged.
_USUAL = {"pressure": "normal", "breaker": "closed", "durability": "default"}
_TABLES: Mapping[str, tuple[LogLevel, str]] = {
    "suspended": ("warning", "a table is suspended"),
    "waiting": ("warning", "a table waits"),
    "resuming": ("info", "a table resumes with its next change"),
    "following": ("info", "a table is followed again"),
}
_SHOWN = ("backend", "sid", "table", "reason", "error", "since", "skipped", "held")
LOST, BACK = "the source's connection is lost", "the source's connection is back"


class Announcement(NamedTuple):
    """One line of the log."""

    level: LogLevel
    event: str
    fields: Mapping[str, Any]


class _Seen(NamedTuple):
    """Of a backend at the last look: `lost` is when its connection was, None while there is one."""

    reconnects: int
    at: float
    lost: float | None


class Announcer:
    """Logs each change once."""

    def __init__(self) -> None:
        self._before = Snapshot()
        self._states: dict[tuple[str, str], Any] = {}  # (sink, field) -> what was logged
        self._seen: dict[str, _Seen] = {}

    def announce(self, snapshot: Snapshot) -> None:
        """Logs what changed since the last call."""
        for line in self.changes(snapshot):
            getattr(log, line.level)(line.event, **line.fields)

    def changes(self, snapshot: Snapshot) -> Iterator[Announcement]:
        """What changed since the last call."""
        before, self._before = self._before, snapshot
        for sink, stored in snapshot.of(SinkReport).items():
            yield from self._sink(sink, stored.report)
            yield from _letters(sink, before.latest(SinkReport, sink), stored.report)
        for name, table in snapshot.of(TableStatus).items():
            known = before.latest(TableStatus, name).state
            # A table that is followed at a start is not logged.
            if table.report.state != known and (known or table.report.state != "following"):
                yield from _table(table.report)
        for name, entry in snapshot.of(SourceReport).items():
            if "connected" in entry.report.named:
                yield from self._connection(name, entry)

    def _sink(self, name: str, report: SinkReport) -> Iterator[Announcement]:
        known = {**report.details, **report.named}
        for field, (event, more) in _EVENTS.items():
            value = known.get(field)
            if value is None or value == self._states.get((name, field), _USUAL.get(field)):
                continue
            also = {key: known[key] for key in more if known.get(key)}
            level: LogLevel = _ALARMS.get(str(value), "info")
            yield Announcement(level, event, {"sink": name, field: value, **also})
            self._states[name, field] = value

    def _connection(self, name: str, entry: Entry[SourceReport]) -> Iterator[Announcement]:
        """Of a backend with many partitions the connection is lost when none of them is read. A
        loss that is over before the next report shows in the number of reconnects."""
        source, count = entry.report, entry.report.reconnects
        seen = self._seen.get(name, _Seen(count, entry.at, None))
        lost, back = seen.lost, entry.changed["connected"]
        # A reader that stops, or has not connected yet, has no error.
        if not source.connected and source.last_error:
            if lost is None:
                lost = back
                yield _lost(name, source)
        elif source.connected:
            if lost is None and count > seen.reconnects and source.partition_count == 1:
                lost, back = seen.at, entry.at
                yield _lost(name, source)
            if lost is not None:
                yield Announcement("info", BACK, {"backend": name, "away": round(back - lost, 1)})
                lost = None
        self._seen[name] = _Seen(count, entry.at, lost)


def _letters(sink: str, before: SinkReport, now: SinkReport) -> Iterator[Announcement]:
    for reason, count in now.dead_letters.items():
        if more := count - before.dead_letters.get(reason, 0):
            letters = {"sink": sink, "reason": reason, "changes": more}
            yield Announcement("warning", "changes were set aside as dead letters", letters)


def _table(table: TableStatus) -> Iterator[Announcement]:
    if table.state in _TABLES:
        level, event = _TABLES[table.state]
        shown = {name: table.named[name] for name in _SHOWN if table.named.get(name) is not None}
        yield Announcement(level, event, shown)


def _lost(name: str, source: SourceReport) -> Announcement:
    error = {"error": source.last_error} if source.last_error else {}
    return Announcement("warning", LOST, {"backend": name, **error})
