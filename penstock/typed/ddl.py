"""Columns as Spark's DDL text declares them -> a schema of Arrow, without Spark. Pure.

The types are those of `StructType.fromDDL` and Spark's conversion to Arrow with the time zone UTC.
"""

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from penstock.model.errors import SettingsError

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)+`|'(?:[^'\\]|\\.)*'|\w+|[<>(),:])\s*")
_UTC = pa.timestamp("us", tz="UTC")
_TYPES: Mapping[str, Any] = {
    "boolean": pa.bool_(), "tinyint": pa.int8(), "byte": pa.int8(), "smallint": pa.int16(),
    "short": pa.int16(), "int": pa.int32(), "integer": pa.int32(), "bigint": pa.int64(),
    "long": pa.int64(), "float": pa.float32(), "real": pa.float32(), "double": pa.float64(),
    "date": pa.date32(), "timestamp": _UTC, "timestamp_ltz": _UTC, "binary": pa.binary(),
    "timestamp_ntz": pa.timestamp("us"), "string": pa.string(),
}  # fmt: skip
_DECIMALS = ("decimal", "dec", "numeric")


def schema_of_ddl(text: str) -> pa.Schema:
    """`name TYPE, ...`, a colon between them or not. Raises SettingsError."""
    tokens, at = [], 0
    while at < len(text.rstrip()):
        if (found := _TOKEN.match(text, at)) is None:
            raise _wrong(f"{text[at : at + 20]!r} is none of its words")
        tokens.append(found[1])
        at = found.end()
    return pa.schema(_Reader(tokens).fields(""))


def _wrong(why: str) -> SettingsError:
    return SettingsError(
        f"the schema is no DDL text: {why}", "typed.ddl",
        hint='write it as for Spark: "id BIGINT, name STRING, tags ARRAY<STRING>"',
    )  # fmt: skip


class _Reader:
    """Reads tokens, one after the other; after the last there are empty ones."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = [*tokens, ""][::-1]

    def _next(self, *wanted: str) -> str:
        token = self._tokens.pop() if len(self._tokens) > 1 else ""
        if wanted and token.lower() not in wanted:
            names = " or ".join(each or "its end" for each in wanted)
            raise _wrong(f"there is {token or 'its end'} in place of {names}")
        return token

    def _skips(self, word: str) -> bool:
        if self._tokens[-1].lower() != word:
            return False
        self._next()
        return True

    def fields(self, end: str) -> list[Any]:
        """Those up to the token `end`, which is passed over."""
        found: list[Any] = []
        while True:
            name = self._next()
            if not re.fullmatch(r"\w+|`.*`", name, re.DOTALL):
                raise _wrong(f"there is {name or 'its end'} in place of a name")
            self._skips(":")
            kind, is_nullable = self._type(), True
            if self._skips("not"):
                self._next("null")
                is_nullable = False
            if self._skips("comment"):
                self._next()
            own = name[1:-1].replace("``", "`") if name[0] == "`" else name
            found.append(pa.field(own, kind, is_nullable))
            if self._next(",", end) != ",":
                return found

    def _type(self) -> Any:
        word = self._next()
        name = word.lower()
        if name not in ("array", "map", "struct"):
            return self._plain(word)
        self._next("<")
        if name == "struct":
            return pa.struct(self.fields(">"))
        first = self._type()
        kind: Any = pa.list_(pa.field("element", first))
        if name == "map":
            self._next(",")
            kind = pa.map_(first, self._type())
        self._next(">")
        return kind

    def _plain(self, word: str) -> Any:
        name, sizes = word.lower(), []
        if self._skips("("):
            while True:
                sizes.append(self._next())
                if self._next(",", ")") == ")":
                    break
        try:
            if name in _DECIMALS:
                return pa.decimal128(*map(int, sizes or (10, 0)), *([0] if len(sizes) == 1 else ()))
            return _TYPES[name]
        except (KeyError, ValueError, TypeError):
            raise _wrong(f"{word or 'its end'} is no type that documents have") from None
