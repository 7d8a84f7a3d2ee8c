"""A stand-in for the Python that Spark starts: has the fork server make the real one.

Runs as `python -S -I standin.py SOCKET PYTHON -m MODULE ARGUMENTS` in some 15 ms: it imports only
what is built in. It hands over its arguments, environment, folder and standard files, waits, and
ends as its twin does. When it is ended, the fork server sees its connection close and ends the
twin. Without a fork server it becomes the real Python.

PySpark's daemon, of which Spark keeps one for each kind of worker, does nothing but fork workers:
the stand-in does its work, without a twin, in a tenth of the memory.
"""

import _socket
import os
import sys

__all__ = ["main"]

_DAEMON = ["-m", "pyspark.daemon"]


def main() -> None:
    """See above."""
    place, python, *arguments = sys.argv[1:]
    if arguments[:2] == _DAEMON and _serves(place):
        _be_daemon(place, arguments)
    connection = _born(place, arguments, (0, 1, 2))
    if connection is None:
        os.execv(python, [python, *arguments])  # noqa: S606
    # The twin alone holds the standard files now: their ends are seen when it ends.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    code = connection.recv(4)
    os._exit(int.from_bytes(code, "big") if code else 1)


def _serves(place: str) -> bool:
    """Whether there is a fork server, and Spark speaks to its daemons as we do."""
    if os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "").lower() != "true":
        return False
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    found = connection.connect_ex(place)
    connection.close()
    return found == 0


def _be_daemon(place: str, arguments: list[str]) -> None:
    """Speaks as `pyspark.daemon.manager`: says where it listens, makes a worker for whoever
    connects, kills those whose process id it reads, and ends with its standard input."""
    import select

    path = f"{os.environ['PYTHON_WORKER_FACTORY_SOCK_DIR']}/.{os.urandom(16).hex()}.sock"
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    listener.bind(path)
    listener.listen(1024)
    os.write(1, len(os.fsencode(path)).to_bytes(4, "big") + os.fsencode(path))
    nowhere = os.open(os.devnull, os.O_RDONLY)
    workers: dict[int, _socket.socket] = {}
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(listener, select.POLLIN)
    while True:
        for number, _ in poll.poll():
            if number == 0:
                _kill(os.read(0, 4), path)
            elif number == listener.fileno():
                asked, _ = listener._accept()  # type: ignore[attr-defined]
                worker = _born(place, arguments, (nowhere, 1, 2, asked))
                os.close(asked)
                if worker is not None:
                    workers[worker.fileno()] = worker
                    poll.register(worker, select.POLLIN)
            else:  # a worker has ended
                poll.unregister(number)
                workers.pop(number).close()


def _kill(said: bytes, path: str) -> None:
    """The worker with this process id; without one ends the daemon, and so its workers."""
    if len(said) < 4:
        os.unlink(path)  # noqa: PTH108 - pathlib takes longer than all of this
        os._exit(0)
    pid = int.from_bytes(said, "big", signed=True)
    try:
        if pid > 0:
            os.kill(pid, 9)
    except OSError:
        pass  # it has ended already


def _born(place: str, arguments: list[str], files: tuple[int, ...]) -> "_socket.socket | None":
    """A connection to the fork server, which has made a twin with these files; or None."""
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
    numbers = b"".join(number.to_bytes(4, sys.byteorder) for number in files)
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)]
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
