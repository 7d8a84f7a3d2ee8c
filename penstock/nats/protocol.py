"""The NATS client protocol, without a socket: bytes to write, and bytes in, events out.

Bulk first: a publish is bytes that the caller joined, an acknowledgement is one small tuple.
Names are those of the protocol reference (docs.nats.io, "Client Protocol").
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import orjson

from penstock.model.errors import Malformed

PING = b"PING\r\n"
PONG = b"PONG\r\n"
# A server's longest line is INFO, with the urls of a whole cluster.
_LONGEST_LINE = 1 << 20
_LARGEST = 1 << 32  # bytes of a message, more than any server lets through
_NOT_NATS = "the server sent a line that is not of the NATS protocol"
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
    return b"CONNECT " + orjson.dumps(options) + b"\r\n"


def sub(subject: str, sid: int) -> bytes:
    return f"SUB {subject} {sid}\r\n".encode()


def pub(subject: str, reply: str, payload: bytes) -> bytes:
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
        raise Malformed("message headers do not have the form of NATS/1.0", "nats")
    found = {}
    for line in raw[:-4].decode("utf-8", "replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if not colon or not name:
            raise Malformed("a message header has no name", "nats")
        found[name] = value.strip(_BLANKS)
    return found


class RawHeaders(Mapping[str, str]):
    """Raw headers as name -> value (the last of a name), each found when it is asked for. Raises
    Malformed when all are asked for."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def get(self, name: str, default: Any = None) -> Any:
        _, found, rest = self._raw.rpartition(_line_of(name))
        if not found:
            return default
        value, _, _ = rest.partition(b"\r\n")
        return value.strip().decode("utf-8", "replace")

    def __contains__(self, name: object) -> bool:
        # `in` takes five times as long: it tries whether the name is a number.
        return self._raw.find(_line_of(name)) >= 0

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
        at, new = 0, tuple.__new__
        while (start := buffer.find(b"\r\n", at) + 2) > 1:
            words = buffer[at : start - 2].split(b" ")
            try:
                if words[0] == b"HMSG":
                    split = start + int(words.pop(-2))
                elif words[0] == b"MSG":
                    split = start
                else:
                    events.append(_control(buffer[at : start - 2]))
                    at = start
                    continue
                end = start + int(words[-1])
            except (ValueError, IndexError):
                raise Malformed(_NOT_NATS, "nats") from None
            # Subject, subscription, reply subject or not, size. 2.9 leaves two spaces where a reply
            # subject would be.
            reply = words[3] if len(words) == 5 else b""
            if not 3 < len(words) < 6 or not words[2]:
                raise Malformed(_NOT_NATS, "nats")
            is_whole = start <= split <= end and buffer[end : end + 2] == b"\r\n"
            if not is_whole and not _complete(buffer, start, split, end):
                break
            events.append(new(Msg, (words[1], reply, buffer[start:split], buffer[split:end])))
            at = end + 2
        else:
            if len(buffer) - at > _LONGEST_LINE:
                raise Malformed("a line from the server has no end", "nats")
        self._rest = buffer[at:]
        return events


def _complete(buffer: bytes, start: int, split: int, end: int) -> bool:
    """Whether headers (from `start`) and body (`split` to `end`) are there. Raises Malformed."""
    if end - start > _LARGEST:
        raise Malformed(_NOT_NATS, "nats")
    if not start <= split <= end:
        raise Malformed("a message's headers are longer than the message", "nats")
    if len(buffer) < end + 2:
        return False
    if buffer[end : end + 2] != b"\r\n":
        raise Malformed("a message from the server is longer than its declared length", "nats")
    return True


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
            raise Malformed(_NOT_NATS, "nats")


def _info(text: bytes) -> Info:
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise Malformed("the server's INFO is not JSON", "nats") from error
    if not isinstance(fields, dict):
        raise Malformed("the server's INFO is not a JSON object", "nats")
    return Info(fields)
