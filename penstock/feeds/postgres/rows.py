"""The answer to COPY TO STDOUT: its bytes, and rows as pages of the log or as lines.

libpq hands out one row a call, which costs more than the row; on a plain connection its socket is
read in bulk, as `transport` does for the log. COPY's text and pgoutput's are the output of the same
functions. A row of the one, wrapped as an Insert message of the other, is byte for byte what the
log has of it. For tables of PostgreSQL the lines are taken as they are.
"""

import ctypes
import os
import re
import socket
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

import psycopg
from psycopg import pq, sql

from penstock.feeds.postgres.connect import Ended, PatientConnection
from penstock.feeds.postgres.failures import backend_error, translating
from penstock.model.errors import Malformed, Unavailable
from penstock.model.page import Page
from penstock.model.position import PartitionId, Place
from penstock.native import library
from penstock.wire.pgoutput.context import Context, TypeEntry

_CHUNK = 2**20  # bytes that are read at a time, at most
_HEADER = struct.Struct(">cI")
_LOOK = 0.1  # seconds between two looks whether it is stopped
_END = _HEADER.pack(b"c", 4) + _HEADER.pack(b"Z", 5) + b"T"


def copied(connection: PatientConnection, query: sql.Composed, what: str) -> Iterator[bytes]:
    """Runs a COPY TO STDOUT, and yields the messages that answer it, cut anywhere, up to
    ReadyForQuery. Who reads no further closes the connection. Raises Unavailable, SettingsError."""
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
                raise Unavailable("the server closed the connection", "postgres")
            connection.check(deadline)
            yield data
            deadline = time.monotonic() + connection.patience


def _through_libpq(connection: PatientConnection, query: bytes) -> Iterator[bytes]:
    wire = connection.pgconn
    wire.send_query(query)
    deadline = time.monotonic() + connection.patience
    while wire.flush() or wire.is_busy():
        wait([wire.socket], _LOOK)
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
            wait([wire.socket], _LOOK)
            wire.consume_input()
        connection.check(deadline)


def _must(result: "pq.abc.PGresult | None", status: pq.ExecStatus) -> None:
    if result is None:
        raise Unavailable("the server ended the statement", "postgres")
    if result.status != status:
        raise psycopg.errors.error_from_result(result)


_NULL = b"\\N"
_ESCAPE = re.compile(rb"\\(.)", re.DOTALL)
# COPY's escapes (copyto.c, CopyAttributeOutText); any other character stands for itself.
_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
# CopyData `d` and its length, XLogData `w` and 24 bytes of LSNs and time.
_FRAME = struct.Struct(">cIc24x")
_HEADS = [_HEADER.pack(b"t", size) for size in range(256)]
_SPARE = 2**16  # bytes of the output's buffer beyond the size of a page

# What `take` answers: a message is not whole; is no row; the page is full; a row is broken.
_MORE, _OTHER, _FULL, _BROKEN = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPages:
    """What all pages of a snapshot's rows have in common. `relation` is the Relation message, from
    `R`; `place` where the rows are: the first place after the snapshot."""

    partition: PartitionId
    place: Place
    relation: bytes
    columns: int
    types: dict[int, TypeEntry]
    key: tuple[str, ...]
    lsn: int
    taken_at: int

    def page(self, payload: bytes, count: int) -> Page:
        oid = int.from_bytes(self.relation[1:5], "big")
        context = Context(
            commit_lsn=self.lsn,
            committed_at=self.taken_at,
            relations=(self.relation,),
            types=self.types,
            keys={oid: self.key} if self.key else {},
        )
        return Page(
            partition=self.partition,
            first=self.place,
            last=self.place._replace(ordinal=count - 1),
            count=count,
            captured_at=self.taken_at,
            context=context.pack(),
            payload=payload,
        )


class CopyFramer:
    """The messages that answer COPY TO STDOUT -> pieces: bytes, and how many rows they are.
    `is_over` once the server is ready for the next statement."""

    def __init__(self, wrapper: "_InPython | _Native", what: str) -> None:
        self.is_over = False
        self._wrapper, self._what = wrapper, what
        self._pieces: list[bytes] = []
        self._lacking = 0  # bytes until the next message is whole

    def feed(self, data: bytes) -> Iterator[tuple[bytes, int]]:
        """Takes bytes, cut anywhere; yields the pieces that they complete, and at the end the rest.
        Raises Malformed, and what an ErrorResponse says."""
        self._pieces.append(data)
        self._lacking -= len(data)
        if self._lacking > 0:
            return
        data, position = b"".join(self._pieces), 0
        while not self.is_over:
            answer, position = self._wrapper.take(data, position)
            if answer == _FULL:
                yield from self._flush()
                continue
            if answer == _BROKEN:
                raise Malformed(
                    f"{self._what}: a row of COPY has another form or other columns", "postgres"
                )
            if len(data) - position < _HEADER.size:
                self._lacking = _HEADER.size - (len(data) - position)
                break
            tag, length = _HEADER.unpack_from(data, position)
            self._lacking = 1 + length - (len(data) - position)
            if self._lacking > 0:
                break
            self._other(tag, data[position + _HEADER.size : position + 1 + length])
            position += 1 + length
        self._pieces = [data[position:]]
        if self.is_over:
            yield from self._flush()

    def _other(self, tag: bytes, body: bytes) -> None:
        if tag == b"E":
            raise backend_error(body, self._what)
        if tag not in b"HNSAcCZ":
            raise Malformed(f"{self._what}: the server answered COPY with {tag!r}", "postgres")
        self.is_over = tag == b"Z"

    def _flush(self) -> Iterator[tuple[bytes, int]]:
        payload, count = self._wrapper.flush()
        if count:
            yield payload, count


def row_framer(pages: RowPages, *, rows: int, size: int, what: str) -> CopyFramer:
    """Pieces are payloads of pages, of at most `rows` rows and about `size` bytes."""
    head = b"I" + pages.relation[1:5] + b"N" + struct.pack(">H", pages.columns)
    functions = library()
    if functions is None:
        return CopyFramer(_InPython(head, pages.columns, rows, size), what)
    head = _FRAME.pack(b"d", 0, b"w") + head
    return CopyFramer(_Native(functions.penstock_copy_rows, head, pages.columns, rows, size), what)


def line_framer(prefix: bytes, *, size: int, what: str) -> CopyFramer:
    """Pieces are lines for COPY FROM STDIN, `prefix` before each, of about `size` bytes."""
    functions = library()
    if functions is None:
        return CopyFramer(_InPython(prefix, None, sys.maxsize, size), what)
    return CopyFramer(
        _Native(functions.penstock_copy_lines, prefix, len(prefix), sys.maxsize, size), what
    )


class _InPython:
    """The reference, and the way without the native library. No `columns`: rows stay lines."""

    def __init__(self, head: bytes, columns: int | None, rows: int, size: int) -> None:
        self._head, self._columns, self._rows, self._size = head, columns, rows, size
        self._messages: list[bytes] = []
        self._total = 0

    def take(self, data: bytes, position: int) -> tuple[int, int]:
        """Wraps the rows from `position` on; why it stopped, and where."""
        while len(data) - position >= _HEADER.size:
            tag, length = _HEADER.unpack_from(data, position)
            stop = position + 1 + length
            if tag != b"d":
                return _OTHER, position
            if stop > len(data):
                break
            if len(self._messages) >= self._rows or self._total >= self._size:
                return _FULL, position
            message = self._message(data[position + _HEADER.size : stop])
            if not message:
                return _BROKEN, position
            self._messages.append(message)
            self._total += len(message)
            position = stop
        return _MORE, position

    def _message(self, line: bytes) -> bytes:
        """What a row becomes; b"" where it is none."""
        if line[-1:] != b"\n":
            return b""
        if self._columns is None:
            return self._head + line
        values = line[:-1].split(b"\t") if self._columns else []
        if len(values) != self._columns:
            return b""
        body = self._head + _cells(values)
        return _FRAME.pack(b"d", 29 + len(body), b"w") + body

    def flush(self) -> tuple[bytes, int]:
        """The messages that were made, and how many they are; begins anew."""
        messages, self._messages, self._total = self._messages, [], 0
        return b"".join(messages), len(messages)


class _Copied(ctypes.Structure):
    """`struct copied` of native/copy.c."""

    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in ("position", "end", "written", "room", "size", "rows", "most")
    )


class _Native:
    """The same in C, by a function of native/copy.c. `number`: its last argument."""

    def __init__(self, wrap: Any, head: bytes, number: int, rows: int, size: int) -> None:
        self._wrap = wrap
        self._wrap.restype = ctypes.c_int32
        self._wrap.argtypes = [
            ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32,
        ]  # fmt: skip
        self._head, self._number = head, number
        self._state = _Copied(size=size, most=rows)
        self._make_room(size + _SPARE)

    def _make_room(self, room: int) -> None:
        self._out, self._state.room = bytearray(room), room
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._out))

    def take(self, data: bytes, position: int) -> tuple[int, int]:
        state = self._state
        state.position, state.end = position, len(data)
        while True:
            answer = self._wrap(data, ctypes.byref(state), self._address, self._head, self._number)
            if answer != _FULL or state.rows:
                return int(answer), int(state.position)
            # One row that is larger than a page.
            _, length = _HEADER.unpack_from(data, state.position)
            self._make_room(length + 5 * self._number + _SPARE)

    def flush(self) -> tuple[bytes, int]:
        state = self._state
        count, payload = int(state.rows), bytes(memoryview(self._out)[: state.written])
        state.rows = state.written = 0
        return payload, count


def _cells(values: list[bytes]) -> bytes:
    parts: list[bytes] = []
    for value in values:
        if value == _NULL:
            parts.append(b"n")
            continue
        if b"\\" in value:
            value = _ESCAPE.sub(_unescaped, value)  # noqa: PLW2901
        size = len(value)
        parts += [_HEADS[size] if size < len(_HEADS) else _HEADER.pack(b"t", size), value]
    return b"".join(parts)


def _unescaped(match: "re.Match[bytes]") -> bytes:
    return _ESCAPES.get(match[1], match[1])
