"""Requests and responses of the ops server as values, and which requests are refused.

A web page of another site must neither read nor act. Browsers name the host that they ask for in
`Host`, and the page that asks in `Origin`.
"""

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import orjson

from penstock.model.settings import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsRequest:
    """One request. Names of headers are in lower case; `ids` has what the path says, by name."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    ids: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """What to send; `shutdown` asks for a graceful stop after it was sent."""

    status: int
    content_type: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    shutdown: bool = False


Answer = Callable[[OpsRequest], Response]


class Endpoint(NamedTuple):
    """What answers a method of a path, in which `{NAME}` is one of the request's `ids`."""

    path: str
    method: str
    answer: Answer


def as_json(status: int, body: Any, **more: Any) -> Response:
    """A response with `body` as indented JSON."""
    data = orjson.dumps(body, str, orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    return Response(status=status, content_type="application/json", body=data, **more)


def refused(status: int, code: str, error: str, info: str = "", **more: Any) -> Response:
    """An error as REST answers it."""
    return as_json(status, {"code": code, "error": error, "info": info}, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Which requests are answered: `hosts` besides loopback and `bind`, and who may write."""

    bind: str = "127.0.0.1"
    hosts: tuple[str, ...] = ()
    token: Secret | None = None

    def refusal(self, request: OpsRequest) -> Response | None:
        """421 for the name of another host, 403 for the page of another site. A request without
        `Host` (HTTP/1.0) is not a browser's."""
        host, origin = request.headers.get("host"), request.headers.get("origin")
        if host is not None and not self._is_ours(host):
            return refused(421, "wrong_host", f"this is not {host}", "add the name to ops.hosts")
        if origin is None or origin.partition("://")[2] == host or _name(origin) in self.hosts:
            return None
        return refused(403, "foreign_origin", "not from a web page of another site")

    def refusal_to_write(self, request: OpsRequest) -> Response | None:
        """401 without a token, 403 with a wrong one, or where `ops.token` is not set."""
        if self.token is None:
            return refused(403, "forbidden", "writing needs a token", "set ops.token")
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            ask = {"WWW-Authenticate": "Bearer"}
            what = "Authorization: Bearer TOKEN, the one of ops.token"
            return refused(401, "unauthorized", "writing needs a token", what, headers=ask)
        if hmac.compare_digest(given.strip().encode(), self.token.get_secret_value().encode()):
            return None
        return refused(403, "forbidden", "the token is another one")

    def _is_ours(self, host: str) -> bool:
        name = _name(f"//{host}")
        if name in ("localhost", self.bind.lower(), *self.hosts):
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return False
        # An attacker's page is asked for by name, so on all interfaces any address will do.
        return address.is_loopback or self.bind in ("", "0.0.0.0", "::")  # noqa: S104


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
