"""Logs: structured, one line each, without secrets; and the METRICS line.

Our own events and those of the libraries' loggers leave through the same door, on stderr.
"""

import logging
import re
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import orjson
import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from penstock.ops.reports import described, together
from penstock.ops.status import BackendStatus, SinkStatus, Status

Format = Literal["logfmt", "json", "console"]

_USERINFO = re.compile(r"(?<=://)([^/@\s:]*):[^@\s/]+@")
_SHORTEST_SECRET = 3
_LINES = 500  # that are kept


def configure(form: Format | None = None, *, secrets: Iterable[str] = ()) -> None:
    """Sets up all logging of this process. `form` None: for people on a terminal, else logfmt."""
    out = sys.stderr
    chosen = form or ("console" if out.isatty() else "logfmt")
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            Blot(secrets),
            LastLines(),
            _renderer(chosen, colors=out.isatty()),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers = [_Forward()]
    # Libraries (py4j, nats) chat at INFO.
    root.setLevel(logging.WARNING)


def hide(secrets: Iterable[str]) -> None:
    for each in structlog.get_config()["processors"]:
        if isinstance(each, Blot):
            each.add(secrets)


@contextmanager
def also_through(processor: Processor) -> Iterator[None]:
    """Within it, `processor` gets every event, without secrets, before it becomes a line."""
    processors = structlog.get_config()["processors"]
    processors.insert(-1, processor)
    try:
        yield
    finally:
        processors.remove(processor)


def _renderer(form: Format, *, colors: bool) -> Processor:
    if form == "json":
        return structlog.processors.JSONRenderer()
    if form == "console":
        return structlog.dev.ConsoleRenderer(colors=colors)
    order = ["timestamp", "level", "event"]
    return structlog.processors.LogfmtRenderer(key_order=order, bool_as_flag=False)


class Blot:
    """Replaces known secrets, and passwords inside URLs, in every text of an event."""

    def __init__(self, secrets: Iterable[str]) -> None:
        self._secrets: list[str] = []
        self.add(secrets)

    def add(self, secrets: Iterable[str]) -> None:
        long_enough = {secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}
        self._secrets = sorted(long_enough.union(self._secrets), key=len, reverse=True)

    def __call__(self, _: WrappedLogger, __: str, event: EventDict) -> EventDict:
        return {key: self._clean(value) for key, value in event.items()}

    def _clean(self, value: Any) -> Any:
        if isinstance(value, str):
            for secret in self._secrets:
                value = value.replace(secret, "***")
            return _USERINFO.sub(r"\1:***@", value)
        if isinstance(value, Mapping):
            return {self._clean(key): self._clean(item) for key, item in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self._clean(item) for item in value]
        if value is None or isinstance(value, bool | int | float):
            return value
        return self._clean(str(value))


class _Forward(logging.Handler):
    """The standard library's loggers -> structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            known = {"logger": record.name}
            if record.exc_info:
                known["exc_info"] = record.exc_info  # type: ignore[assignment]
            structlog.get_logger().log(record.levelno, record.getMessage(), **known)
        except Exception:
            self.handleError(record)


class LastLines:
    """The last lines of the log of this process, without secrets; a processor of structlog."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: deque[bytes] = deque(maxlen=_LINES)
        self._count = 0

    def __call__(self, _: WrappedLogger, __: str, event: EventDict) -> EventDict:
        with self._lock:
            self._lines.append(orjson.dumps(event, str))
            self._count += 1
        return event

    def after(self, number: int) -> tuple[int, list[bytes]]:
        """The lines after this number, as JSON, and the number of the last one."""
        with self._lock:
            kept = min(max(self._count - number, 0), len(self._lines))
            return self._count, list(self._lines)[len(self._lines) - kept :]


def last_lines() -> LastLines:
    """Those of this process; of a process that did not `configure` its log: none."""
    processors = structlog.get_config()["processors"]
    return next((each for each in processors if isinstance(each, LastLines)), LastLines())


def metrics_fields(status: Status) -> dict[str, Any]:
    """The fields of the METRICS line: sums over backends and sinks."""
    sums = {
        name: together(about.over, (getattr(each, name) for each in owners)) or 0
        for kind, owners in ((BackendStatus, status.backends), (SinkStatus, status.sinks))
        for name, about in described(kind).items()
        if about.line
    }
    return {
        "uptime": int(status.uptime_seconds),
        "health": status.health,
        "connected": int(all(backend.connected for backend in status.backends)),
        **sums,
        "confirmed": ",".join(backend.confirmed or "-" for backend in status.backends),
        "batch_ms": status.last_batch.duration_ms if status.last_batch else 0,
    }
