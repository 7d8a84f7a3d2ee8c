"""A stand-in for the Python that Spark starts: has the fork server make the real one.

Runs as `python -S -I standin.py SOCKET PYTHON -m MODULE ARGUMENTS` in some 15 ms: it imports only
what is built in. It hands over its arguments, environment, folder and standard files, waits, and
ends as its twin does. When it is ended, the fork server sees its connection close and ends the
twin. Without a fork server it becomes the real Python.
"""

import _socket
import os
import sys

__all__ = ["main"]


def main() -> None:
    """See above."""
    place, python, *arguments = sys.argv[1:]
    connection = _born(place, arguments)
    if connection is None:
        os.execv(python, [python, *arguments])  # noqa: S606
    # The twin alone holds the standard files now: their ends are seen when it ends.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    code = connection.recv(4)
    os._exit(int.from_bytes(code, "big") if code else 1)


def _born(place: str, arguments: list[str]) -> "_socket.socket | None":
    """A connection to the fork server, which has made a twin; or None."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    words = [
        os.getcwd(),  # noqa: PTH109 - pathlib takes longer than all of this
        str(len(arguments)),
        *arguments,
    ]
    told = b"\0".join([
        *map(os.fsencode, words),
        *(name + b"=" + value for name, value in os.environb.items()),
    ])  # fmt: skip
    files = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, files)]
    try:
        connection.connect(place)
        sent = connection.sendmsg([len(told).to_bytes(4, "big")], rights)
        assert sent == 4
        connection.sendall(told)
        return connection if connection.recv(1) else None
    except OSError:
        return None


if __name__ == "__main__":
    main()
