"""Requests and those who answer them, on a real server."""

import threading
import uuid
from collections.abc import Callable

import pytest

from penstock.model.errors import Unavailable
from penstock.nats.connection import Connection
from penstock.nats.protocol import Msg, pub
from penstock.nats.services import Responder, asked


@pytest.fixture
def subject() -> str:
    return f"service.{uuid.uuid4().hex}"


def test_a_request_without_anybody_who_answers_fails_at_once(
    connect: Callable[[], Connection], subject: str
) -> None:
    with pytest.raises(Unavailable, match=f"nobody answers requests on {subject}"):
        asked(connect(), subject, b"?")


def test_a_service_that_is_silent_is_unavailable(
    connect: Callable[[], Connection], subject: str
) -> None:
    connect().subscribe(subject)
    with pytest.raises(Unavailable, match="does not answer"):
        asked(connect(), subject, b"?", timeout=0.2)


def test_answers_do_not_get_lost_among_messages_of_a_subscription(
    connect: Callable[[], Connection], subject: str
) -> None:
    both = connect()
    both.subscribe(f"{subject}.news")
    answerer = Responder(connect(), subject, lambda message: message.payload)
    answerer.start()
    sender = connect()
    done = threading.Event()

    def serve() -> None:
        while not done.is_set():
            sender.send(f"PUB {subject}.news 2\r\nhi\r\n".encode())
            answerer.serve(0.02)

    thread = threading.Thread(target=serve)
    thread.start()
    assert [asked(both, subject, b"%d" % n).payload for n in range(20)] == [
        b"%d" % n for n in range(20)
    ]
    done.set()
    thread.join()
    assert {message.payload for message in both.receive(5)} == {b"hi"}


def test_what_has_no_reply_subject_is_a_request_without_an_answer(
    connect: Callable[[], Connection], subject: str
) -> None:
    asked_for: list[bytes] = []
    answerer, sender = Responder(connect(), subject, lambda one: _kept(asked_for, one)), connect()
    answerer.start()
    sender.send(pub(subject, "", b"published"))
    while not answerer.serve(1.0):
        pass
    assert asked_for == [b"published"]


def _kept(kept: list[bytes], message: Msg) -> bytes:
    kept.append(message.payload)
    return message.payload


def test_what_a_consumer_of_a_stream_delivers_is_acknowledged(
    connect: Callable[[], Connection], subject: str
) -> None:
    """By nothing, which is an acknowledgement; an answer would be none, and it came again."""
    answerer, sender = Responder(connect(), subject, lambda message: message.payload), connect()
    answerer.start()
    sender.subscribe(reply := f"$JS.ACK.S.C.1.{subject}.1.1.0")
    sender.send(pub(subject, reply, b"delivered"))
    while not answerer.serve(1.0):
        pass
    (found,) = sender.receive(10.0)
    assert (found.subject.decode(), found.payload) == (reply, b"")
