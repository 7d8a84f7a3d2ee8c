"""The bad network does what it says."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from tests.chaos.proxy import Proxy, Weather


@pytest.fixture
def echo() -> Iterator[tuple[str, int]]:
    """A server that says what it hears."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(one: socket.socket) -> None:
        with one:
            try:
                while data := one.recv(1 << 16):
                    one.sendall(data)
            except OSError:
                return

    def accept() -> None:
        while True:
            try:
                one, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(one,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()
    listener.close()


@pytest.fixture
def proxy(echo: tuple[str, int]) -> Iterator[Proxy]:
    one = Proxy(*echo)
    yield one
    one.close()


def connected(proxy: Proxy) -> socket.socket:
    one = socket.create_connection(("127.0.0.1", proxy.port), timeout=20)
    one.sendall(b"hello")
    assert heard(one, 5) == b"hello"
    return one


def heard(one: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        if not (more := one.recv(count - len(data))):
            break
        data += more
    return data


def is_silent(one: socket.socket) -> bool:
    one.settimeout(0.5)
    try:
        return one.recv(1) is None
    except TimeoutError:
        return True


def test_on_a_good_day_everything_passes_both_ways(proxy: Proxy) -> None:
    one = connected(proxy)
    data = bytes(range(256)) * 4096
    threading.Thread(target=one.sendall, args=(data,), daemon=True).start()
    assert heard(one, len(data)) == data
    one.shutdown(socket.SHUT_WR)
    assert one.recv(1) == b""


def test_a_reset_reaches_the_client_and_a_new_connection_works(proxy: Proxy) -> None:
    one = connected(proxy)
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        assert one.recv(1) == b"never"
    connected(proxy)


def test_refused_connections_are_reset(proxy: Proxy) -> None:
    proxy.weather = Weather(refused=True)
    with pytest.raises((ConnectionResetError, BrokenPipeError, AssertionError)):
        connected(proxy)
    proxy.weather = Weather()
    connected(proxy)


@pytest.mark.parametrize("lost", ["all", "answers"])
def test_a_connection_that_lost_bytes_never_works_again(proxy: Proxy, lost: str) -> None:
    one = connected(proxy)
    proxy.weather = Weather(lost=lost)  # type: ignore[arg-type]
    one.sendall(b"nobody hears this")
    assert is_silent(one)
    proxy.weather = Weather()
    one.sendall(b"nor this")
    assert is_silent(one)
    connected(proxy)


def test_what_was_stalled_comes_late_and_whole(proxy: Proxy) -> None:
    one = connected(proxy)
    proxy.weather = Weather(stalled=True)
    one.sendall(b"late")
    assert is_silent(one)
    proxy.weather = Weather()
    one.settimeout(20)
    assert heard(one, 4) == b"late"


def test_a_frame_is_cut_in_its_middle(proxy: Proxy) -> None:
    one = connected(proxy)
    proxy.weather = Weather(cut=3)
    one.sendall(b"hello")
    received = b""
    with pytest.raises(ConnectionResetError):
        while data := one.recv(5):
            received += data
    assert received in (b"hel"[:n] for n in range(4))


def test_latency_and_a_narrow_way_take_their_time(proxy: Proxy) -> None:
    one = connected(proxy)
    for weather in (Weather(latency=0.1), Weather(rate=10_000)):
        proxy.weather = weather
        begun = time.monotonic()
        one.sendall(b"x" * 2000)
        assert heard(one, 2000) == b"x" * 2000
        assert time.monotonic() - begun >= 0.19
