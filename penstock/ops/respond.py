"""What the ops server answers: pure functions of the request and the status; and the files of the
pages below `/ui/`, which ask the other endpoints for all that they show.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.resources import files
from typing import Any

from starlette.background import BackgroundTask
from starlette.responses import RedirectResponse, Response

from penstock.model.errors import PenstockError, Unavailable
from penstock.ops.history import RANGES, History
from penstock.ops.metrics import CONTENT_TYPE, Additions, metrics_text
from penstock.ops.requests import Access, Answer, Endpoint, OpsRequest, as_json, refused
from penstock.ops.status import BackendStatus, Status, status_schema

# A stream's state as the sink's server reports it, or None if there is no such stream.
StreamInfo = Callable[[str], Mapping[str, Any] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request, and all that its answer depends on. `endpoints`: all that the server answers.
    `at`: Unix seconds."""

    request: OpsRequest
    status: Status
    access: Access
    stop: Callable[[], None]
    stream_info: StreamInfo | None = None
    more: Additions | None = None
    history: History = field(default_factory=History)
    endpoints: Sequence[Endpoint] = ()
    at: float = field(default_factory=time.time)


def _health(asked: Asked) -> Response:
    status = asked.status
    code = 503 if status.health == "unhealthy" else 200
    found = {
        "health": status.health,
        "reasons": status.reasons,
        "uptime_seconds": status.uptime_seconds,
        "version": status.version,
    }
    if asked.more and asked.more.status:
        found["status"] = "ok" if code == 200 else status.health
    if asked.access.refusal_to_read(asked.request) is None:
        found["backends"] = [asdict(each) for each in status.backends]
        found["Backends"] = [_of_a_puller(each, asked.at) for each in status.backends]
    return as_json(code, found)


def _of_a_puller(backend: BackendStatus, now: float) -> Mapping[str, Any]:
    """As probes of a puller between MongoDB and its consumers read it, which decode into structs
    whose names have capitals: after ours, which a decoder that ignores case would take as well."""
    worst = {each.health for each in backend.partitions}
    if not backend.connected or backend.blocked or backend.stopped:
        word = "unhealthy"
    elif any(each.stale for each in backend.gaps.values()):
        word = "stale"
    else:
        word = "lagging" if "lagging" in worst else "healthy"
    since = backend.last_event_seconds
    last = None if since is None else datetime.fromtimestamp(now - since, UTC)
    return {
        "Name": backend.name,
        "Status": word,
        "LastEventTime": last and last.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }


def _ready(asked: Asked) -> Response:
    status = asked.status
    accepted = asked.request.query.get("standby") == "ok" and status.standby is not None
    code = 200 if status.ready or accepted else 503
    found = {"ready": status.ready, "warming_up": status.warming_up, "reasons": status.unready}
    return as_json(code, found)


def _status(asked: Asked) -> Response:
    more = asked.more.status if asked.more else None
    return as_json(200, asked.status.to_json() | dict(more(asked.status) if more else {}))


def _schema(asked: Asked) -> Response:
    return as_json(200, status_schema())


def _metrics(asked: Asked) -> Response:
    return Response(
        metrics_text(asked.status, asked.more.metrics if asked.more else None),
        media_type=CONTENT_TYPE,
    )


def _history(asked: Asked) -> Response:
    if (name := asked.request.query.get("range", "15m")) not in RANGES:
        return as_json(400, {"error": f"no range {name!r}: there are {', '.join(RANGES)}"})
    return as_json(200, asked.history.shown(name))


def _stream(asked: Asked) -> Response:
    if not (name := asked.request.query.get("stream", "")):
        return as_json(400, {"error": "which stream? ask /streams/info?stream=NAME"})
    if asked.stream_info is None:
        return as_json(501, {"error": "this sink has no streams"})
    try:
        found = asked.stream_info(name)
    except PenstockError as error:
        code = 503 if isinstance(error, Unavailable) else 502
        return as_json(code, {"error": error.message, "hint": error.hint})
    if found is None:
        return as_json(404, {"error": f"there is no stream {name!r}"})
    return as_json(200, found)


def _shutdown(asked: Asked) -> Response:
    """Browsers send `Origin` with a page's POST, and no web page may stop a pipeline."""
    if "origin" in asked.request.headers:
        return refused(403, "foreign_origin", "not from a web page")
    if denied := asked.access.refusal_to_stop(asked.request):
        return denied
    after = BackgroundTask(asked.stop)  # when the answer is sent
    return as_json(202, {"shutdown": "a graceful stop has begun"}, background=after)


def _index(asked: Asked) -> Response:
    if "text/html" in asked.request.headers.get("accept", ""):
        return RedirectResponse("ui/", 302)
    status = asked.status
    about = {"penstock": status.version, "pipeline": status.name, "health": status.health}
    listed = [
        {"path": path, "method": method, "what": what}
        for path, method, _, what in asked.endpoints
        if what
    ]
    return as_json(200, {**about, "endpoints": listed})


# Path -> its method, what it is for, and what answers.
ANSWERS: Mapping[str, tuple[str, str, Callable[[Asked], Response]]] = {
    "/": ("GET", "this list", _index),
    "/health": ("GET", "200 ok, degraded, standby; 503 unhealthy; why", _health),
    "/ready": ("GET", "200 when changes can flow; ?standby=ok: on standby, too", _ready),
    "/status": ("GET", "everything known; ?partitions=all: of all partitions", _status),
    "/schema/status": ("GET", "the JSON Schema of /status", _schema),
    "/metrics": ("GET", "Prometheus text", _metrics),
    "/history": ("GET", "?range=15m, 1h, 24h or 7d: what charts show, and what happened", _history),
    "/streams/info": ("GET", "?stream=NAME: the stream as its server tells it", _stream),
    "/shutdown": ("POST", "a graceful stop", _shutdown),
}


def status_endpoints(asked: Callable[[OpsRequest], Asked]) -> list[Endpoint]:
    """The endpoints of a server that answers so what `asked` makes of requests."""

    def answered(answer: Callable[[Asked], Response]) -> Answer:
        return lambda request: answer(asked(request))

    return [
        Endpoint(path, method, answered(answer), what)
        for path, (method, what, answer) in ANSWERS.items()
    ]


_KINDS = {
    "html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml",
}  # fmt: skip
_FILES = {
    each.name
    for each in files("penstock.ops").joinpath("ui").iterdir()
    if each.name.rpartition(".")[2] in _KINDS
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
}  # fmt: skip


def page(request: OpsRequest) -> Response:
    name = str(request.ids.get("name", "")) or "index.html"
    if name == "map":  # where the screen was a page
        return RedirectResponse("./#/map", 302)
    if name not in _FILES:
        return refused(404, "not_found", f"there is no page {name[:40]}")
    body = files("penstock.ops").joinpath("ui", name).read_bytes()
    return Response(body, media_type=_KINDS[name.rpartition(".")[2]], headers=_HEADERS)


PAGES = (Endpoint("/ui/", "GET", page), Endpoint("/ui/{name}", "GET", page))
