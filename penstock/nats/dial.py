"""A socket to one NATS server, up to its first message, encrypted if either side wants; the CONNECT
options of each kind of credential; and what a refusal, or the loss of a connection, means for us.
"""

import base64
import json
import re
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock.model.errors import Malformed, PenstockError, SettingsError, Unavailable
from penstock.nats.protocol import Info, Parser
from penstock.nats.settings import NatsSettings

_BLOCK = re.compile(r"-----BEGIN [^-]+-----\s*(\S+)\s*------END [^-]+------")
_PORT = 4222


class Address:
    """One server of the url list. Prints as host:port, never with its credentials."""

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url if "://" in url else f"nats://{url}")
            self.host, self.port = parts.hostname or "", parts.port or _PORT
        except ValueError:
            raise SettingsError("the NATS url has a bad port", "nats", hint=_HINT) from None
        if parts.scheme not in ("nats", "tls") or not self.host:
            raise SettingsError(
                "the NATS url has no host, or not nats:// or tls://", "nats", hint=_HINT
            )
        self.tls = parts.scheme == "tls"
        self.user = unquote(parts.username) if parts.username else None
        self.password = unquote(parts.password) if parts.password is not None else None

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def beside(self, url: str) -> "Address":
        """Another server that takes the same login."""
        other = Address(url)
        other.tls, other.user, other.password = self.tls, self.user, self.password
        return other


_HINT = "write nats://user:password@host:4222, several of them separated by commas"


def addresses(settings: NatsSettings, others: Sequence[str] = ()) -> list[Address]:
    """The servers to try, in order; raises SettingsError. `others` (host:port) are servers of the
    same cluster: they take the login of the first."""
    urls = [url.strip() for url in settings.url.get_secret_value().split(",")]
    found = [Address(url) for url in urls if url] or [Address("")]
    known = {str(address) for address in found}
    return found + [found[0].beside(url) for url in others if url not in known]


def identify(settings: NatsSettings, address: Address, nonce: str) -> Mapping[str, Any]:
    """The credential's part of CONNECT. Settings win over the url; raises SettingsError."""
    if settings.credentials:
        jwt, seed = _read_credentials(settings.credentials)
        return {"jwt": jwt, "sig": _sign(seed, nonce)[1]}
    if settings.nkey:
        public, signature = _sign(settings.nkey.get_secret_value(), nonce)
        return {"nkey": public, "sig": signature}
    if settings.token:
        return {"auth_token": settings.token.get_secret_value()}
    user = settings.user or address.user
    password = settings.password.get_secret_value() if settings.password else address.password
    if user and password is None:
        return {"auth_token": user}
    return {"user": user, "pass": password} if user else {}


def _read_credentials(path: str) -> tuple[str, str]:
    try:
        blocks = _BLOCK.findall(Path(path).read_text("utf-8"))
    except OSError as error:
        raise SettingsError(
            f"the credentials file {path!r} cannot be read: {error.strerror}",
            "nats",
            hint="set `credentials` to the path of a .creds file",
        ) from None
    if len(blocks) != 2:
        raise SettingsError(
            f"the file {path!r} is not a NATS credentials file",
            "nats.credentials-invalid",
            hint="it has a JWT block and an NKEY SEED block; `nsc generate creds` writes one",
        )
    return blocks[0], blocks[1]


def _sign(seed: str, nonce: str) -> tuple[str, str]:
    """(public key, signature of the server's nonce)."""
    import nkeys

    try:
        pair = nkeys.from_seed(bytearray(seed.encode()))
        signature = base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=")
        return pair.public_key.decode(), signature.decode()
    except (nkeys.NkeysError, ValueError):
        raise SettingsError(
            "the NKEY seed is not valid",
            "nats.credentials-invalid",
            hint="a user's seed starts with SU",
        ) from None


def _has_expired(path: str) -> bool:
    """Whether the JWT of a credentials file is no longer valid: it is about to be renewed, by what
    writes the file. False where that is not known."""
    with suppress(SettingsError, ValueError, KeyError, TypeError, IndexError):
        claims = _read_credentials(path)[0].split(".")[1]
        decoded = base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4))
        return bool(0 < json.loads(decoded)["exp"] <= time.time())
    return False


_REFUSED = ("authorization violation", "authentication", "user authentication", "account")


def dial(address: Address, settings: NatsSettings) -> tuple[socket.socket, Info]:
    """A socket that does not block, and the server's first message. Raises OSError, Unavailable,
    Malformed, or SettingsError for TLS files and certificates."""
    raw = socket.create_connection((address.host, address.port), timeout=settings.timeout)
    try:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        info = _first_info(raw, address)
        if address.tls or info.fields.get("tls_required"):
            raw = _encrypt(raw, address, settings)
        raw.setblocking(False)
    except BaseException:
        raw.close()
        raise
    return raw, info


def _first_info(raw: socket.socket, address: Address) -> Info:
    # Byte for byte up to the line's end: after it the TLS handshake may begin.
    line = bytearray()
    while not line.endswith(b"\r\n"):
        byte = raw.recv(1)
        if not byte:
            raise Unavailable(f"{address} closed the connection", "nats")
        line += byte
    events = Parser().feed(bytes(line))
    if len(events) != 1 or not isinstance(events[0], Info):
        raise Malformed(f"{address} is not a NATS server", "nats")
    return events[0]


def _encrypt(raw: socket.socket, address: Address, settings: NatsSettings) -> ssl.SSLSocket:
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca)
        if settings.tls_cert:
            context.load_cert_chain(settings.tls_cert, settings.tls_key)
        return context.wrap_socket(raw, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        raise SettingsError(
            f"the certificate of {address} is not trusted: {error.verify_message}",
            "nats.certificate-untrusted",
            hint="set `tls_ca` to the authority that signed it",
        ) from None
    except FileNotFoundError:
        raise SettingsError(
            "a TLS file cannot be read", "nats", hint="check tls_ca, tls_cert and tls_key"
        ) from None


def error_of(text: str, address: str, settings: NatsSettings | None = None) -> PenstockError:
    """What an -ERR of the server means for us."""
    lower = text.lower()
    path = settings.credentials if settings is not None else None
    if lower.endswith("authentication expired") or (
        lower.startswith("authorization violation") and path and _has_expired(path)
    ):
        return Unavailable(
            f"{address} refuses a JWT that has ended: {text}",
            "nats.credentials-expired",
            hint="renew the `credentials` file, which is read with each connection, or the account",
        )
    if lower.startswith("permissions violation"):
        return SettingsError(
            f"{address} denies what penstock needs: {text}",
            "nats.denied",
            hint="allow it to the user; docs/how-to/nats.md and snapshots.md list all",
        )
    # A timeout: the server got our credentials too late, from a busy machine or a slow network.
    if any(lower.startswith(word) for word in _REFUSED) and not lower.endswith("timeout"):
        return SettingsError(
            f"{address} refuses the credentials: {text}",
            "nats.credentials-refused",
            hint="check user and password (or token, nkey, credentials)",
        )
    return Unavailable(f"{address} ended the connection: {text}", "nats")


def reason_of(error: BaseException) -> str:
    """Its text without its class."""
    if isinstance(error, PenstockError):
        return error.message
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
