"""JSON -> values whose objects, arrays and fractions keep the text that they were read from.

For documents that go on into a database: a parser to Python's values loses digits, repeated keys
and white space. It takes several times as long as orjson, which has checked the text before.
"""

import re
from collections.abc import Mapping
from typing import Any

import orjson

# Strings, brackets, numbers and words, after what stands between them.
_TOKEN = re.compile(
    r'[\s,:]*(?:"([^"\\]*(?:\\.[^"\\]*)*)"|([{\[])|([}\]])|([-0-9.eE+]+)|(\w+))', re.DOTALL
)
_STRING, _OPEN, _CLOSE, _NUMBER, _WORD = 1, 2, 3, 4, 5
_DIGITS = 4000  # Python reads no longer integers
_WORDS = {"true": True, "false": False, "null": None}


class _Exact:
    source = ""
    start = end = 0

    @property
    def text(self) -> str:
        """What was read, with the white space around it: pipelines write none of their own."""
        source, start, end = self.source, self.start, self.end
        while start and source[start - 1].isspace():
            start -= 1
        while source[end : end + 1].isspace():
            end += 1
        return source[start:end]


class ExactObject(_Exact, dict[str, Any]):
    """An object."""


class ExactArray(_Exact, list[Any]):
    """An array."""


class ExactNumber(_Exact, float):
    """A number that is no integer of Python."""


def is_json(headers: Mapping[str, str]) -> bool:
    """Whether a message may have JSON: all but MessagePack, also where nothing is said of it."""
    return headers.get("Content-Type") != "application/msgpack"


def loads(data: bytes | str) -> Any:
    """The value of a JSON text that is known to be one."""
    source = data if isinstance(data, str) else data.decode()
    inner: Any = []
    name: str | None = None  # of the next value, in an object
    open_ones = [inner]
    for token in _TOKEN.finditer(source):
        kind = token.lastindex
        value: Any
        if kind == _CLOSE:
            open_ones.pop().end = token.end()
            inner = open_ones[-1]
            continue
        if kind == _STRING:
            value = token[_STRING]
            if "\\" in value:
                value = orjson.loads(f'"{value}"')
            if name is None and type(inner) is ExactObject:
                name = value
                continue
        elif kind == _OPEN:
            value = ExactObject() if token[_OPEN] == "{" else ExactArray()
            value.source, value.start = source, token.start(_OPEN)
        elif kind == _NUMBER:
            value = _number(token)
        else:
            value = _WORDS[token[_WORD]]
        if name is None:
            inner.append(value)
        else:
            inner[name], name = value, None
        if kind == _OPEN:
            open_ones.append(value)
            inner = value
    return inner[0]


def _number(token: "re.Match[str]") -> int | ExactNumber:
    text = token[_NUMBER]
    if len(text) < _DIGITS and text.lstrip("-").isdigit() and text != "-0":
        return int(text)
    value = ExactNumber(text)
    value.source, value.start, value.end = token.string, *token.span(_NUMBER)
    return value
