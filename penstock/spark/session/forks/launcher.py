"""The program that Spark starts in place of Python: has the fork server fork the process.

Runs as `python -S -I launcher.py SOCKET PYTHON -m MODULE ARGUMENTS` in some 15 ms: it imports only
what is built in. It hands over its arguments, environment, folder and standard files, waits, and
ends with the exit code of the forked worker. When the launcher is ended, the fork server sees its
connection close and ends the worker. Without a fork server it replaces itself by Python.

For a Python that Spark starts by itself, not by a daemon, Spark waits 10 s until it connects, and
has no setting for it. So the launcher connects before it asks for the fork, which may come late on
a busy machine, and hands the connection over.

PySpark's daemon, of which Spark keeps one for each kind of worker, does nothing but fork workers:
the launcher serves as the daemon, in a tenth of the memory.
"""

import _socket
import os
import sys

_DAEMON = ["-m", "pyspark.daemon"]


def main() -> None:
    place, python, *arguments = sys.argv[1:]
    if arguments[:2] == _DAEMON:
        if _can_serve(place):
            _serve(place, arguments)
    elif connection := _fork(place, arguments, (0, 1, 2), connect=True):
        # The worker alone holds the standard files now: their ends are seen when it ends.
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nowhere, number)
        code = connection.recv(4)
        os._exit(int.from_bytes(code, "big") if code else 1)
    os.execv(python, [python, *arguments])  # noqa: S606


def _can_serve(place: str) -> bool:
    """Whether there is a fork server, and Spark uses unix sockets, the only kind known here."""
    if os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED", "").lower() != "true":
        return False
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    found = connection.connect_ex(place)
    connection.close()
    return found == 0


def _serve(place: str, arguments: list[str]) -> None:
    """The protocol of `pyspark.daemon.manager`: prints where it listens, has a worker forked for
    each connection, kills the workers whose process ids it reads, ends with its standard input."""
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
                accepted, _ = listener._accept()  # type: ignore[attr-defined]
                worker = _fork(place, arguments, (nowhere, 1, 2, accepted))
                os.close(accepted)
                if worker is not None:
                    workers[worker.fileno()] = worker
                    poll.register(worker, select.POLLIN)
            else:  # a worker has ended
                poll.unregister(number)
                workers.pop(number).close()


def _kill(message: bytes, path: str) -> None:
    """Kills the worker with this process id; the end of input ends the daemon and its workers."""
    if len(message) < 4:
        os.unlink(path)  # noqa: PTH108 - pathlib takes longer than all of this
        os._exit(0)
    pid = int.from_bytes(message, "big", signed=True)
    try:
        if pid > 0:
            os.kill(pid, 9)
    except OSError:
        pass  # it has ended already


def _connected() -> tuple[int, ...]:
    """The number of a connection to the JVM, if it waits at a unix socket."""
    if not (path := os.environ.get("PYTHON_WORKER_FACTORY_SOCK_PATH")):
        return ()
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.connect(path)
    return (connection.detach(),)


def _fork(
    place: str, arguments: list[str], files: tuple[int, ...], *, connect: bool = False
) -> "_socket.socket | None":
    """A connection to the fork server, which has forked a worker with these files (`connect`: and
    one of `_connected`); or None."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    words = [
        os.getcwd(),  # noqa: PTH109 - pathlib takes longer than all of this
        str(len(arguments)),
        *arguments,
    ]
    request = b"\0".join([
        *map(os.fsencode, words),
        *(name + b"=" + value for name, value in os.environb.items()),
    ])  # fmt: skip
    try:
        connection.connect(place)
        files += _connected() if connect else ()
        numbers = b"".join(number.to_bytes(4, sys.byteorder) for number in files)
        rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)]
        sent = connection.sendmsg([len(request).to_bytes(4, "big")], rights)
        assert sent == 4
        connection.sendall(request)
        return connection if connection.recv(1) else None
    except OSError:
        return None


if __name__ == "__main__":
    main()
