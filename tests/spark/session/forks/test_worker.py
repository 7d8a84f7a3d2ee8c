"""What a launcher sends to the fork server, over a socket."""

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from penstock.spark.session.forks.worker import ForkRequest

WORDS = [
    b"/folder",
    b"4",
    b"-m",
    b"pyspark.worker",
    b"a",
    b"b",
    b"LONG=" + b"x" * 100_000,
    b"LAST=1",
]


def received(pieces: list[bytes]) -> ForkRequest:
    """What arrives when the launcher is stopped between the pieces."""
    text = b"".join(pieces)
    files = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
    ours, theirs = socket.socketpair()

    def send() -> None:
        socket.send_fds(theirs, [len(text).to_bytes(4, "big")], files)
        for piece in pieces:
            theirs.sendall(piece)
            time.sleep(0.1)
        theirs.close()

    sending = threading.Thread(target=send)
    sending.start()
    ours.settimeout(20)
    try:
        return ForkRequest.receive(ours)
    finally:
        sending.join()
        ours.close()
        for number in files:
            os.close(number)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_an_environment_that_comes_in_pieces_is_whole() -> None:
    text = b"\0".join(WORDS)
    request = received([text[:70_000], text[70_000:]])
    request.close()
    assert (request.folder, request.module) == ("/folder", "pyspark.worker")
    assert request.arguments == ("a", "b")
    assert set(request.environment) == {"LONG", "LAST"}
    assert len(request.environment["LONG"]) == 100_000


def test_a_launcher_that_ends_in_the_middle_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    files = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
    before = open_files()
    socket.send_fds(theirs, [(100).to_bytes(4, "big")], files)
    theirs.sendall(b"half")
    theirs.close()
    with pytest.raises(OSError, match="middle"):
        ForkRequest.receive(ours)
    ours.close()
    assert open_files() == before - 2, "no file is left open"
    for number in files:
        os.close(number)
