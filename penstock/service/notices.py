"""What the service makes known of the board's reports: a line of the log for each change, and an
announcement of each gap, through the sink on `penstock.gap.{backend}`.

Processes only report; the service, which holds the board, logs each change once for all of them.
The reader process records a gap in the store and reports it; the service, which has the sink,
announces it. After a crash in between the next process does: at least once, under one id.
"""

from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, Literal, NamedTuple

import structlog

from penstock.config import Pipeline
from penstock.leases import open_store
from penstock.leases.gaps import Gaps
from penstock.model.errors import PenstockError
from penstock.ops.board import Entry, Snapshot
from penstock.ops.reports import GapReport, ProcessReport, SinkReport, SourceReport, TableStatus
from penstock.process.backoff import delays

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


class LogLine(NamedTuple):
    level: LogLevel
    event: str
    fields: Mapping[str, Any]


class BoardLog:
    """Logs each change once."""

    def __init__(self) -> None:
        self._before = Snapshot()
        self._lost: dict[str, float] = {}  # backend -> since when it has no connection

    def write(self, snapshot: Snapshot) -> None:
        """Logs what changed since the last call."""
        for line in self.changes(snapshot):
            getattr(log, line.level)(line.event, **line.fields)

    def changes(self, snapshot: Snapshot) -> Iterator[LogLine]:
        before, self._before = self._before, snapshot
        for name, sink in snapshot.of(SinkReport).items():
            yield from _sink(name, before.latest(SinkReport, name), sink.report)
        for name, table in snapshot.of(TableStatus).items():
            yield from _table(before.latest(TableStatus, name).state, table.report)
        for name, gaps in snapshot.of(GapReport).items():
            yield from _gaps(name, before.latest(GapReport, name), gaps.report)
        for name, entry in snapshot.of(SourceReport).items():
            if "connected" in entry.report.named:
                yield from self._source(name, before.get(SourceReport, name) or entry, entry)
        known, now = (one.latest(ProcessReport, "").unknown_types for one in (before, snapshot))
        for name in sorted(now.keys() - known.keys()):
            event = "a type is not known and is delivered as its text"
            yield LogLine("warning", event, {"type": name})

    def _source(
        self, name: str, before: Entry[SourceReport], entry: Entry[SourceReport]
    ) -> Iterator[LogLine]:
        """Of a backend with many partitions the connection is lost when none of them is read. A
        loss that is over before the next report shows in the number of reconnects."""
        source, at = entry.report, entry.changed["connected"]
        is_new = source.reconnects > before.report.reconnects and source.partition_count == 1
        if source.connected and is_new and name not in self._lost:
            self._lost[name], at = before.at, entry.at
            yield _lost(name, source)
        # A reader that stops, or has not connected yet, has no error.
        if not source.connected and source.last_error and name not in self._lost:
            self._lost[name] = at
            yield _lost(name, source)
        if source.connected and name in self._lost:
            away = round(at - self._lost.pop(name), 1)
            yield LogLine("info", BACK, {"backend": name, "away": away})


def _sink(name: str, before: SinkReport, now: SinkReport) -> Iterator[LogLine]:
    known = {**now.details, **now.named}
    for field, (event, more) in _EVENTS.items():
        value = known.get(field)
        if value is not None and value != before.named.get(field, _USUAL.get(field)):
            also = {key: known[key] for key in more if known.get(key)}
            level: LogLevel = _ALARMS.get(str(value), "info")
            yield LogLine(level, event, {"sink": name, field: value, **also})
    for reason, count in now.dead_letters.items():
        if more_letters := count - before.dead_letters.get(reason, 0):
            letters = {"sink": name, "reason": reason, "changes": more_letters}
            yield LogLine("warning", "changes were set aside as dead letters", letters)


def _table(before: str, now: TableStatus) -> Iterator[LogLine]:
    # A table that is followed at a start is not logged.
    is_usual = not before and now.state == "following"
    if now.state in _TABLES and now.state != before and not is_usual:
        level, event = _TABLES[now.state]
        shown = {name: now.named[name] for name in _SHOWN if now.named.get(name) is not None}
        yield LogLine(level, event, shown)


def _gaps(name: str, before: GapReport, now: GapReport) -> Iterator[LogLine]:
    backend, _, partition = name.partition("/")
    logged = {(gap["id"], gap["policy"], gap["to"]) for gap in before.gaps}
    for gap in now.gaps:
        if not gap["announced"] and (gap["id"], gap["policy"], gap["to"]) not in logged:
            about = {"backend": backend, "partition": partition, "cause": gap["cause"],
                     "after": gap["from"], "until": gap["to"]}  # fmt: skip
            more = {key: gap[key] for key in ("policy", "detail")}
            yield LogLine("error", "history lost", about | more)


def _lost(name: str, source: SourceReport) -> LogLine:
    error = {"error": source.last_error} if source.last_error else {}
    return LogLine("warning", LOST, {"backend": name, **error})


class GapAnnouncements:
    """Announces the gaps of the backends of `pipeline` that were not announced."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._announced: set[str] = set()
        self._waits: Iterator[float] = delays()
        self._at = 0.0

    def tick(self, snapshot: Snapshot, now: float) -> None:
        """Announces new gaps; `now` is monotonic seconds. One that fails is tried again."""
        for backend in self.pipeline.backends:
            for partition, row in snapshot.rows(GapReport, backend.name).items():
                for gap in row.report.gaps:
                    # Once its end is known, or will never be: each gap is announced once.
                    done = bool(gap["to"]) or gap["policy"] == "fail"
                    if done and not gap["announced"] and _identity(gap) not in self._announced:
                        if now < self._at:
                            return
                        self._announce(backend.name, partition, gap, now)

    def _announce(self, backend: str, partition: str, gap: Mapping[str, Any], now: float) -> None:
        subject = f"penstock.gap.{backend}"
        news = {
            "pipeline": self.pipeline.name,
            "backend": backend,
            "partition": partition,
            **{key: value for key, value in gap.items() if key != "announced"},
        }
        server = self.pipeline.sink.server()
        try:
            if server is not None:
                kept = server.announce(subject, news, identity=_identity(gap))
                log.warning("a gap was announced", subject=subject, kept_in=kept or "no stream")
            with closing(open_store(self.pipeline.positions)) as store:
                Gaps(store, f"{self.pipeline.name}/{backend}").announced(partition, gap["id"])
        except PenstockError as error:
            self._at = now + next(self._waits)
            log.warning("a gap could not be announced yet", subject=subject, error=str(error))
            return
        self._announced.add(_identity(gap))
        self._waits = delays()


def _identity(gap: Mapping[str, Any]) -> str:
    """A gap that stopped the backend is announced again when reading goes on."""
    return f"{gap['id']}-{gap['policy']}"
