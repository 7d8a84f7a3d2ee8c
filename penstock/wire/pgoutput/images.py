"""Row images: a map of column values as JSON text or MessagePack bytes, and the key's text."""

from collections.abc import Callable, Mapping
from typing import Any

import orjson
import ormsgpack

from penstock.model.change import Images
from penstock.wire.pgoutput.values.binary import as_base64

# Raises TypeError on a value that the encoding can't hold.
Pack = Callable[[Any], bytes]

_PACKERS: Mapping[Images, Pack] = {"json": orjson.dumps, "msgpack": ormsgpack.packb}


def packer(images: Images) -> Pack:
    """What turns a map into an image."""
    return _PACKERS[images]


def key_text(values: list[Any]) -> str:
    """The document id: one text as it is, one other value as JSON, several as a JSON array.

    Compact, and the same whichever way images are encoded: bytes are base64.
    """
    plain: Any = [_plain(value) for value in values]
    if len(plain) == 1:
        (plain,) = plain
    return plain if isinstance(plain, str) else orjson.dumps(plain).decode()


def _plain(value: Any) -> Any:
    match value:
        case bytes():
            return as_base64(value)
        case orjson.Fragment():
            return orjson.dumps(value).decode()
        case list():
            return [_plain(item) for item in value]
        case _:
            return value
