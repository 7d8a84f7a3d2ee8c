"""The NATS client protocol, without a socket: bytes to write, and bytes in, events out.

Bulk first: a publish is bytes that the caller joined, an acknowledgement is one small tuple.
Names are those of the protocol reference (docs.nats.io, "Client Protocol").
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from penstock.errors import Malformed

__all__ = [
    "PING", "PONG", "Err", "Event", "Info", "Msg", "Ok", "Parser", "Ping", "Pong", "connect",
    "headers_of", "hpub", "pub", "status_of", "sub",
]  # fmt: skip

PING = b"PING\r\n"
PONG = b"PONG\r\n"
# A server's longest line is INFO, with the urls of a whole cluster.
_LONGEST_LINE = 1 << 20
_NUMBER = re.compile(rb"[0-9]{1,10}")
_VERSION = b"NATS/1.0"


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
    """SUB without a queue group."""
    return b"SUB %b %d\r\n" % (subject.encode(), sid)


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
    for line in raw.split(b"\r\n")[1:-2]:
        name, colon, value = line.partition(b":")
        if not colon or not name:
            raise Malformed("a message header has no name")
        found[name.decode("utf-8", "replace")] = value.strip().decode("utf-8", "replace")
    return found


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
        for event, end in _events(buffer):
            events.append(event)
            at = end
        self._rest = buffer[at:]
        return events


def _events(buffer: bytes) -> Iterator[tuple[Event, int]]:
    at = 0
    while (end := buffer.find(b"\r\n", at)) >= 0:
        line = buffer[at:end]
        if line.startswith((b"MSG ", b"HMSG ")):
            head, size = _message_line(line)
            start, at = end + 2, end + 4 + size
            if len(buffer) < at:
                return
            if buffer[at - 2 : at] != b"\r\n":
                raise Malformed("a message from the server is longer than it says")
            subject, reply, headers = head
            split = start + headers
            yield Msg(subject, reply, buffer[start:split], buffer[split : at - 2]), at
        else:
            at = end + 2
            yield _control(line), at
    if len(buffer) - at > _LONGEST_LINE:
        raise Malformed("a line from the server has no end")


def _message_line(line: bytes) -> tuple[tuple[bytes, bytes, int], int]:
    """(subject, reply, size of the headers), size of it all."""
    parts = line.split(b" ")
    counts = 1 if parts[0] == b"MSG" else 2
    words, numbers = parts[1:-counts], parts[-counts:]
    if len(words) not in (2, 3) or not all(words):
        raise Malformed("a message line from the server has the wrong number of words")
    if not all(_NUMBER.fullmatch(number) for number in numbers):
        raise Malformed("a message line from the server has no size")
    size = int(numbers[-1])
    headers = int(numbers[0]) if counts == 2 else 0
    if headers > size:
        raise Malformed("a message's headers are longer than the message")
    return (words[0], words[2] if len(words) == 3 else b"", headers), size


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
            raise Malformed("the server does not speak the NATS protocol")


def _info(text: bytes) -> Info:
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Malformed("the server's INFO is not JSON") from error
    if not isinstance(fields, dict):
        raise Malformed("the server's INFO is not a JSON object")
    return Info(fields)
