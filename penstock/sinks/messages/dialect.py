"""The two encodings of a message body that are made change by change: MessagePack and JSON."""

from typing import Any

import orjson
import ormsgpack

from penstock.model.change import Images
from penstock.sinks.messages.pieces import Form


class Dialect:
    """How values look in a body: in MessagePack, and `_Json` says what differs."""

    content_type = b"application/msgpack"
    images: Images = "msgpack"
    form: Form = "msgpack"
    nil = b"\xc0"
    end = list_end = separator = b""

    def start(self, fields: int) -> bytes:
        """What a map of that many fields begins with; `end` ends it."""
        return b"\xde" + fields.to_bytes(2, "big")

    def list_start(self, count: int) -> bytes:
        """What an array begins with; `list_end` ends it, `separator` stands between values."""
        return bytes([0x90 | count]) if count < 16 else b"\xdd" + count.to_bytes(4, "big")

    def name(self, name: str, *, first: bool = False) -> bytes:
        """A field's name with what stands around it."""
        return ormsgpack.packb(name)

    def value(self, value: Any) -> bytes:
        return ormsgpack.packb(value, option=ormsgpack.OPT_NON_STR_KEYS)

    def image(self, image: bytes) -> Any:
        """A row image as a part of a plain value."""
        return ormsgpack.unpackb(image, option=ormsgpack.OPT_NON_STR_KEYS)


class _Json(Dialect):
    content_type = b"application/json"
    images: Images = "json"
    form: Form = "json"
    nil = b"null"
    end, list_end, separator = b"}", b"]", b","

    def start(self, fields: int) -> bytes:
        return b"{"

    def list_start(self, count: int) -> bytes:
        return b"["

    def name(self, name: str, *, first: bool = False) -> bytes:
        return (b"" if first else b",") + orjson.dumps(name) + b":"

    def value(self, value: Any) -> bytes:
        return orjson.dumps(value)

    def image(self, image: bytes) -> Any:
        return orjson.Fragment(image)  # numbers keep their digits


_DIALECTS = {"msgpack": Dialect(), "json": _Json()}


def dialect(encoding: str) -> Dialect:
    return _DIALECTS[encoding]
