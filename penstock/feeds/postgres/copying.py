"""The answer to COPY TO STDOUT as bytes: messages of the server, as many as one system call brings.

libpq hands out one row a call, which costs more than the row; on a plain connection its socket is
read in bulk, as `transport` does for the log. A connection with TLS is read through libpq, and
looks the same from outside.
"""

import os
import select
import socket
import struct
import time
from collections.abc import Iterator

import psycopg
from psycopg import pq, sql

from penstock.feeds.postgres.connect import Ended, PatientConnection
from penstock.feeds.postgres.failures import translating
from penstock.model.errors import Unavailable

_CHUNK = 2**20  # bytes that are read at a time, at most
_HEADER = struct.Struct(">cI")
_LOOK = 0.1  # seconds between two looks whether it is stopped
_END = _HEADER.pack(b"c", 4) + _HEADER.pack(b"Z", 5) + b"T"


def copied(connection: PatientConnection, query: sql.Composed, what: str) -> Iterator[bytes]:
    """Runs a COPY TO STDOUT, and yields the messages that answer it, cut anywhere; the last is
    ReadyForQuery. A caller that reads no further closes the connection. Raises Unavailable,
    SettingsError."""
    read = _through_libpq if connection.pgconn.ssl_in_use else _from_socket
    with translating(what):
        try:
            yield from read(connection, query.as_bytes(None))
        except Ended:
            connection.give_up()
            raise


def _from_socket(connection: PatientConnection, query: bytes) -> Iterator[bytes]:
    with socket.socket(fileno=os.dup(connection.pgconn.socket)) as wire:
        wire.settimeout(_LOOK)
        wire.sendall(_HEADER.pack(b"Q", len(query) + 5) + query + b"\0")
        deadline = time.monotonic() + connection.patience
        while True:
            try:
                data = wire.recv(_CHUNK)
            except TimeoutError:
                connection.check(deadline)
                continue
            if not data:
                raise Unavailable("the server closed the connection")
            connection.check(deadline)
            yield data
            deadline = time.monotonic() + connection.patience


def _through_libpq(connection: PatientConnection, query: bytes) -> Iterator[bytes]:
    wire = connection.pgconn
    wire.send_query(query)
    deadline = time.monotonic() + connection.patience
    while wire.flush() or wire.is_busy():
        select.select([wire.socket], [], [], _LOOK)
        wire.consume_input()
        connection.check(deadline)
    _must(wire.get_result(), pq.ExecStatus.COPY_OUT)
    while True:
        data: list[bytes] = []
        size = length = 0
        while size < _CHUNK:
            length, row = wire.get_copy_data(1)
            if length <= 0:
                break
            data += (_HEADER.pack(b"d", length + 4), bytes(row))
            size += length
        if data:
            yield b"".join(data)
            deadline = time.monotonic() + connection.patience
        if length < 0:
            _must(wire.get_result(), pq.ExecStatus.COMMAND_OK)
            while wire.get_result() is not None:
                pass
            yield _END
            return
        if not length:
            select.select([wire.socket], [], [], _LOOK)
            wire.consume_input()
        connection.check(deadline)


def _must(result: "pq.abc.PGresult | None", status: pq.ExecStatus) -> None:
    if result is None:
        raise Unavailable("the server ended the statement")
    if result.status != status:
        raise psycopg.errors.error_from_result(result)
