"""The types that settings are made of: durations, sizes, secrets, and a strict frozen model.

Every feed and sink declares its settings with these. An unknown key is an error that names the
nearest known one; that message is made in `penstock.config`, which also reads files.
"""

import re
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

import orjson
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    SecretStr,
    SerializationInfo,
)

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d)")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB|kB|KB|MB|GB)?")
_BYTES = {
    "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
    "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9,
}  # fmt: skip


def parse_duration(value: Any) -> Any:
    """`50ms`, `5s`, `10m`, `1h` -> seconds as float; numbers are seconds; raises ValueError."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, str):
        match = _DURATION.fullmatch(value.strip())
        if match is None and value.strip() != "0":
            raise ValueError(f"{value!r} is not a duration; write 50ms, 5s, 10m or 1h")
        return float(match[1]) * _SECONDS[match[2]] if match else 0.0
    return value


def duration_text(seconds: float) -> str:
    """`10m`, `1.5s`: the longest unit of which it is a whole number, else seconds."""
    exact = Decimal(repr(seconds))
    for unit, length in sorted(_SECONDS.items(), key=lambda each: -each[1]):
        text = f"{int(exact / Decimal(repr(length)))}{unit}"
        if seconds and parse_duration(text) == seconds:
            return text
    return f"{exact:f}s" if seconds else "0s"


def size_text(size: int) -> str:
    """`64MiB`; `1500B` where it is no whole number of a larger unit."""
    unit = next(each for each in ("TiB", "GiB", "MiB", "KiB", "B") if not size % _BYTES[each])
    return f"{size // _BYTES[unit]}{unit}" if size else "0B"


def parse_start(value: Any) -> Any:
    """Where reading starts: YAML makes times, options have tokens as JSON. Raises ValueError."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            return orjson.loads(value)
        except orjson.JSONDecodeError:
            raise ValueError("a token is JSON") from None
    return value.isoformat() if isinstance(value, datetime) else value


def parse_size(value: Any) -> Any:
    """`256KiB`, `1MiB` -> bytes as int; numbers are bytes; raises ValueError."""
    if isinstance(value, str):
        if (match := _SIZE.fullmatch(value.strip())) is None:
            raise ValueError(f"{value!r} is not a size; write 512B, 256KiB or 1MiB")
        return int(float(match[1]) * _BYTES[match[2] or "B"])
    return value


# The context of a dump that people read: sizes are as in a file, and not numbers.
WRITTEN = {"written": True}


def _size(size: int, info: SerializationInfo) -> int | str:
    return size_text(size) if info.context == WRITTEN else size


# Seconds.
Duration = Annotated[float, BeforeValidator(parse_duration), PlainSerializer(duration_text)]
# A word, a time or a token.
Start = Annotated[str | dict[str, Any], BeforeValidator(parse_start)]
# Bytes.
Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(_size)]
# Prints as ***; `.get_secret_value()` reads it.
Secret = SecretStr


class _Hidden:
    def __get__(self, *_: object) -> Any:
        raise AttributeError


class Settings(BaseModel):
    """A strict, frozen group of settings."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, validate_default=True
    )


# A name that settings have, and a deprecated method of pydantic, which warns of that.
Settings.schema = _Hidden()  # type: ignore[method-assign, assignment]
