"""Row images of the one encoding in the other, a column at a time.

Rows that came through a transform have JSON images, and most messages are MessagePack. What
MessagePack can't hold (a number of 30 digits) becomes what it is in a pipeline without a transform.
"""

import base64
import ctypes
from typing import Any

import orjson
import ormsgpack
import pyarrow as pa

from penstock.model.change import Images
from penstock.native import ARROW_ARRAY
from penstock.sinks.rows import kernel as native
from penstock.sinks.rows.columns import BINARY, Column
from penstock.wire.documents import image_as_written


class Unconvertible(Exception):
    """The image in `row` has no form in the other encoding."""

    def __init__(self, row: int) -> None:
        super().__init__(row)
        self.row = row


def converted(column: Column, wanted: Images) -> Column:
    """A column of images that have the other encoding; raises Unconvertible."""
    column = column.cast(BINARY)
    if column.null_count == len(column):
        return column
    if wanted == "msgpack" and (found := _by_kernel(column)) is not None:
        return found
    convert = _to_msgpack if wanted == "msgpack" else _to_json
    images: list[bytes | None] = []
    for row, image in enumerate(column.to_pylist()):
        try:
            images.append(None if image is None else convert(image))
        except (ValueError, TypeError):
            raise Unconvertible(row) from None
    return pa.array(images, BINARY)


def _by_kernel(column: Column) -> Column | None:
    """None without the kernel, and for a column with an image that only Python knows."""
    if (kernel := native.kernel()) is None:
        return None
    given, made = (ctypes.c_byte * ARROW_ARRAY)(), (ctypes.c_byte * ARROW_ARRAY)()
    column._export_to_c(ctypes.addressof(given))
    failed = kernel.penstock_convert(given, made)
    kernel.penstock_rows_release(given)
    return None if failed else pa.Array._import_from_c(ctypes.addressof(made), BINARY)


def _to_msgpack(image: bytes) -> bytes:
    value = image_as_written(image)
    if isinstance(value, str) and not image.lstrip().startswith(b'"'):
        raise ValueError("nested too deeply")  # a document's text, which is no image
    return ormsgpack.packb(value)


def _to_json(image: bytes) -> bytes:
    value = ormsgpack.unpackb(image, option=ormsgpack.OPT_NON_STR_KEYS)
    return orjson.dumps(_without_bytes(value), option=orjson.OPT_NON_STR_KEYS)


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
