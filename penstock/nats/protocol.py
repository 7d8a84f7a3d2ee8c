"""The NATS client protocol, without a socket: bytes to write, and bytes in, events out.

Bulk first: a publish is bytes that the caller joined, an acknowledgement is one small tuple.
Names are those of the protocol reference (docs.nats.io, "Client Protocol").
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import orjson

from penstock.model.errors import Malformed

PING = b"PING\r\n"
PONG = b"PONG\r\n"
# A server's longest line is INFO, with the urls of a whole cluster.
_LONGEST_LINE = 1 << 20
_WORD, _SIZE = rb"[^ \r\n]+", rb"([0-9]{1,10})"
# 2.9 leaves two spaces where a reply subject would be.
_MSG = re.compile(rb"MSG (%b) %b +(?:(%b) )?%b\r\n" % (_WORD, _WORD, _WORD, _SIZE))
_HMSG = re.compile(rb"HMSG (%b) %b +(?:(%b) )?%b %b\r\n" % (_WORD, _WORD, _WORD, _SIZE, _SIZE))
_H = ord("H")
_VERSION = b"NATS/1.0"
_BLANKS = " \t\n\r\x0b\x0c"
HEADERS_START = _VERSION + b"\r\n"


class Info(NamedTuple):
    """What the server says of itself: `version`, `max_payload`, `headers`, `nonce` ..."""

    fields: Mapping[str, Any]


class Msg(NamedTuple):
    """MSG or HMSG; `headers` are raw, from `NATS/1.0` to the empty line, or empty."""

    subject: bytes
    reply: bytes
    headers: bytes
    payload: bytes


class Ok(NamedTuple):
    """+OK"""


class Err(NamedTuple):
    """-ERR; the text is without its quotes."""

    text: str


class Ping(NamedTuple):
    """PING, to be answered with PONG."""


class Pong(NamedTuple):
    """PONG"""


Event = Info | Msg | Ok | Err | Ping | Pong


def connect(options: Mapping[str, Any]) -> bytes:
    """CONNECT with its JSON options."""
    return b"CONNECT " + orjson.dumps(options) + b"\r\n"


def sub(subject: str, sid: int) -> bytes:
    return f"SUB {subject} {sid}\r\n".encode()


def pub(subject: str, reply: str, payload: bytes) -> bytes:
    """PUB with a reply subject."""
    return b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply.encode(), len(payload), payload)


def hpub(subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> bytes:
    """HPUB; `headers` are whole: from `NATS/1.0` to the empty line. `reply` may be empty."""
    size = len(headers)
    return b"HPUB %b %b%b%d %d\r\n%b%b\r\n" % (
        subject, reply, b" " if reply else b"", size, size + len(payload), headers, payload,
    )  # fmt: skip


def headers_of(raw: bytes) -> dict[str, str]:
    """Raw headers as name -> value (the last of a name); raises Malformed."""
    if not raw:
        return {}
    if not raw.startswith(_VERSION) or not raw.endswith(b"\r\n\r\n"):
        raise Malformed("message headers do not have the form of NATS/1.0")
    found = {}
    for line in raw[:-4].decode("utf-8", "replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name:
            raise Malformed("a message header has no name")
        found[name] = value.strip(_BLANKS)
    return found


class RawHeaders(Mapping[str, str]):
    """Raw headers as name -> value (the last of a name). Each is found when it is asked for, as few
    of most messages are. Raises Malformed."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        if raw and not (raw.startswith(_VERSION) and raw.endswith(b"\r\n\r\n")):
            raise Malformed("message headers do not have the form of NATS/1.0")
        self._raw = raw

    def get(self, name: str, default: Any = None) -> Any:
        _, found, rest = self._raw.rpartition(_line_of(name))
        if not found:
            return default
        value, _, _ = rest.partition(b"\r\n")
        return value.decode("utf-8", "replace").strip(_BLANKS)

    def __contains__(self, name: object) -> bool:
        return _line_of(name) in self._raw

    def __getitem__(self, name: str) -> str:
        return headers_of(self._raw)[name]

    def __iter__(self) -> Iterator[str]:
        return iter(headers_of(self._raw))

    def __len__(self) -> int:
        return len(headers_of(self._raw))


@cache
def _line_of(name: object) -> bytes:
    return f"\r\n{name}:".encode()


def status_of(raw: bytes) -> int:
    """The status on the version line of raw headers (503: nobody listens), or 0."""
    status = raw[len(_VERSION) : len(_VERSION) + 4].strip()
    return int(status) if status.isdigit() else 0


class Parser:
    """What the server sends, incrementally: any chunking of the bytes gives the same events."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Event]:
        """The events that are complete with `data`; raises Malformed, after which it is useless."""
        buffer = self._rest + data if self._rest else data
        events: list[Event] = []
        at = 0
        while at < len(buffer):
            # Acknowledgements are nearly all there is, or messages with headers: one match each.
            if buffer[at] == _H and (found := _HMSG.match(buffer, at)):
                subject, reply, headers, size = found.groups(b"")
                start = found.end()
                split = start + int(headers)
            elif found := _MSG.match(buffer, at):
                subject, reply, size = found.groups(b"")
                split = start = found.end()
            else:
                end = _line(events, buffer, at)
                if end < 0:
                    break
                at = end
                continue
            end = start + int(size)
            is_whole = split <= end and buffer.startswith(b"\r\n", end)
            if not is_whole and not _complete(buffer, split, end):
                break
            events.append(Msg(subject, reply, buffer[start:split], buffer[split:end]))
            at = end + 2
        self._rest = buffer[at:]
        return events


def _complete(buffer: bytes, split: int, end: int) -> bool:
    """Whether a message whose body is from `split` to `end` is all there; raises Malformed."""
    if split > end:
        raise Malformed("a message's headers are longer than the message")
    if len(buffer) < end + 2:
        return False
    if buffer[end : end + 2] != b"\r\n":
        raise Malformed("a message from the server is longer than it says")
    return True


def _line(events: list[Event], buffer: bytes, at: int) -> int:
    """Appends the event that is one line; returns where the next begins, -1 when it has no end."""
    end = buffer.find(b"\r\n", at)
    if end < 0:
        if len(buffer) - at > _LONGEST_LINE:
            raise Malformed("a line from the server has no end")
        return -1
    events.append(_control(buffer[at:end]))
    return end + 2


def _control(line: bytes) -> Event:
    word, _, rest = line.partition(b" ")
    match word.upper():
        case b"PING":
            return Ping()
        case b"PONG":
            return Pong()
        case b"+OK":
            return Ok()
        case b"-ERR":
            return Err(rest.strip().strip(b"'").decode("utf-8", "replace"))
        case b"INFO":
            return _info(rest)
        case _:
            raise Malformed("the server sent a line that is not of the NATS protocol")


def _info(text: bytes) -> Info:
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Malformed("the server's INFO is not JSON") from error
    if not isinstance(fields, dict):
        raise Malformed("the server's INFO is not a JSON object")
    return Info(fields)
