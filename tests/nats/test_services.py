"""Requests and those who answer them, on a real server."""

import threading
import uuid
from collections.abc import Callable

import pytest

from penstock.model.errors import Unavailable
from penstock.nats.connection import Connection
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
