"""Subjects: names in their tokens, and which ones a pattern with wildcards stands for.

Escaping is per name and reversible: a character that NATS forbids in a token, and `%` itself,
becomes `%XX` for each byte of its UTF-8; an empty or absent name becomes `%00`, which no name that
a database accepts is escaped to.
"""

import re

# White space of any kind and control characters (C0, DEL, C1), and what NATS reads as syntax.
FORBIDDEN = re.compile(r"[\s\x00-\x20\x7f-\xa0.*>%]")
_ESCAPED = re.compile(r"((?:%[0-9A-F]{2})+)")
_EMPTY = "%00"


def escape(name: str | None) -> str:
    """A name as (a part of) one subject token."""
    if not name:
        return _EMPTY
    return FORBIDDEN.sub(lambda m: "".join(f"%{byte:02X}" for byte in m[0].encode()), name)


def unescape(token: str) -> str:
    """The inverse of `escape`; an absent name comes back as an empty one."""
    if token == _EMPTY:
        return ""
    return _ESCAPED.sub(lambda m: bytes.fromhex(m[1].replace("%", "")).decode(), token)


def covers(pattern: str, subject: str) -> bool:
    """True when every subject that `subject` (may have wildcards) stands for matches `pattern`."""
    wide, narrow = pattern.split("."), subject.split(".")
    for index, token in enumerate(wide):
        if token == ">":  # noqa: S105 - a subject's token
            return len(narrow) > index
        if index >= len(narrow) or narrow[index] == ">":
            return False
        if token not in ("*", narrow[index]):
            return False
    return len(wide) == len(narrow)


def overlaps(one: str, other: str) -> bool:
    """True when some subject matches both patterns."""
    left, right = one.split("."), other.split(".")
    for a, b in zip(left, right, strict=False):
        if ">" in (a, b):
            return True
        if a != b and "*" not in (a, b):
            return False
    return len(left) == len(right)
