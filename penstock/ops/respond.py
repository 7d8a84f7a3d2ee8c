"""What the ops server answers: a pure function of the request and the status."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from penstock.model.errors import PenstockError, Unavailable
from penstock.ops.history import RANGES, History
from penstock.ops.metrics import CONTENT_TYPE, MoreMetrics, metrics_text, no_more_metrics
from penstock.ops.requests import Access, Endpoint, OpsRequest, Response, as_json, refused
from penstock.ops.status import Status, status_schema

# A stream's state as the sink's server reports it, or None if there is no such stream.
StreamInfo = Callable[[str], Mapping[str, Any] | None]


def respond(
    request: OpsRequest,
    status: Status,
    *,
    access: Access,
    stream_info: StreamInfo | None = None,
    more_metrics: MoreMetrics = no_more_metrics,
    history: History | None = None,
    more: Sequence[Endpoint] = (),
) -> Response:
    """Answers one request; HEAD is a GET whose body the server keeps. `more`: what else the server
    answers."""
    path, method = request.path, request.method
    endpoint = _ENDPOINTS.get(path)
    if endpoint is None:
        return as_json(404, {"error": f"there is no {path}", "endpoints": list(_ENDPOINTS)})
    allowed = endpoint.method
    if method != allowed and (method, allowed) != ("HEAD", "GET"):
        return as_json(405, {"error": f"{path} takes {allowed}"}, headers={"Allow": allowed})
    return endpoint.answer(
        _Asked(request, status, access, stream_info, more_metrics, history, more)
    )


class _Asked(NamedTuple):
    request: OpsRequest
    status: Status
    access: Access
    stream_info: StreamInfo | None
    more_metrics: MoreMetrics
    history: History | None
    more: Sequence[Endpoint]


def _health(asked: _Asked) -> Response:
    status = asked.status
    code = 503 if status.health == "unhealthy" else 200
    found = {
        "health": status.health,
        "reasons": status.reasons,
        "uptime_seconds": status.uptime_seconds,
        "version": status.version,
    }
    if asked.access.refusal_to_read(asked.request) is None:
        found["backends"] = [asdict(each) for each in status.backends]
    return as_json(code, found)


def _ready(asked: _Asked) -> Response:
    status = asked.status
    accepted = asked.request.query.get("standby") == "ok" and status.standby is not None
    code = 200 if status.ready or accepted else 503
    return as_json(code, {"ready": status.ready, "reasons": status.unready})


def _status(asked: _Asked) -> Response:
    return as_json(200, asked.status.to_json())


def _schema(asked: _Asked) -> Response:
    return as_json(200, status_schema())


def _metrics(asked: _Asked) -> Response:
    body = metrics_text(asked.status, asked.more_metrics)
    return Response(status=200, content_type=CONTENT_TYPE, body=body)


def _history(asked: _Asked) -> Response:
    name = asked.request.query.get("range", "15m")
    if name not in RANGES:
        return as_json(400, {"error": f"no range {name!r}: there are {', '.join(RANGES)}"})
    return as_json(200, (asked.history or History()).shown(name))


def _stream(asked: _Asked) -> Response:
    name = asked.request.query.get("stream", "")
    if not name:
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


def _shutdown(asked: _Asked) -> Response:
    """Browsers send `Origin` with a page's POST, and no web page may stop a pipeline."""
    if "origin" in asked.request.headers:
        return refused(403, "foreign_origin", "not from a web page")
    denied = asked.access.token and asked.access.refusal_to_write(asked.request)
    if denied:
        return denied
    return as_json(202, {"shutdown": "a graceful stop has begun"}, shutdown=True)


def _index(asked: _Asked) -> Response:
    if "text/html" in asked.request.headers.get("accept", ""):
        return Response(status=302, content_type="text/html", body=b"", headers={"Location": "ui/"})
    status = asked.status
    about = {"penstock": status.version, "pipeline": status.name, "health": status.health}
    more = [(each.path, each.method, each.what) for each in asked.more if each.what]
    listed = [{"path": p, "method": m, "what": what} for p, m, what in (*ENDPOINTS, *more)]
    return as_json(200, {**about, "endpoints": listed})


class _Endpoint(NamedTuple):
    method: str
    what: str
    answer: Callable[[_Asked], Response]


_ENDPOINTS: dict[str, _Endpoint] = {
    "/": _Endpoint("GET", "this list", _index),
    "/health": _Endpoint("GET", "200 ok, degraded, standby; 503 unhealthy; why", _health),
    "/ready": _Endpoint("GET", "200 when changes can flow; ?standby=ok: on standby, too", _ready),
    "/status": _Endpoint("GET", "everything known; ?partitions=all: of all partitions", _status),
    "/schema/status": _Endpoint("GET", "the JSON Schema of /status", _schema),
    "/metrics": _Endpoint("GET", "Prometheus text", _metrics),
    "/history": _Endpoint("GET", "?range=15m or 24h: what charts show", _history),
    "/streams/info": _Endpoint("GET", "?stream=NAME: the stream as its server tells it", _stream),
    "/shutdown": _Endpoint("POST", "a graceful stop", _shutdown),
}
# (path, method, what for).
ENDPOINTS = tuple((path, found.method, found.what) for path, found in _ENDPOINTS.items())
