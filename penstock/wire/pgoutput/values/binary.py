"""bytea: bytes in MessagePack, base64 (RFC 4648, padded) in JSON. The session sends hex."""

from base64 import b64encode
from binascii import unhexlify


def binary(raw: bytes) -> bytes:
    r"""`\x6869` -> b"hi"."""
    if raw[:2] != b"\\x":
        raise ValueError("bytea is not in hex format")
    return unhexlify(raw[2:])


def binary_as_base64(raw: bytes) -> str:
    r"""`\x6869` -> "aGk="."""
    return as_base64(binary(raw))


def as_base64(data: bytes) -> str:
    """How JSON spells bytes."""
    return b64encode(data).decode()
