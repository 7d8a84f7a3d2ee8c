"""Values of row images that JSON has no type for."""

import base64
from typing import Any


def base64_of(value: Any) -> str:
    """Bytes in JSON: the `default` of `orjson.dumps`, which raises TypeError for anything else."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError


class JsonText(str):
    """A json or jsonb as the database writes it."""

    __slots__ = ()
