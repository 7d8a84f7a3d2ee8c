"""Requests and those who answer them, on a real server."""

import threading
import uuid
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from penstock.model.errors import Unavailable
from penstock.nats.connection import Connection
from penstock.nats.protocol import Msg, hpub, pub
from penstock.nats.services import Responder, asked
from tests.waiting import until


@pytest.fixture
def subject() -> str:
    return f"service.{uuid.uuid4().hex}"


def test_a_request_without_anybody_who_answers_fails_at_once(
    connect: Callable[[], Connection], subject: str
) -> None:
    with pytest.raises(Unavailable, match=f"no service answers requests on {subject}"):
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

    def answer(message: Msg) -> bytes:
        asked_for.append(message.payload)
        return b"answer"

    listening, sender = connect(), connect()
    answerer = Responder(listening, subject, answer)
    answerer.start()
    listening.ping()  # the server has the subscription
    sender.send(pub(subject, "", b"published"))
    until(lambda: answerer.serve(0.1), 60)
    assert asked_for == [b"published"]


def test_what_a_consumer_of_a_stream_delivers_is_acknowledged() -> None:
    """By nothing, which is an acknowledgement; an answer would be none, and it came again. (No
    client may publish with such a reply subject: the server alone does.)"""
    connection = Mock()
    connection.receive.return_value = [Msg(b"s", b"$JS.ACK.S.C.1.1.1.0.0", b"", b"delivered")]
    assert Responder(connection, "s", lambda message: message.payload).serve(1.0) == 1
    connection.send.assert_called_once_with(
        hpub(b"$JS.ACK.S.C.1.1.1.0.0", b"", b"NATS/1.0\r\n\r\n", b"")
    )
