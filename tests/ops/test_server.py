"""The server moves bytes: real sockets, real requests."""

import http.client
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from starlette.responses import Response

from penstock.model.errors import SettingsError
from penstock.ops.board import Board
from penstock.ops.reports import SourceReport
from penstock.ops.requests import Access, Endpoint, OpsRequest
from penstock.ops.respond import ANSWERS, Asked, status_endpoints
from penstock.ops.server import OpsServer
from penstock.ops.status import assess
from tests.servers import free_port


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
    board.post("a", SourceReport(connected=True, events=3))

    def asked(request: OpsRequest) -> Asked:
        status = assess(
            board.snapshot(),
            name="shop",
            version="1",
            backends=["a"],
            started=board.started,
            now=time.monotonic(),
        )
        return Asked(
            request=request,
            status=status,
            access=access,
            stop=stopped.set,
            stream_info=lambda name: {"name": name} if name == "a b" else None,
            endpoints=endpoints,
        )

    access = Access(hosts=("ops.example",))
    endpoints = status_endpoints(asked)
    with OpsServer(port=0, access=access, endpoints=endpoints) as found:
        yield found


def test_port_0_takes_a_free_one_and_says_which(server: OpsServer) -> None:
    assert server.port > 0
    assert server.url == f"http://127.0.0.1:{server.port}"


def test_extra_ports_serve_the_same_and_one_that_is_taken_leaves_none_open() -> None:
    def answer(_: OpsRequest) -> Response:
        return Response(b"here", media_type="text/plain")

    endpoints = [Endpoint("/", "GET", answer)]
    server = partial(OpsServer, access=Access(), endpoints=endpoints)
    with server(port=0) as taken:
        port, extra = free_port(), free_port()
        with pytest.raises(SettingsError, match=f"{taken.port}: Address already in use"):
            server(port=port, extra_ports=(extra, taken.port)).__enter__()
    with server(port=port, extra_ports=(extra,)) as found:
        assert get(found, "/") == (200, b"here")
        with urllib.request.urlopen(f"http://127.0.0.1:{extra}/", timeout=10) as answered:
            assert answered.read() == b"here"
    server(port=extra).__enter__().close()


def test_endpoints_answer(server: OpsServer) -> None:
    status = json.loads(get(server, "/status")[1])
    assert status["backends"][0]["events"] == 3
    assert get(server, "/health")[0] == 200
    assert b'penstock_events_total{backend="a"} 3.0' in get(server, "/metrics")[1]
    assert get(server, "/nothing")[0] == 404


def test_the_index_lists_every_endpoint(server: OpsServer) -> None:
    assert {one["path"] for one in json.loads(get(server, "/")[1])["endpoints"]} == {*ANSWERS}


@pytest.mark.parametrize("path", ["/x", "/status/", "//health", "/../health", "/ui"])
def test_any_other_path_is_404(server: OpsServer, path: str) -> None:
    code, body = get(server, path)
    assert (code, json.loads(body)["info"]) == (404, f"there are: {', '.join(ANSWERS)}")


@pytest.mark.parametrize("path", ANSWERS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE"])
def test_an_endpoint_takes_its_method_only(server: OpsServer, path: str, method: str) -> None:
    takes = ANSWERS[path][0]
    allowed = {"GET", "HEAD"} if takes == "GET" else {takes}
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request(method, path)
    answer = connection.getresponse()
    assert (answer.status == 405) == (method not in allowed)
    if answer.status == 405:
        assert set(answer.headers["Allow"].split(", ")) == allowed


def test_a_foreign_name_is_told_no_paths(server: OpsServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", "/x", headers={"Host": "evil.example"})
    assert connection.getresponse().status == 421


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
    ("host", "code"),
    [
        ("127.0.0.1:{port}", 200),
        ("localhost:1", 200),
        ("LOCALHOST", 200),
        ("[::1]:{port}", 200),
        ("ops.example:443", 200),
        ("evil.example:{port}", 421),
        ("127.0.0.1.evil.example", 421),
        ("192.0.2.1", 421),
        ("[", 421),
        ("", 421),
        (None, 200),
    ],
)
def test_only_our_own_names_are_answered(server: OpsServer, host: str | None, code: int) -> None:
    named = "" if host is None else f"Host: {host.format(port=server.port)}\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as wire:
        wire.sendall(f"GET /health HTTP/1.0\r\n{named}\r\n".encode())
        assert wire.recv(1000).split()[1] == str(code).encode()


@pytest.mark.parametrize(
    ("bind", "host", "refused"),
    [
        ("0.0.0.0", "10.1.2.3:9090", False),
        ("::", "[2001:db8::1]", False),
        ("0.0.0.0", "penstock.svc", True),
        ("10.1.2.3", "10.1.2.3:9090", False),
        ("10.1.2.3", "10.1.2.4:9090", True),
        ("Db1", "db1:9090", False),
    ],
)
def test_the_bind_address_is_a_name_of_ours(bind: str, host: str, refused: bool) -> None:
    found = Access(bind=bind).refusal(OpsRequest(method="GET", path="/", headers={"host": host}))
    assert (found is not None) == refused


@pytest.mark.parametrize(
    ("origin", "code"),
    [
        ("http://127.0.0.1:{port}", 200),
        ("https://ops.example", 200),
        ("http://evil.example", 403),
        ("http://127.0.0.1:1", 403),
        ("null", 403),
        ("http://[", 403),
    ],
)
def test_a_page_of_another_site_is_refused(server: OpsServer, origin: str, code: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request("GET", "/status", headers={"Origin": origin.format(port=server.port)})
    assert connection.getresponse().status == code


def test_a_body_above_a_mebibyte_is_not_read(server: OpsServer) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.putrequest("POST", "/shutdown")
    connection.putheader("Content-Length", str(2**20 + 1))
    connection.endheaders()
    assert connection.getresponse().status == 413


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
    endpoints = [Endpoint("/health", "GET", answer)]
    return OpsServer(port=port, access=Access(bind=bind), endpoints=endpoints)


def failing(*_: object) -> Response:
    raise RuntimeError("hunter22")


@pytest.mark.slow
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
        made(failing, first.port).__enter__()


@pytest.mark.slow
def test_closing_ends_connections_that_are_idle_or_stalled() -> None:
    server = made(failing).__enter__()
    idle = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    idle.request("GET", "/health")
    idle.getresponse().read()
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as stalled:
        stalled.sendall(b"POST /shutdown HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        server.close()
        assert not [each for each in threading.enumerate() if each.name == "ops"]
        while stalled.recv(1000):
            pass


def test_a_closed_server_listens_no_more() -> None:
    server = made(failing).__enter__()
    server.close()
    server.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", server.port), timeout=10)
