"""Log lines for changes of a sink's state, from the board's reports.

Tasks only report; the service, which holds the board, logs each change once for all of them.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import structlog

from penstock.ops.board import Snapshot

LogLevel = Literal["info", "warning", "error"]

log = structlog.get_logger("penstock")

# Field of a sink's entry -> the event, and the fields that are logged with it.
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


class Announcement(NamedTuple):
    """One line of the log."""

    level: LogLevel
    event: str
    fields: Mapping[str, Any]


def announcements(known: Mapping[tuple[str, str], Any], now: Snapshot) -> Iterator[Announcement]:
    """What changed from `known`, (sink, field) -> value, to `now`. Pure."""
    for (kind, name), entry in now.items():
        if kind != "sink":
            continue
        for field, (event, more) in _EVENTS.items():
            value = entry.fields.get(field)
            if value is None or value == known.get((name, field), _USUAL.get(field)):
                continue
            also = {key: entry.fields[key] for key in more if entry.fields.get(key)}
            level: LogLevel = _ALARMS.get(str(value), "info")
            yield Announcement(level, event, {"sink": name, field: value, **also})


def log_all(lines: Iterable[Announcement]) -> None:
    """Writes them to the log."""
    for line in lines:
        getattr(log, line.level)(line.event, **line.fields)


class Announcer:
    """Logs each change once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Any] = {}

    def announce(self, snapshot: Snapshot) -> None:
        """Logs what changed since the last call."""
        log_all(announcements(self._known, snapshot))
        for (kind, name), entry in snapshot.items():
            if kind == "sink":
                seen = {(name, field): entry.fields.get(field) for field in _EVENTS}
                self._known.update({key: value for key, value in seen.items() if value is not None})
