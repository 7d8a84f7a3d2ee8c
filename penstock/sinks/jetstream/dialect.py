"""The two encodings of a message body, as column arithmetic: MessagePack and JSON.

A body is the concatenation of pieces that were encoded column by column; no row is a Python object
unless its images have to be converted from the one encoding to the other.
"""

import base64
import re
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import orjson
import ormsgpack
import pyarrow as pa
import pyarrow.compute as pc

from penstock.change import Images
from penstock.sinks.jetstream.settings import Encoding

__all__ = [
    "BINARY",
    "Column",
    "Dialect",
    "Unconvertible",
    "bytes_of",
    "converted",
    "dialect",
    "join",
    "sized",
]

# A column of bytes, or one value for all rows.
Column = Any
BINARY = pa.binary()

_ESCAPED_IN_JSON = re.compile(rb'["\\\x00-\x1f]')
_SHORT = pa.array([bytes([0xA0 | n]) if n < 32 else bytes([0xD9, n]) for n in range(256)], BINARY)


def join(*pieces: Column) -> Column:
    """Row by row, the pieces one behind the other: columns, or bytes that are the same for all."""
    columns = [pa.scalar(piece, BINARY) if isinstance(piece, bytes) else piece for piece in pieces]
    return pc.binary_join_element_wise(*columns, pa.scalar(b"", BINARY))


def sized(column: Column) -> Column:
    """Bytes of each value."""
    return pc.binary_length(column)


class Dialect(Protocol):
    """How values look in a body."""

    content_type: bytes
    images: Images
    nil: bytes
    end: bytes

    def start(self, fields: int) -> bytes:
        """What a map of that many fields begins with."""
        ...

    def name(self, name: str, *, first: bool = False) -> bytes:
        """A field's name with what stands around it."""
        ...

    def value(self, value: Any) -> bytes:
        """Any plain value."""
        ...

    def text(self, column: Column) -> Column:
        """A binary column of UTF-8 as strings; null as nil."""
        ...

    def convert(self, image: bytes) -> bytes:
        """A row image from the other encoding."""
        ...


class _MessagePack:
    content_type = b"application/msgpack"
    images: Images = "msgpack"
    nil = b"\xc0"
    end = b""

    def start(self, fields: int) -> bytes:
        return b"\xde" + fields.to_bytes(2, "big")

    def name(self, name: str, *, first: bool = False) -> bytes:
        return ormsgpack.packb(name)

    def value(self, value: Any) -> bytes:
        return ormsgpack.packb(value)

    def text(self, column: Column) -> Column:
        lengths = sized(column)
        longest = pc.max(lengths).as_py() or 0
        if longest < 256:
            heads = _SHORT.take(lengths)
        else:
            heads = pa.array([_string_head(n) for n in lengths.to_pylist()], BINARY)
        return pc.fill_null(join(heads, column), pa.scalar(self.nil, BINARY))

    def convert(self, image: bytes) -> bytes:
        return ormsgpack.packb(orjson.loads(image), option=ormsgpack.OPT_PASSTHROUGH_BIG_INT)


class _Json:
    content_type = b"application/json"
    images: Images = "json"
    nil = b"null"
    end = b"}"

    def start(self, fields: int) -> bytes:
        return b"{"

    def name(self, name: str, *, first: bool = False) -> bytes:
        return (b"" if first else b",") + orjson.dumps(name) + b":"

    def value(self, value: Any) -> bytes:
        return orjson.dumps(value)

    def text(self, column: Column) -> Column:
        if _ESCAPED_IN_JSON.search(bytes_of(column)):
            texts = [None if v is None else orjson.dumps(v.decode()) for v in column.to_pylist()]
            quoted = pa.array(texts, BINARY)
        else:
            quoted = join(b'"', column, b'"')
        return pc.fill_null(quoted, pa.scalar(self.nil, BINARY))

    def convert(self, image: bytes) -> bytes:
        value = ormsgpack.unpackb(image, option=ormsgpack.OPT_NON_STR_KEYS)
        return orjson.dumps(_without_bytes(value), option=orjson.OPT_NON_STR_KEYS)


def _string_head(length: int | None) -> bytes | None:
    if length is None:
        return None
    if length < 1 << 16:
        return b"\xda" + length.to_bytes(2, "big")
    return b"\xdb" + length.to_bytes(4, "big")


def bytes_of(column: Column) -> memoryview:
    """The bytes of all values, with no copy."""
    _, offsets, data = column.buffers()
    if data is None or not len(column):
        return memoryview(b"")
    bounds = np.frombuffer(offsets, np.int32)
    return memoryview(data)[bounds[column.offset] : bounds[column.offset + len(column)]]


def _without_bytes(value: Any) -> Any:
    match value:
        case bytes():
            return base64.b64encode(value).decode()
        case dict():
            return {key: _without_bytes(item) for key, item in value.items()}
        case list():
            return [_without_bytes(item) for item in value]
        case _:
            return value


_DIALECTS: dict[Encoding, Dialect] = {"msgpack": _MessagePack(), "json": _Json()}


def dialect(encoding: Encoding) -> Dialect:
    """The dialect of a message encoding."""
    return _DIALECTS[encoding]


class Unconvertible(Exception):
    """The image in `row` has no form in the other encoding."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def converted(column: Column, convert: Callable[[bytes], bytes]) -> Column:
    """A column of images, each through `convert`; raises Unconvertible."""
    images: list[bytes | None] = []
    for row, image in enumerate(column.to_pylist()):
        try:
            images.append(None if image is None else convert(image))
        except (ValueError, TypeError):
            raise Unconvertible(row) from None
    return pa.array(images, BINARY)
