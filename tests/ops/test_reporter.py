"""Reports over TCP: they arrive, each count once, and their sender neither waits nor fails."""

import os
import pickle
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from penstock.ops.board import Board
from penstock.ops.reporter import Reporter
from penstock.ops.reports import SinkReport, SourceReport
from penstock.process.connections import Server
from tests.waiting import until


@pytest.fixture
def board() -> Board:
    return Board("/nowhere")


@contextmanager
def serving(board: Board, port: int = 0) -> Iterator[Server]:
    server = Server("tcp:127.0.0.1", board.serve, port=port)
    server.open()
    try:
        yield server
    finally:
        server.close()


def reporter_to(server: Server) -> Reporter:
    return Reporter(server.address, server.key)


def test_a_report_arrives_over_tcp(board: Board) -> None:
    with serving(board) as server:
        reporter = pickle.loads(pickle.dumps(reporter_to(server)))
        reporter.report("s", SinkReport(connected=True, delivery="é"))
        reporter.report("s", SinkReport(connected=False))
        until(
            lambda: (
                board.snapshot().latest(SinkReport, "s").named
                == {"connected": False, "delivery": "é"}
            )
        )


def test_counts_of_several_processes_add_up_over_tcp(board: Board) -> None:
    with serving(board) as server:
        reporter = reporter_to(server)
        reporter.add("s", SinkReport(published=1))
        pid = os.fork()
        if pid == 0:
            reporter.add("s", SinkReport(published=10))
            reporter.add("s", SinkReport(published=100))
            reporter.flush()
            os._exit(0)
        os.waitpid(pid, 0)
        until(lambda: board.snapshot().latest(SinkReport, "s").published == 111)


def test_what_was_counted_while_nobody_listened_arrives_later(board: Board) -> None:
    with serving(board) as server:
        reporter = reporter_to(server)
        reporter.add("s", SinkReport(published=1))
        until(lambda: board.snapshot().latest(SinkReport, "s").published == 1)
        port = int(server.address.rpartition(":")[2])
    key = server.key
    for _ in range(1000):
        reporter.add("s", SinkReport(published=1))
    reporter.report("s", SinkReport(delivery="auto"))
    server = Server("tcp:127.0.0.1", board.serve, port=port)
    server.key = key
    server.open()
    until(
        lambda: (
            board.snapshot().latest(SinkReport, "s").named
            == {"published": 1001, "delivery": "auto"}
        )
    )
    server.close()


def test_a_report_whose_confirmation_is_lost_is_sent_again_and_counted_once(board: Board) -> None:
    broken = [True, True, True]

    def attend(connection: Connection) -> None:
        if broken:
            board._take(connection.recv_bytes())
            broken.pop()
            return
        board.serve(connection)

    server = Server("tcp:127.0.0.1", attend)
    server.open()
    reporter = reporter_to(server)
    for _ in range(100):
        reporter.add("s", SinkReport(published=1))
    until(lambda: not broken)
    reporter.report("s", SinkReport(connected=True))
    until(lambda: board.snapshot().latest(SinkReport, "s").connected)
    assert board.snapshot().latest(SinkReport, "s").published == 100
    server.close()


@pytest.mark.parametrize("way", ["stalled", "closed", "another key"])
def test_a_sender_does_not_wait_for_a_board_that_does_not_answer(board: Board, way: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf, serving(board) as server:
        port = deaf.getsockname()[1]
        if way == "closed":
            deaf.close()
        address = server.address if way == "another key" else f"tcp:127.0.0.1:{port}"
        reporter = Reporter(address, b"no key")
        begun = time.monotonic()
        for n in range(1000):
            reporter.report("s", SinkReport(attempts=n))
        assert time.monotonic() - begun < 60
        begun = time.monotonic()
        reporter.flush()
        assert 0.05 < time.monotonic() - begun < 60
    assert not board.snapshot().of(SinkReport)


def test_flush_returns_once_everything_is_confirmed(board: Board) -> None:
    with serving(board) as server:
        reporter = reporter_to(server)
        reporter.flush()  # nothing was ever sent
        for n in range(100):
            reporter.report(str(n), SinkReport(attempts=n))
        until(lambda: not reporter.flush() and len(board.snapshot().of(SinkReport)) == 100)


@pytest.mark.parametrize("value", [object(), {1: 2}, float("nan"), b"\xff", Path("/x"), 2**70])
def test_a_report_of_anything_never_raises_and_the_next_one_arrives(
    board: Board, value: Any
) -> None:
    with serving(board) as server:
        reporter = reporter_to(server)
        reporter.report("a", SourceReport(current=value))
        reporter.report("a", SourceReport(stopped=True))
        until(lambda: board.snapshot().latest(SourceReport, "a").stopped)


def test_what_is_too_large_is_cut_over_tcp_too(board: Board) -> None:
    with serving(board) as server:
        reporter_to(server).report("a", SourceReport(last_error="x" * 1_000_000, leases=1))
        until(lambda: board.snapshot().latest(SourceReport, "a").leases == 1)
        assert len(board.snapshot().latest(SourceReport, "a").last_error) == 1001
    assert board.ignored == 0


def test_a_reporter_does_not_show_its_key() -> None:
    assert "c0ffee" not in repr(Reporter("tcp:127.0.0.1:1", bytes.fromhex("c0ffee" * 8)))
