"""A reply to `aggregate` or `getMore`, read without decoding its events: where each begins and
ends, its token and its cluster time.

A page's payload is a run of elements of a BSON array, as a `getMore` reply has it. Only the head of
an event is looked at: its documents are decoded in the tasks.
"""

import re
import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import bson
from bson.codec_options import CodecOptions
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from penstock.model.errors import Malformed
from penstock.model.position import Place
from penstock.wire.changestream.tokens import is_token

_HEAD = re.compile(
    rb".{4}\x03_id\x00(.{4}\x02_data\x00.{4}[0-9A-Fa-f]*\x00\x00)"
    rb"\x02operationType\x00.{4}[A-Za-z]+\x00\x11clusterTime\x00(.{8})",
    re.DOTALL,
)
_DOCUMENT, _ARRAY, _STRING, _INT64 = 3, 4, 2, 18
# BSON types of a fixed size.
_FIXED = {1: 8, 6: 0, 7: 12, 8: 1, 9: 8, 10: 0, 16: 4, 17: 8, 18: 8, 19: 16, 127: 0, 255: 0}
_LENGTH = struct.Struct("<i").unpack_from
_LONG = struct.Struct("<q").unpack_from
_TIME = struct.Struct("<Q").unpack
_SPLIT = b"\x03splitEvent\x00"
# What an event ends with that a server did not split although it may.
_WHOLE = _SPLIT + bson.encode({"fragment": 1, "of": 1}) + b"\0"
# Documents that stay bytes until a field is asked for.
RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
# No server splits an event of 16 MB into more.
FRAGMENTS = 64


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
        raise Malformed("a reply of the server is no valid BSON", "wire") from error
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


class ChangeEvent(NamedTuple):
    """One change event: its documents (several if the server split it); the bytes of its resume
    token (a BSON document), the last fragment's; its cluster time (seconds * 2**32 + counter; 0 if
    it has none); and the token by which it is known, the first fragment's, because where the others
    begin depends on a document that is looked up."""

    documents: tuple[tuple[int, int], ...]
    token: bytes
    time: int
    name: bytes


class EventRun(NamedTuple):
    """The events of a run of elements that are complete, and where the first incomplete one
    starts: the fragments that it lacks are in the next reply."""

    events: Sequence[ChangeEvent]
    end: int


def events(payload: bytes) -> EventRun:
    """Raises Malformed for broken elements; a broken document has neither token nor time."""
    found: list[ChangeEvent] = []
    held: list[tuple[int, int]] = []
    begun = at = time = 0
    name = b""
    for at, start, stop in _documents(payload):
        if (head := _HEAD.match(payload, start, stop)) and _is_usual(head[1]):
            token, own = head[1], _TIME(head[2])[0]
        else:
            token, own = _other(payload[start:stop])
        if not held:
            begun, time, name = at, own, token
        held.append((start, stop))
        if _continues(payload, start, stop) and len(held) < FRAGMENTS:
            continue
        found.append(ChangeEvent(tuple(held), token, time, name))
        held = []
    return EventRun(found, begun if held else len(payload))


def element(document: bytes, number: int = 0) -> bytes:
    """A document as an element of an array."""
    return b"\x03%d\0%b" % (number, document)


def _documents(payload: bytes) -> Iterator[tuple[int, int, int]]:
    """Each element: where it is, and where its document starts and stops."""
    at, size = 0, len(payload)
    while at < size:
        start = payload.find(b"\0", at + 1) + 1
        if payload[at] != _DOCUMENT or not start or start + 5 > size:
            raise Malformed(f"a page of change events is broken at byte {at}", "wire")
        stop = start + _LENGTH(payload, start)[0]
        if stop > size or stop < start + 5:
            raise Malformed(f"a page of change events is broken at byte {at}", "wire")
        yield at, start, stop
        at = stop


def _continues(payload: bytes, start: int, stop: int) -> bool:
    """Whether further fragments of this event follow."""
    if payload[stop - len(_WHOLE) : stop] == _WHOLE or payload.find(_SPLIT, start, stop) < 0:
        return False
    split = _field(payload[start:stop], "splitEvent")
    return split is not None and split["fragment"] < split["of"]


def _is_usual(token: bytes) -> bool:
    """Whether the lengths in a token with one field are right."""
    size = len(token)
    return bool(_LENGTH(token)[0] == size and _LENGTH(token, 11)[0] == size - 16)


def _other(document: bytes) -> tuple[bytes, int]:
    """Token and time of an event whose fields come in another order, or with others between."""
    token, time = _field(document, "_id"), _field(document, "clusterTime")
    raw = bytes(token.raw) if isinstance(token, RawBSONDocument) else b""
    return (
        raw if raw and is_token(raw) else b"",
        time.time << 32 | time.inc if isinstance(time, Timestamp) else 0,
    )


def _field(document: bytes, name: str) -> Any:
    try:
        return bson.decode(document, RAW).get(name)
    except (BSONError, ValueError, KeyError):
        return None


def cursor_of(time: int) -> str:
    """A cluster time as a cursor: seconds and counter, `6921A5B3/00000001`."""
    return f"{time >> 32:08X}/{time & 0xFFFFFFFF:08X}"


def cursor_time(cursor: str) -> int:
    """The inverse, of a cursor without its era; raises Malformed."""
    try:
        seconds, counter = cursor.split("/")
        return int(seconds, 16) << 32 | int(counter, 16)
    except ValueError as error:
        raise Malformed(f"{cursor!r} is not a cluster time", "wire") from error


class Placer:
    """Gives places in the order of arrival: the cluster time, and a counter inside it. Where the
    time of an event is before the one of the event before, it gets that one's."""

    def __init__(self, time: int, ordinal: int) -> None:
        self.time, self.ordinal = time, ordinal

    def next(self, time: int) -> tuple[int, int]:
        if time > self.time:
            self.time, self.ordinal = time, 0
        else:
            self.ordinal += 1
        return self.time, self.ordinal

    @classmethod
    def before(cls, place: Place, era: str) -> "Placer":
        """One that places an event of any time up to its own at `place`."""
        return cls(cursor_time(place.cursor.removeprefix(era)), place.ordinal - 1)
