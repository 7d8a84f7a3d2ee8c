"""Authenticated connections: who is served, who cannot block others, where a server listens."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import AuthenticationError
from pathlib import Path

import pytest

from penstock.model.errors import SettingsError, Unavailable
from penstock.process import connections
from penstock.process.connections import Server, connect

ADDRESSES = ["unix:", "tcp:127.0.0.1", "tcp:::1"]


def echo(connection: Connection) -> None:
    while True:
        connection.send_bytes(connection.recv_bytes())


@contextmanager
def serving(address: str = "tcp:127.0.0.1", *, bind: str = "", port: int = 0) -> Iterator[Server]:
    server = Server(address, echo, bind=bind, port=port)
    server.open()
    try:
        yield server
    finally:
        server.close()


def answers(server: Server) -> bool:
    with connect(server.address, server.key, answers_within=30.0) as connection:
        connection.send_bytes(b"hello")
        return connection.recv_bytes() == b"hello"


def port_of(server: Server) -> int:
    return int(server.address.rpartition(":")[2])


@pytest.mark.parametrize("address", ADDRESSES)
def test_who_has_the_key_is_served(address: str) -> None:
    with serving(address) as server:
        assert answers(server)
        server.open()  # again is nothing
        assert answers(server)


@pytest.mark.parametrize("address", ADDRESSES)
def test_who_has_another_key_is_not_served(address: str) -> None:
    with serving(address) as server, pytest.raises((AuthenticationError, EOFError, OSError)):
        connect(server.address, b"another key")


@pytest.mark.slow
def test_stalled_clients_do_not_block_others_and_are_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "_PATIENCE", 3.0)
    with serving() as server:
        stalled = [socket.create_connection(("127.0.0.1", port_of(server))) for _ in range(50)]
        assert answers(server)
        for each in stalled:
            each.settimeout(60)
            while each.recv(1000):  # the challenge, then the end
                pass
            each.close()


def test_a_reader_gives_up_after_its_time() -> None:
    with serving() as server:
        connection = connect(server.address, server.key, answers_within=0.2)
        with connection, pytest.raises(BlockingIOError):
            connection.recv_bytes()


def test_a_server_binds_another_address_than_the_one_it_is_reached_by() -> None:
    with serving("tcp:127.0.0.7", bind="0.0.0.0") as server:
        assert server.address.startswith("tcp:127.0.0.7:")
        assert answers(server)


def test_a_server_takes_a_fixed_port_again_after_another_closed_it() -> None:
    with serving() as first:
        port = port_of(first)
        open_ended = connect(first.address, first.key)
    with serving(port=port) as second, open_ended:
        assert port_of(second) == port
        assert answers(second)


def test_a_server_waits_for_a_fixed_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        threading.Timer(0.5, holder.close).start()
        with serving(port=holder.getsockname()[1]) as server:
            assert answers(server)


def test_a_port_that_stays_taken_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_PORT_PATIENCE", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(Unavailable, match=rf"{port} .*is taken .*spark\.port"):
            Server("tcp:127.0.0.1", echo, port=port).open()


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_an_address_that_is_not_this_hosts_is_a_clear_error(host: str) -> None:
    with pytest.raises(SettingsError, match=r"spark\.bind"):
        Server(f"tcp:{host}", echo).open()


def test_a_path_that_no_socket_can_have_is_a_clear_error(tmp_path: Path) -> None:
    for path in (tmp_path / ("long" * 30), tmp_path / "nowhere" / "s"):
        with pytest.raises(SettingsError, match="TMPDIR"):
            Server(f"unix:{path}", echo).open()


def test_a_closed_server_takes_nobody(tmp_path: Path) -> None:
    for address in (f"unix:{tmp_path}/socket", "tcp:127.0.0.1"):
        with serving(address) as server:
            pass
        server.close()  # again is nothing
        with pytest.raises(OSError):
            connect(server.address, server.key)
    assert list(tmp_path.iterdir()) == []


def test_the_threads_of_clients_that_left_end() -> None:
    with serving() as server:
        before = set(threading.enumerate())
        for _ in range(20):
            assert answers(server)
        with suppress(AuthenticationError, EOFError, OSError):
            connect(server.address, b"")
        with connect(server.address, server.key):
            more = set(threading.enumerate()) - before  # clients of other tests start some, too
            started = [each for each in more if each.name.endswith("(_serve)")]
        assert started
        for thread in started:
            thread.join(60)
        assert not any(thread.is_alive() for thread in started)
