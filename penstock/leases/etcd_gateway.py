"""Requests to etcd's v3 JSON gateway: several endpoints, TLS, login.

One request is sent at a time, over a kept connection, to the endpoint that answered last. An
endpoint that does not accept connections is passed over. A request that may have been carried out
is an error for the caller, who knows whether it may be sent again.
"""

from builtins import list as List  # the store's word
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from ssl import SSLCertVerificationError
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import orjson
import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, SSLError

from penstock.model.errors import Malformed, PenstockError, SettingsError, Unavailable, is_caused_by

HINT = "write etcd://HOST:2379,HOST:2379/PREFIX, or etcds://USER:PASSWORD@.../PREFIX?ca=FILE"
_FILES = ("ca", "cert", "key")
_TRUE, _FALSE = ("1", "true", "yes"), ("0", "false", "no")
_PATIENCE = urllib3.Timeout(connect=3.0, read=5.0)

# gRPC's status codes -> what to do. Anything else passes.
_OPERATOR = {
    3: "etcd does not accept the request: is it version 3.4 or newer?",
    5: "etcd has no JSON gateway: start it with --enable-grpc-gateway",
    7: "give the user the role to read and write keys under the prefix",
    12: "etcd has no JSON gateway: start it with --enable-grpc-gateway",
}
_UNAUTHENTICATED = 16
_LOGIN = "correct the user and password in `positions`"


class MaybeDone(Unavailable):
    """No answer came to a request that was sent: it may have been carried out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdAddress:
    """What a positions URL names. `hosts`: HOST:PORT each. `files`: `ca`, `cert`, `key`. The slash
    before the path separates it from the hosts; `?leading_slash=true` makes it part of the keys."""

    hosts: tuple[str, ...]
    prefix: str
    tls: bool = False
    user: str = ""
    password: str = field(default="", repr=False)
    files: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, url: str) -> "EtcdAddress":
        """Of `etcd://` or `etcds://`; raises SettingsError, without the URL's password."""
        scheme, _, rest = url.partition("://")
        # Several hosts are no host to urllib: it sees the path and the query only.
        parts = urlsplit("//" + rest)
        login, _, hosts = parts.netloc.rpartition("@")
        user, _, password = login.partition(":")
        options = {name: values[-1].strip() for name, values in parse_qs(parts.query).items()}
        tls = options.pop("tls", "true" if scheme == "etcds" else "false").lower()
        slash = options.pop("leading_slash", "false").lower()
        files = {name: options.pop(name) for name in _FILES if name in options}
        is_known = not options and {tls, slash} <= {*_TRUE, *_FALSE}
        if not is_known or ("cert" in files) != ("key" in files):
            raise SettingsError(
                "the positions URL has options that etcd does not have", "leases", hint=HINT
            )
        if not all(_is_host(host) for host in hosts.split(",")):
            raise SettingsError("the positions URL names no etcd server", "leases", hint=HINT)
        if not (prefix := parts.path.strip("/")):
            raise SettingsError(
                "the positions URL names no prefix of keys in etcd", "leases", hint=HINT
            )
        return cls(
            hosts=tuple(host if _port(host) else f"{host}:2379" for host in hosts.split(",")),
            prefix=("/" if slash in _TRUE else "") + unquote(prefix),
            tls=tls in _TRUE or bool(files),
            user=unquote(user),
            password=unquote(password),
            files=files,
        )


def _port(host: str) -> str:
    return host.rpartition("]")[2].partition(":")[2]


def _is_host(host: str) -> bool:
    name, colon, port = host.rpartition("]")[2].partition(":")
    return bool(name or host.startswith("[")) and (not colon or port.isdecimal())


class EtcdGateway:
    """Raises Unavailable, MaybeDone, SettingsError. Not thread-safe; connects when first used."""

    def __init__(self, address: EtcdAddress) -> None:
        self._address = address
        scheme = "https" if address.tls else "http"
        self._endpoints = [f"{scheme}://{host}" for host in address.hosts]
        self._token = ""
        self._pool = _pool(address)

    def close(self) -> None:
        self._pool.clear()

    def read(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a request that changes nothing, to each endpoint until one answers."""
        for _ in self._endpoints:
            with suppress(Unavailable):
                return self.send(path, body)
        # A kept connection to a server that was restarted fails once, too.
        return self.send(path, body)

    def send(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Sends a request once, to the first endpoint that accepts a connection."""
        if self._address.user and not self._token:
            self._log_in()
        status, answer = self._exchange(path, body)
        if self._address.user and (status == 401 or answer.get("code") == _UNAUTHENTICATED):
            # Tokens expire, and a restarted server has forgotten them.
            self._log_in()
            status, answer = self._exchange(path, body)
        if status != 200:
            self._turn()
            raise _error(status, answer)
        return answer

    def _log_in(self) -> None:
        self._token = ""
        login = {"name": self._address.user, "password": self._address.password}
        status, answer = self._exchange("/v3/auth/authenticate", login)
        if status != 200:
            error = _error(status, answer)
            if isinstance(error, Unavailable):
                raise error
            raise SettingsError(f"etcd: {_message(answer)}", "leases", hint=_LOGIN)
        self._token = str(answer["token"])

    def _exchange(self, path: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        failed: List[str] = []
        for _ in self._endpoints:
            endpoint = self._endpoints[0]
            try:
                answer = self._pool.request(
                    "POST",
                    endpoint + path,
                    body=orjson.dumps(body),
                    headers={"Authorization": self._token} if self._token else {},
                )
                return answer.status, _document(answer.data)
            except SSLError as error:
                self._turn()
                # Any other passes: a handshake that was cut, an alert of an overloaded proxy.
                is_setting = is_caused_by(error, SSLCertVerificationError)
                raise (SettingsError if is_setting else MaybeDone)(
                    f"etcd at {endpoint}: {error}", "leases", hint="correct ?ca=, ?cert= and ?key="
                ) from error
            except (NewConnectionError, ConnectTimeoutError) as error:
                failed.append(f"{endpoint}: {_reason(error)}")
                self._turn()
            except (HTTPError, OSError) as error:
                self._turn()
                raise MaybeDone(
                    f"etcd at {endpoint} did not answer: {_reason(error)}", "leases"
                ) from error
        raise Unavailable(
            f"no etcd server can be reached: {'; '.join(failed)}",
            "leases",
            hint="is etcd running, and are the endpoints in `positions` right?",
        )

    def _turn(self) -> None:
        self._endpoints.append(self._endpoints.pop(0))


def _pool(address: EtcdAddress) -> urllib3.PoolManager:
    for path in address.files.values():
        if not Path(path).is_file():
            raise SettingsError(f"etcd: {path} is no file", "leases", hint=HINT)
    names = {"ca": "ca_certs", "cert": "cert_file", "key": "key_file"}
    tls: dict[str, Any] = {names[name]: path for name, path in address.files.items()}
    return urllib3.PoolManager(retries=False, timeout=_PATIENCE, **tls)


def _document(data: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(data)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else {"error": data[:80].decode(errors="replace")}


def _message(answer: Mapping[str, Any]) -> str:
    return str(answer.get("message") or answer.get("error") or "no reason given").strip()


def _error(status: int, answer: Mapping[str, Any]) -> PenstockError:
    code, message = int(answer.get("code", 0)), _message(answer)
    if code == 0 and status == 404:
        code = 12
    if "request is too large" in message or "too many operations" in message:
        return Malformed(f"etcd: {message}", "leases", hint="raise etcd's --max-request-bytes")
    if code == _UNAUTHENTICATED or "user name is empty" in message:
        return SettingsError(f"etcd: {message}", "leases", hint=_LOGIN)
    if code in _OPERATOR:
        return SettingsError(f"etcd: {message}", "leases", hint=_OPERATOR[code])
    # Without a leader, or out of time, a write may still be carried out.
    return MaybeDone(f"etcd: {message}", "leases")


def _reason(error: BaseException) -> str:
    return str(error).rpartition(": ")[2] or type(error).__name__
