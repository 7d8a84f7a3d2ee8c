"""Values of row images that JSON has no type for."""

import base64
from typing import Any


def base64_of(value: Any) -> str:
    """Bytes in JSON: the `default` of `orjson.dumps`, which raises TypeError for anything else."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError


def bytes_of(text: str) -> bytes:
    """The inverse; raises ValueError."""
    return base64.b64decode(text, validate=True)


class JsonText(str):
    """A json or jsonb as the database writes it."""

    __slots__ = ()


# Forms of Extended JSON that a key has, and other images as their text alone.
_TYPES = ("$oid", "$date", "$uuid", "$numberDecimal", "$numberDouble", "$numberLong")


def untyped(value: Any, *, as_bytes: bool = False) -> Any:
    """A value of a key that keeps its types, in the form of MongoDB's Extended JSON, as other
    images have it, with bytes as JSON has them or `as_bytes`; other values stay."""
    if isinstance(value, list):
        return [untyped(each, as_bytes=as_bytes) for each in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((name, inner),) = value.items()
        if name in _TYPES:
            return inner
        if name == "$binary" and inner["subType"] == "00":
            return bytes_of(inner["base64"]) if as_bytes else inner["base64"]
    return {name: untyped(each, as_bytes=as_bytes) for name, each in value.items()}
