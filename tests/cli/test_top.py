"""`penstock top` in a terminal: its keys, and the terminal as it was afterwards."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from penstock.cli.screens import ORDERS
from penstock.cli.status import Viewing
from penstock.model.settings import Secret
from penstock.ops.reports import TableStatus
from penstock.ops.requests import Access, Endpoint, OpsRequest, refused
from penstock.ops.server import OpsServer
from tests.service.test_dashboard import Served

_LEFT = b"\x1b[?1049l"  # the alternate screen


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    found = Served(tmp_path, token=Secret("key"))
    with found.server:
        yield found
    found.actions.close()


class Terminal:
    """`penstock top` in a pseudo-terminal of its own."""

    def __init__(self, url: str, *more: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.theirs, self.before = theirs, termios.tcgetattr(theirs)
        command = [sys.executable, "-m", "penstock", "top", url, *more]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
            env={**os.environ, "TERM": "xterm"},
            preexec_fn=lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0),
        )  # fmt: skip
        self.output = b""

    def press(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def wait_for(self, text: str) -> None:
        """Until it is drawn, after what was waited for before."""
        deadline, seen = time.monotonic() + 60, len(self.output)
        while text.encode() not in self.output[seen:]:
            assert time.monotonic() < deadline, self.output[seen:]
            self._read(0.1)

    def end(self) -> int:
        deadline = time.monotonic() + 60
        while self.process.poll() is None:
            assert time.monotonic() < deadline
            self._read(0.1)
        self._read(0.0)
        return self.process.returncode

    def is_as_before(self) -> bool:
        return termios.tcgetattr(self.theirs) == self.before and self.output.rstrip().endswith(
            _LEFT
        )

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self.theirs)

    def _read(self, seconds: float) -> None:
        while select.select([self._ours], [], [], seconds)[0]:
            self.output += os.read(self._ours, 65536)
            seconds = 0.0


@pytest.fixture
def terminal(served: Served) -> Iterator[Terminal]:
    found = Terminal(served.server.url, "--token", "key")
    yield found
    found.close()


def test_keys_choose_screens_and_q_ends_it(terminal: Terminal) -> None:
    terminal.wait_for("overview")
    assert termios.tcgetattr(terminal.theirs) != terminal.before
    terminal.press("3")
    terminal.wait_for("no tables are known yet")
    terminal.press("\t")
    terminal.wait_for("no snapshot ran")
    terminal.press("?")
    terminal.wait_for("the next order of its rows")
    terminal.press("q")
    assert terminal.end() == 0
    assert terminal.is_as_before()


def test_what_is_longer_than_the_terminal_scrolls(served: Served, terminal: Terminal) -> None:
    for number in range(60):
        table = f"public.t{number:02}"
        served.board.post(f"a/{table}", TableStatus(backend="a", table=table, state="following"))
    terminal.wait_for("overview")
    terminal.press("3")
    terminal.wait_for("1-23/62")
    assert b"public.t00" in terminal.output
    terminal.press("G")
    terminal.wait_for("40-62/62")
    assert b"public.t59" in terminal.output
    terminal.press("\x1b[A\x1b[A\x1b[5~")
    terminal.wait_for("16-38/62")
    terminal.press("2")
    terminal.press("3")
    terminal.wait_for("1-23/62")
    terminal.press("q")
    assert terminal.end() == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
def test_a_signal_leaves_the_terminal_as_it_was(terminal: Terminal, number: int, code: int) -> None:
    terminal.wait_for("overview")
    os.kill(terminal.process.pid, number)
    assert terminal.end() == code
    assert terminal.is_as_before()


def test_it_leaves_the_screen_where_it_is_suspended(terminal: Terminal) -> None:
    """Without a shell above it nothing stops it: it goes on at once."""
    terminal.wait_for("overview")
    terminal.press("\x1a")
    terminal.wait_for(_LEFT.decode())
    terminal.wait_for("overview")
    terminal.press("q")
    assert terminal.end() == 0
    assert terminal.is_as_before()


def test_an_error_leaves_the_terminal_as_it_was(served: Served, terminal: Terminal) -> None:
    terminal.wait_for("overview")
    served.server.close()
    access = Access(token=Secret("key"), read_token=Secret("another"))
    port = served.server.port
    with OpsServer(port=port, access=access, endpoints=[Endpoint("/status", "GET", refuse)]):
        assert terminal.end() == 2
    assert termios.tcgetattr(terminal.theirs) == terminal.before
    assert b"this is an error" in terminal.output.rpartition(_LEFT)[2]


def refuse(_: OpsRequest) -> Response:
    return refused(403, "refused", "this is an error")


def test_without_a_server_it_waits_for_one(served: Served, terminal: Terminal) -> None:
    terminal.wait_for("overview")
    served.server.close()
    terminal.wait_for("no ops server answers")
    terminal.press("q")
    assert terminal.end() == 0


def pressed(*keys: str) -> Any:
    viewing = Viewing()
    for key in keys:
        viewing.press(key)
    return viewing


def test_digits_and_tab_go_from_screen_to_screen() -> None:
    assert pressed("3").screen == "tables"
    assert pressed("9", "0", "x").screen == "overview"
    assert pressed("\t", "\t").screen == "tables"
    assert pressed("5", "\t").screen == "overview"


def test_s_goes_through_the_orders_of_a_screen() -> None:
    orders = list(ORDERS["tables"])
    assert [pressed("3", *"s" * n).order for n in range(len(orders) + 1)] == [*orders, orders[0]]
    assert pressed("3", "s", "2").order == next(iter(ORDERS["sources"]))
    assert pressed("3", "s", "2", "3").order == orders[1]


def test_keys_scroll_and_another_screen_begins_at_its_first_line() -> None:
    assert pressed("j", "j", "\x1b[B", "k").first == 2
    assert pressed("k", "x", "\x1b").first == 0
    assert pressed("j", "s", "?").first == 1
    assert pressed("G", "\x1b[H").first == 0
    assert pressed("j", "3").first == 0


def test_a_question_mark_shows_the_keys_until_another_one() -> None:
    assert pressed("?").helps
    assert not pressed("?", "?").helps
    assert not pressed("?", "3").helps
