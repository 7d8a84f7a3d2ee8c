"""Arrays of any dimension: `{1,NULL,"a b"}`, `{{1,2},{3,4}}`, `[0:1]={7,8}`.

A list has no lower bounds: an array with others than 1 is its text. Elements are parted by their
type's delimiter, a comma for all types but box.
"""

import re
from typing import Any

from penstock.wire.pgoutput.values.scalars import Converter, text

_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


def array_of(element: Converter, delimiter: str = ",") -> Converter:
    """A converter of arrays whose elements `element` converts; raises ValueError."""
    comma = delimiter.encode()
    token = re.compile(rb'"((?:[^"\\]|\\.)*)"|([^{}"\\%b]+)|([{}%b])' % (comma, comma), re.DOTALL)

    def convert(raw: bytes) -> list[Any] | str:
        plain = raw.decode()
        if plain[:1] == "[" and plain[-1:] == "}":
            _nested(raw[raw.index(b"=") + 1 :], token, comma, element)
            return plain
        items = _flat(plain[1:-1], delimiter) if plain[:1] == "{" and plain[-1:] == "}" else None
        if items is None:
            return _nested(raw, token, comma, element)
        if element is text:
            return items
        return [item if item is None else element(item.encode()) for item in items]

    return convert


def _flat(inside: str, delimiter: str) -> list[str | None] | None:
    """The elements of a one-dimensional array without escapes, as most are; None for any other."""
    if '"' not in inside:
        return _unquoted(inside, delimiter) if inside else []
    if "\\" in inside:
        return None
    pieces = inside.split('"')  # by turns what is between quotes, and what is in them
    last = len(pieces) - 1
    items: list[str | None] = []
    for n, piece in enumerate(pieces):
        if n % 2:
            items.append(piece)
            continue
        # All but the first begin with a delimiter and all but the last end with one; a single
        # delimiter between two quoted elements is both.
        begin, end = int(n > 0), len(piece) - int(n < last)
        if not piece and n in (0, last):
            continue
        if (begin and piece[0:1] != delimiter) or (n < last and piece[-1:] != delimiter):
            return None
        if begin <= end:
            if (between := _unquoted(piece[begin:end], delimiter)) is None:
                return None
            items += between
    return items if last % 2 == 0 else None


def _unquoted(text: str, delimiter: str) -> list[str | None] | None:
    items = text.split(delimiter)
    if "{" in text or "}" in text or "" in items or "\\" in text:
        return None
    return [None if item == "NULL" else item for item in items] if "NULL" in text else list(items)


def _nested(raw: bytes, token: re.Pattern[bytes], comma: bytes, element: Converter) -> list[Any]:
    at = 0
    root: list[Any] = []
    open_lists = [root]
    wants_value = True  # false after a value, where only a delimiter or a closing brace may come
    while at < len(raw):
        if (match := token.match(raw, at)) is None:
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


def _element(quoted: bytes | None, plain: bytes, element: Converter) -> Any:
    if quoted is not None:
        return element(_ESCAPED.sub(rb"\1", quoted) if b"\\" in quoted else quoted)
    return None if plain == b"NULL" else element(plain)
