"""A socket to one NATS server, up to the server's first message, encrypted if either side wants.
And what a server's refusal, or the loss of a connection, means for us."""

import socket
import ssl

from penstock.model.errors import Malformed, PenstockError, SettingsError, Unavailable
from penstock.nats.auth import Address
from penstock.nats.protocol import Info, Parser
from penstock.nats.settings import NatsSettings

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
            raise Unavailable(f"{address} closed the connection")
        line += byte
    match Parser().feed(bytes(line)):
        case [Info() as info]:
            return info
        case _:
            raise Malformed(f"{address} is not a NATS server")


def _encrypt(raw: socket.socket, address: Address, settings: NatsSettings) -> ssl.SSLSocket:
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca)
        if settings.tls_cert:
            context.load_cert_chain(settings.tls_cert, settings.tls_key)
        return context.wrap_socket(raw, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        raise SettingsError(
            f"the certificate of {address} is not trusted: {error.verify_message}",
            code="certificate-untrusted",
            hint="set `tls_ca` to the authority that signed it",
        ) from None
    except FileNotFoundError:
        raise SettingsError(
            "a TLS file cannot be read", hint="check tls_ca, tls_cert and tls_key"
        ) from None


def error_of(text: str, address: str) -> PenstockError:
    """What an -ERR of the server means for us."""
    lower = text.lower()
    if lower.startswith("permissions violation"):
        return SettingsError(
            f"{address} denies what penstock needs: {text}",
            code="denied",
            hint="allow it to the user; docs/how-to/nats.md and snapshots.md list all",
        )
    # A timeout: the server got our credentials too late, from a busy machine or a slow network.
    if any(lower.startswith(word) for word in _REFUSED) and not lower.endswith("timeout"):
        return SettingsError(
            f"{address} refuses our credentials: {text}",
            code="credentials-refused",
            hint="check user and password (or token, nkey, credentials)",
        )
    return Unavailable(f"{address} ended the connection: {text}")


def reason_of(error: BaseException) -> str:
    """Its text without its class."""
    if isinstance(error, PenstockError):
        return error.message
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
