"""A reply to `aggregate` or `getMore`, read without decoding the events in it."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from penstock.model.errors import Malformed

_LENGTH = struct.Struct("<i").unpack_from
_LONG = struct.Struct("<q").unpack_from
_DOCUMENT, _ARRAY, _STRING, _INT64 = 3, 4, 2, 18
# BSON types of a fixed size.
_FIXED = {1: 8, 6: 0, 7: 12, 8: 1, 9: 8, 10: 0, 16: 4, 17: 8, 18: 8, 19: 16, 127: 0, 255: 0}


class Reply(NamedTuple):
    """The events as elements of an array; the token after them (BSON; empty where the server sent
    none); the cursor, 0 if the server closed it; and its collection for `getMore`."""

    payload: bytes
    token: bytes
    cursor: int
    collection: str


def read_cursor(document: bytes) -> Reply:
    """The field `cursor` of a reply; raises Malformed."""
    payload, token, cursor, collection = b"", b"", 0, ""
    try:
        for name, kind, start, stop in _fields(document):
            if name in (b"nextBatch", b"firstBatch") and kind == _ARRAY:
                payload = document[start + 4 : stop - 1]
            elif name == b"postBatchResumeToken" and kind == _DOCUMENT:
                token = document[start:stop]
            elif name == b"id" and kind == _INT64:
                cursor = _LONG(document, start)[0]
            elif name == b"ns" and kind == _STRING:
                collection = document[start + 4 : stop - 1].decode().partition(".")[2]
    except (struct.error, IndexError, ValueError) as error:
        raise Malformed("a reply of the server is no valid BSON") from error
    return Reply(payload, token, cursor, collection)


def _fields(document: bytes) -> Iterator[tuple[bytes, int, int, int]]:
    """Name, type, start and stop of each field's value."""
    at, end = 4, _LENGTH(document)[0] - 1
    if end + 1 != len(document):
        raise ValueError
    while at < end:
        kind = document[at]
        stop = document.index(b"\0", at + 1)
        name, start = document[at + 1 : stop], stop + 1
        at = start + _size(document, kind, start)
        if at > end:
            raise ValueError
        yield name, kind, start, at


def _size(document: bytes, kind: int, at: int) -> int:
    if kind in (_DOCUMENT, _ARRAY):
        return int(_LENGTH(document, at)[0])
    if kind in (_STRING, 13, 14):
        return int(4 + _LENGTH(document, at)[0])
    if kind == 5:
        return int(5 + _LENGTH(document, at)[0])
    if kind in _FIXED:
        return _FIXED[kind]
    raise ValueError
