"""Requests of the ops server as values, its usual responses, and which requests are refused.

A web page of another site must neither read nor act. Browsers name the host that they ask for in
`Host`, and the page that asks in `Origin`.
"""

import hmac
import threading
import time
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import orjson
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from penstock.model.settings import Secret


@dataclass(frozen=True, slots=True, kw_only=True)
class OpsRequest:
    """One request. Names of headers are in lower case; `ids` has what the path says, by name;
    `client` is the address that it comes from."""

    method: str
    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    ids: Mapping[str, Any] = field(default_factory=dict)
    client: str = ""


def _is_of_this_machine(request: OpsRequest) -> bool:
    if {"forwarded", "x-forwarded-for", "via"} & request.headers.keys():
        return False
    with suppress(ValueError):
        client = ip_address(request.client)
        return (getattr(client, "ipv4_mapped", None) or client).is_loopback
    return False


Answer = Callable[[OpsRequest], Response]


class Endpoint(NamedTuple):
    """What answers a method of a path, in which `{NAME}` is one of the request's `ids`. `what` says
    what it is for; endpoints without it are in no list."""

    path: str
    method: str
    answer: Answer
    what: str = ""


def as_json(status: int, body: Any, **more: Any) -> Response:
    data = orjson.dumps(body, str, orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    return Response(data, status, media_type="application/json", **more)


def server_sent(events: AsyncGenerator[bytes, None]) -> Response:
    """A response with server-sent events, for as long as the client stays; closes them then."""
    headers = {"Content-Type": "text/event-stream", "X-Accel-Buffering": "no"}
    return _ServerSent(events, headers=headers)


class _ServerSent(StreamingResponse):
    # Starlette leaves closing to the garbage collector, which may take minutes in a large process.
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            assert isinstance(self.body_iterator, AsyncGenerator)
            await self.body_iterator.aclose()


def refused(
    status: int, code: str, error: str, info: str = "", *, field: str = "", **more: Any
) -> Response:
    """An error as REST answers it. `field`: the argument that is wrong."""
    which = {"field": field} if field else {}
    return as_json(status, {"code": code, "error": error, "info": info, **which}, **more)


# After so many wrong tokens within so many seconds others are refused as too many, and later. The
# right one is not: behind a proxy its owner has the address of everybody.
_WRONG, _PERIOD = 5, 60.0
_REMEMBERED = 10_000  # addresses
# What everybody may read, and files of pages, which hold no data.
_OPEN = ("/", "/ready", "/health")
_PAGES = "/ui/"


class WrongTokens:
    """How many wrong tokens came from where lately; used by any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._times: defaultdict[str, deque[float]] = defaultdict(deque)

    def add(self, client: str) -> None:
        with self._lock:
            if len(self._times) >= _REMEMBERED:
                self._times.clear()
            self._times[client].append(self._clock())

    def wait(self, client: str) -> float:
        """Seconds until the client may try again."""
        with self._lock:
            times = self._times.get(client) or deque()
            while times and times[0] <= self._clock() - _PERIOD:
                times.popleft()
            return times[0] + _PERIOD - self._clock() if len(times) >= _WRONG else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Which requests are answered: `hosts` besides loopback and `bind`; who may write (`token`);
    and who may read, if not everybody: the owner of `read_token`, or of `token`."""

    bind: str = "127.0.0.1"
    hosts: tuple[str, ...] = ()
    token: Secret | None = None
    read_token: Secret | None = None
    wrong: WrongTokens = field(default_factory=WrongTokens)

    def refusal(self, request: OpsRequest) -> Response | None:
        """421 for the name of another host, 403 for the page of another site; then what
        `refusal_to_read` says. A request without `Host` (HTTP/1.0) is not a browser's."""
        host, origin = request.headers.get("host"), request.headers.get("origin")
        if host is not None and not self._is_ours(host):
            return refused(421, "wrong_host", f"this is not {host}", "add the name to ops.hosts")
        is_ours = origin is None or origin.partition("://")[2] == host
        if not is_ours and _name(str(origin)) not in self.hosts:
            return refused(403, "foreign_origin", "not from a web page of another site")
        is_open = request.path in _OPEN or request.path.startswith(_PAGES)
        return None if is_open else self.refusal_to_read(request)

    def refusal_to_read(self, request: OpsRequest) -> Response | None:
        """401 without a token, 403 with a wrong one, 429 with one after five in a minute; None
        where everybody may read."""
        if self.read_token is None:
            return None
        return self._refusal(request, "reading", {"token", "read_token"})

    def refusal_to_stop(self, request: OpsRequest) -> Response | None:
        """As `refusal_to_write`; without `ops.token` whoever asks on this machine may, and not
        through a proxy on it."""
        if self.token or not _is_of_this_machine(request):
            return self.refusal_to_write(request)
        return None

    def refusal_to_write(self, request: OpsRequest) -> Response | None:
        """The same; and 403 where `ops.token` is not set."""
        if self.token is None:
            return refused(403, "forbidden", "writing needs a token", "set ops.token")
        return self._refusal(request, "writing", {"token"})

    def _refusal(self, request: OpsRequest, what: str, keys: Collection[str]) -> Response | None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            ask = {"WWW-Authenticate": "Bearer"}
            how = f"Authorization: Bearer TOKEN, the one of ops.{min(keys, key=len)}"
            return refused(401, "unauthorized", f"{what} needs a token", how, headers=ask)
        known = {"token": self.token, "read_token": self.read_token}
        matching = {
            key for key, secret in known.items() if secret is not None and _same(given, secret)
        }
        if not matching:
            if wait := self.wrong.wait(request.client):
                after = {"Retry-After": f"{wait:.0f}"}
                return refused(429, "too_many", "too many wrong tokens", "wait", headers=after)
            self.wrong.add(request.client)
        if matching.isdisjoint(keys):
            return refused(403, "forbidden", "the token is another one")
        return None

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


def _same(given: str, secret: Secret) -> bool:
    return hmac.compare_digest(given.strip().encode(), secret.get_secret_value().encode())


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""
