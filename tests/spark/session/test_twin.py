"""What a stand-in tells the fork server, over a socket."""

import os
import socket
import threading
import time
from pathlib import Path

import pytest

from penstock.spark.session.twin import Twin

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


def spoken(pieces: list[bytes]) -> Twin:
    """What arrives when the stand-in is stopped between the pieces."""
    told = b"".join(pieces)
    files = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
    ours, theirs = socket.socketpair()

    def speak() -> None:
        socket.send_fds(theirs, [len(told).to_bytes(4, "big")], files)
        for piece in pieces:
            theirs.sendall(piece)
            time.sleep(0.1)
        theirs.close()

    speaking = threading.Thread(target=speak)
    speaking.start()
    ours.settimeout(20)
    try:
        return Twin.receive(ours)
    finally:
        speaking.join()
        ours.close()
        for number in files:
            os.close(number)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_an_environment_that_comes_in_pieces_is_whole() -> None:
    told = b"\0".join(WORDS)
    twin = spoken([told[:70_000], told[70_000:]])
    twin.close()
    assert (twin.folder, twin.module) == ("/folder", "pyspark.worker")
    assert twin.arguments == ("a", "b")
    assert set(twin.environment) == {"LONG", "LAST"}
    assert len(twin.environment["LONG"]) == 100_000


def test_a_stand_in_that_ends_in_the_middle_is_an_error() -> None:
    ours, theirs = socket.socketpair()
    files = [os.open(os.devnull, os.O_RDWR) for _ in range(3)]
    before = open_files()
    socket.send_fds(theirs, [(100).to_bytes(4, "big")], files)
    theirs.sendall(b"half")
    theirs.close()
    with pytest.raises(OSError, match="middle"):
        Twin.receive(ours)
    ours.close()
    assert open_files() == before - 2, "no file is left open"
    for number in files:
        os.close(number)
