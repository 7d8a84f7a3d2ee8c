"""Arrays of any dimension: `{1,NULL,"a b"}`, `{{1,2},{3,4}}`, `[0:1]={7,8}`.

Lower bounds are dropped: a list has none. Elements are parted by their type's delimiter, a comma
for all types but box.
"""

import re
from collections.abc import Callable
from typing import Any

from penstock.wire.pgoutput.values.text import text

__all__ = ["array_of"]

_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


def array_of(element: Callable[[bytes], Any], delimiter: str = ",") -> Callable[[bytes], list[Any]]:
    """A converter of arrays whose elements `element` converts; raises ValueError."""
    comma = delimiter.encode()
    token = re.compile(rb'"((?:[^"\\]|\\.)*)"|([^{}"\\%b]+)|([{}%b])' % (comma, comma), re.DOTALL)

    def convert(raw: bytes) -> list[Any]:
        plain = raw.decode()
        inside = plain[1:-1]
        if (
            plain[:1] != "{" or plain[-1:] != "}"
            or '"' in inside or "{" in inside or "}" in inside
        ):  # fmt: skip
            return _nested(raw, token, comma, element)
        if not inside:
            return []
        items = inside.split(delimiter)
        if "NULL" in inside:
            return [None if item == "NULL" else element(item.encode()) for item in items]
        return items if element is text else [element(item.encode()) for item in items]

    return convert


def _nested(
    raw: bytes, token: re.Pattern[bytes], comma: bytes, element: Callable[[bytes], Any]
) -> list[Any]:
    at = raw.index(b"=") + 1 if raw[:1] == b"[" else 0
    root: list[Any] = []
    open_lists = [root]
    wants_value = True  # false behind a value, where only a delimiter or a closing brace may come
    while at < len(raw):
        match = token.match(raw, at)
        if match is None:
            raise ValueError("an array is not well formed")
        at = match.end()
        quoted, plain, mark = match.groups()
        if mark in (comma, b"}"):
            closes = mark == b"}"
            empty = closes and wants_value and not open_lists[-1]
            if len(open_lists) < 2 or (wants_value and not empty):
                raise ValueError("an array is not well formed")
            if closes:
                open_lists.pop()
            wants_value = not closes
            continue
        if not wants_value or (mark is None and len(open_lists) == 1):
            raise ValueError("an array is not well formed")
        if mark is not None:
            inner: list[Any] = []
            open_lists[-1].append(inner)
            open_lists.append(inner)
            continue
        wants_value = False
        open_lists[-1].append(_element(quoted, plain, element))
    if len(open_lists) > 1 or len(root) != 1:
        raise ValueError("an array is not well formed")
    result: list[Any] = root[0]
    return result


def _element(quoted: bytes | None, plain: bytes, element: Callable[[bytes], Any]) -> Any:
    if quoted is not None:
        return element(_ESCAPED.sub(rb"\1", quoted) if b"\\" in quoted else quoted)
    return None if plain == b"NULL" else element(plain)
