"""The NATS protocol without a socket."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import Malformed
from penstock.nats.protocol import (
    Err,
    Event,
    Info,
    Msg,
    Ok,
    Parser,
    Ping,
    Pong,
    RawHeaders,
    connect,
    headers_of,
    hpub,
    pub,
    status_of,
    sub,
)

HEADERS = b"NATS/1.0\r\nNats-Msg-Id: a:b\r\n\r\n"
CONVERSATION: list[tuple[bytes, Event]] = [
    (
        b'INFO {"version":"2.12.1","max_payload":1048576} \r\n',
        Info({"version": "2.12.1", "max_payload": 1048576}),
    ),
    (b"+OK\r\n", Ok()),
    (b"PING\r\n", Ping()),
    (b"PONG\r\n", Pong()),
    (b"MSG a.b 1 0\r\n\r\n", Msg(b"a.b", b"", b"", b"")),
    (b"MSG a.b 1 reply.to 5\r\nPING\r\r\n", Msg(b"a.b", b"reply.to", b"", b"PING\r")),
    (b"MSG a 1 4\r\n\r\n\r\n\r\n", Msg(b"a", b"", b"", b"\r\n\r\n")),
    (b"HMSG a.b 1 30 32\r\n%bhi\r\n" % HEADERS, Msg(b"a.b", b"", HEADERS, b"hi")),
    (
        b"HMSG a.b 1 r 16 16\r\nNATS/1.0 503\r\n\r\n\r\n",
        Msg(b"a.b", b"r", b"NATS/1.0 503\r\n\r\n", b""),
    ),
    (b"-ERR 'Authorization Violation'\r\n", Err("Authorization Violation")),
]
BYTES = b"".join(data for data, _ in CONVERSATION)
EVENTS = [event for _, event in CONVERSATION]


@pytest.mark.parametrize(("data", "event"), CONVERSATION)
def test_each_message_of_the_server_is_read(data: bytes, event: Event) -> None:
    assert Parser().feed(data) == [event]


@given(cuts=st.lists(st.integers(0, len(BYTES)), max_size=20))
def test_any_chunking_gives_the_same_events(cuts: list[int]) -> None:
    parser, events, start = Parser(), [], 0
    for end in [*sorted(cuts), len(BYTES)]:
        events += parser.feed(BYTES[start:end])
        start = end
    assert events == EVENTS


def test_byte_by_byte_gives_the_same_events() -> None:
    parser = Parser()
    assert [e for n in range(len(BYTES)) for e in parser.feed(BYTES[n : n + 1])] == EVENTS


@given(end=st.integers(0, len(BYTES) - 1))
def test_a_prefix_is_never_malformed_and_says_nothing_new(end: int) -> None:
    events = Parser().feed(BYTES[:end])
    assert events == EVENTS[: len(events)]


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n", b"\r\n", b"INFO {\r\n", b"INFO []\r\n", b"MSG a\r\n",
        b"MSG a 1\r\n", b"MSG a 1 x\r\n", b"MSG a 1 -1\r\n\r\n", b"MSG a  1 2\r\nab\r\n",
        b"MSG a 1 2\r\nabc\r\n", b"MSG a 1 r more 2\r\nab\r\n", b"MSG a 1 99999999999\r\n",
        b"HMSG\r\n", b"HMSG a 1 r -1 2\r\nab\r\n",
        b"HMSG a 1 12\r\n", b"HMSG a 1 14 12\r\nNATS/1.0\r\n\r\n\r\n", b"X" * (1 << 20) + b"X",
    ],
)  # fmt: skip
def test_garbage_is_malformed(garbage: bytes) -> None:
    with pytest.raises(Malformed):
        Parser().feed(garbage)


@given(data=st.binary(max_size=200))
def test_any_bytes_are_events_or_malformed(data: bytes) -> None:
    parser = Parser()
    try:
        parser.feed(data)
        parser.feed(b"\r\n")
    except Malformed:
        pass


@pytest.mark.slow
@given(subject=st.from_regex(r"[a-z]{1,9}(\.[a-z]{1,9}){0,3}", fullmatch=True), body=st.binary())
def test_a_publish_comes_back_as_the_message_it_was(subject: str, body: bytes) -> None:
    published = hpub(subject.encode(), b"in.1", HEADERS, body)
    head, _, rest = published.partition(b"\r\n")
    _, name, reply, sizes = head.split(b" ", 3)
    delivered = b"HMSG %b 1 %b %b\r\n%b" % (name, reply, sizes, rest)
    assert Parser().feed(delivered) == [Msg(subject.encode(), b"in.1", HEADERS, body)]


def test_what_the_client_says_is_the_protocol() -> None:
    assert connect({"verbose": False}) == b'CONNECT {"verbose":false}\r\n'
    assert sub("_INBOX.x.*", 1) == b"SUB _INBOX.x.* 1\r\n"
    assert pub("$JS.API.INFO", "in.1", b"{}") == b"PUB $JS.API.INFO in.1 2\r\n{}\r\n"
    assert hpub(b"a", b"", HEADERS, b"x") == b"HPUB a 30 31\r\n%bx\r\n" % HEADERS


def test_headers_are_read_by_name() -> None:
    assert headers_of(b"NATS/1.0\r\nA: 1\r\nB:two words \r\n\r\n") == {"A": "1", "B": "two words"}
    assert headers_of(b"") == {}


def test_headers_that_are_found_one_by_one_are_those_that_are_read_at_once() -> None:
    raw = "NATS/1.0\r\nA: 1\r\nAB:\t\u00e4 \r\nA: 2\r\n\r\n".encode()
    found = RawHeaders(raw)
    assert dict(found) == headers_of(raw) == {"A": "2", "AB": "\u00e4"}
    assert (found.get("A"), found.get("AB"), found.get("B", "none")) == ("2", "\u00e4", "none")
    assert ("AB" in found, "B" in found, len(found), found["A"]) == (True, False, 2, "2")
    assert dict(RawHeaders(b"")) == {}


@pytest.mark.parametrize(
    "raw", [b"NATS/1.0\r\n", b"HTTP/1.1\r\n\r\n", b"NATS/1.0\r\nno colon\r\n\r\n"]
)
def test_headers_of_another_form_are_malformed(raw: bytes) -> None:
    with pytest.raises(Malformed):
        headers_of(raw)
    with pytest.raises(Malformed):
        dict(RawHeaders(raw))


@pytest.mark.parametrize(
    ("raw", "status"), [(b"NATS/1.0 503\r\n\r\n", 503), (b"NATS/1.0\r\nA: 1\r\n\r\n", 0), (b"", 0)]
)
def test_the_status_is_on_the_version_line(raw: Any, status: int) -> None:
    assert status_of(raw) == status


def test_two_spaces_where_a_reply_would_be_are_one() -> None:
    """What nats-server 2.9 sends as the acknowledgement of a publish."""
    assert Parser().feed(b"MSG _INBOX.q.7 1  2\r\n{}\r\n") == [Msg(b"_INBOX.q.7", b"", b"", b"{}")]
