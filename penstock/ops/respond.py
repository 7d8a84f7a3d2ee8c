"""What the ops server answers: a pure function of the request and the status."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from penstock.model.errors import PenstockError, Unavailable
from penstock.ops.metrics import CONTENT_TYPE, MoreMetrics, metrics_text, no_more_metrics
from penstock.ops.status import Status

# A stream's state as the sink's server reports it, or None if there is no such stream.
StreamInfo = Callable[[str], Mapping[str, Any] | None]

_JSON = "application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What to send; `shutdown` asks for a graceful stop once it is sent."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    shutdown: bool = False


def respond(
    method: str,
    path: str,
    query: Mapping[str, str],
    status: Status,
    *,
    stream_info: StreamInfo | None = None,
    more_metrics: MoreMetrics = no_more_metrics,
    origin: str | None = None,
) -> Response:
    """Answers one request; HEAD is a GET whose body the server keeps.

    `origin` is the header of that name: a browser sends it along with a page's POST, and no web
    page may stop a pipeline.
    """
    endpoint = _ENDPOINTS.get(path)
    if endpoint is None:
        return _json(404, {"error": f"there is no {path}", "endpoints": list(_ENDPOINTS)})
    allowed = endpoint.method
    if method != allowed and (method, allowed) != ("HEAD", "GET"):
        return _json(405, {"error": f"{path} takes {allowed}"}, headers={"Allow": allowed})
    return endpoint.answer(_Asked(status, query, stream_info, more_metrics, origin))


class _Asked(NamedTuple):
    status: Status
    query: Mapping[str, str]
    stream_info: StreamInfo | None
    more_metrics: MoreMetrics
    origin: str | None


def _health(asked: _Asked) -> Response:
    status = asked.status
    code = 503 if status.health == "unhealthy" else 200
    return _json(
        code,
        {
            "health": status.health,
            "reasons": status.reasons,
            "uptime_seconds": status.uptime_seconds,
            "version": status.version,
            "backends": status.to_json()["backends"],
        },
    )


def _ready(asked: _Asked) -> Response:
    status = asked.status
    return _json(200 if status.ready else 503, {"ready": status.ready, "reasons": status.unready})


def _status(asked: _Asked) -> Response:
    return _json(200, asked.status.to_json())


def _metrics(asked: _Asked) -> Response:
    body = metrics_text(asked.status, asked.more_metrics)
    return Response(status=200, content_type=CONTENT_TYPE, body=body)


def _stream(asked: _Asked) -> Response:
    name = asked.query.get("stream", "")
    if not name:
        return _json(400, {"error": "which stream? ask /streams/info?stream=NAME"})
    if asked.stream_info is None:
        return _json(501, {"error": "this sink has no streams"})
    try:
        found = asked.stream_info(name)
    except PenstockError as error:
        code = 503 if isinstance(error, Unavailable) else 502
        return _json(code, {"error": error.message, "hint": error.hint})
    if found is None:
        return _json(404, {"error": f"there is no stream {name!r}"})
    return _json(200, found)


def _shutdown(asked: _Asked) -> Response:
    if asked.origin is not None:
        return _json(403, {"error": "not from a web page"})
    return _json(202, {"shutdown": "a graceful stop has begun"}, shutdown=True)


def _index(asked: _Asked) -> Response:
    status = asked.status
    about = {"penstock": status.version, "pipeline": status.name, "health": status.health}
    listed = [{"path": p, "method": m, "what": what} for p, m, what in ENDPOINTS]
    return _json(200, {**about, "endpoints": listed})


def _json(code: int, body: Mapping[str, Any], **more: Any) -> Response:
    data = orjson.dumps(body, str, orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    return Response(status=code, content_type=_JSON, body=data, **more)


class _Endpoint(NamedTuple):
    method: str
    what: str
    answer: Callable[[_Asked], Response]


_ENDPOINTS: dict[str, _Endpoint] = {
    "/": _Endpoint("GET", "this list", _index),
    "/health": _Endpoint("GET", "200 ok, degraded, standby; 503 unhealthy; why", _health),
    "/ready": _Endpoint("GET", "200 when all backends have begun and changes can flow", _ready),
    "/status": _Endpoint("GET", "everything known; ?partitions=all: of all partitions", _status),
    "/metrics": _Endpoint("GET", "Prometheus text", _metrics),
    "/streams/info": _Endpoint("GET", "?stream=NAME: the stream as its server tells it", _stream),
    "/shutdown": _Endpoint("POST", "a graceful stop", _shutdown),
}
# (path, method, what for).
ENDPOINTS = tuple((path, found.method, found.what) for path, found in _ENDPOINTS.items())
