"""The server moves bytes: real sockets, real requests."""

import http.client
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping

import pytest

from penstock.model.errors import SettingsError
from penstock.ops.board import Board
from penstock.ops.respond import Response, respond
from penstock.ops.server import OpsServer
from penstock.ops.status import assess


def get(server: OpsServer, path: str, method: str = "GET") -> tuple[int, bytes]:
    request = urllib.request.Request(server.url + path, method=method)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@pytest.fixture
def stopped() -> threading.Event:
    return threading.Event()


@pytest.fixture
def server(stopped: threading.Event) -> Iterator[OpsServer]:
    board = Board("/nowhere")
    board.post("source", "a", {"connected": True, "events": 3})

    def answer(method: str, path: str, query: Mapping[str, str], origin: str | None) -> Response:
        status = assess(
            board.snapshot(),
            name="shop",
            version="1",
            backends=["a"],
            started=board.started,
            now=time.monotonic(),
        )
        return respond(
            method,
            path,
            query,
            status,
            stream_info=lambda name: {"name": name} if name == "a b" else None,
            origin=origin,
        )

    with OpsServer(bind="127.0.0.1", port=0, answer=answer, shutdown=stopped.set) as found:
        yield found


def test_port_0_takes_a_free_one_and_says_which(server: OpsServer) -> None:
    assert server.port > 0
    assert server.url == f"http://127.0.0.1:{server.port}"


def test_endpoints_answer(server: OpsServer) -> None:
    status = json.loads(get(server, "/status")[1])
    assert status["backends"][0]["events"] == 3
    assert get(server, "/health")[0] == 200
    assert b'penstock_events_total{backend="a"} 3.0' in get(server, "/metrics")[1]
    assert get(server, "/nothing")[0] == 404


def test_a_query_is_unquoted(server: OpsServer) -> None:
    assert get(server, "/streams/info?stream=a%20b")[0] == 200
    assert get(server, "/streams/info?stream=x")[0] == 404


def test_head_has_no_body(server: OpsServer) -> None:
    assert get(server, "/health", "HEAD") == (200, b"")


def test_shutdown_is_answered_before_it_happens(
    server: OpsServer, stopped: threading.Event
) -> None:
    assert get(server, "/shutdown")[0] == 405
    assert not stopped.is_set()
    assert get(server, "/shutdown", "POST")[0] == 202
    assert stopped.wait(10)


def test_a_web_page_can_not_shut_down(server: OpsServer, stopped: threading.Event) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("POST", "/shutdown", headers={"Origin": "http://evil.example"})
    assert connection.getresponse().status == 403
    assert not stopped.is_set()


@pytest.mark.parametrize(
    "sent", [b"\r\n\r\n", b"GET\r\n\r\n", b"\x00\xff\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"]
)
def test_bytes_that_are_no_request_hurt_nobody(server: OpsServer, sent: bytes) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as wire:
        wire.sendall(sent)
        wire.shutdown(socket.SHUT_WR)
        while wire.recv(1000):
            pass
    assert get(server, "/health")[0] == 200


def test_a_client_that_says_nothing_holds_nobody_up(server: OpsServer) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=10):
        assert get(server, "/health")[0] == 200


def made(answer: Callable[..., Response], port: int = 0, bind: str = "127.0.0.1") -> OpsServer:
    return OpsServer(bind=bind, port=port, answer=answer, shutdown=lambda: None)


def failing(*_: object) -> Response:
    raise RuntimeError("hunter22")


def test_a_defect_is_500_and_tells_the_client_nothing() -> None:
    with made(failing) as server:
        code, body = get(server, "/health")
    assert code == 500
    assert b"hunter22" not in body


def test_a_port_that_is_taken_is_a_clear_error() -> None:
    with (
        made(failing) as first,
        pytest.raises(SettingsError, match=r"can't listen on 127\.0\.0\.1:.*choose another"),
    ):
        made(failing, first.port).start()


def test_a_closed_server_listens_no_more() -> None:
    server = made(failing).start()
    server.close()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=10)
