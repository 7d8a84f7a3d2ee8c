"""Transactions that are still in progress, collected per top-level xid until they end.

Held in bounded memory; what is more goes to files that have no name, so that they are gone with
the process, however it ends. An aborted transaction vanishes, an aborted subtransaction's rows are
left out when the rest is delivered.
"""

import tempfile
from collections import deque
from pathlib import Path
from typing import IO

from penstock.model.errors import Unavailable

_PIECE = 2**20


class StreamedTransaction:
    """One transaction's messages as they came, oldest first: a file, then pieces in memory.

    `aborted` are the raw xids of subtransactions that were rolled back; `current` the raw OIDs of
    relations whose latest description came in this stream.
    """

    __slots__ = ("_file", "_folder", "_parts", "aborted", "current", "held", "spilled")

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._parts: deque[bytes] = deque()
        self._file: IO[bytes] | None = None
        self.held = 0
        self.spilled = 0
        self.aborted: set[bytes] = set()
        self.current: set[bytes] = set()

    def append(self, piece: bytes) -> None:
        """Holds whole messages in memory."""
        self._parts.append(piece)
        self.held += len(piece)

    def spill(self) -> int:
        """Moves what is held to the file; returns its bytes. Raises Unavailable."""
        moved = self.held
        try:
            if self._file is None:
                # Not a context manager: the file lives as long as the transaction.
                self._file = tempfile.TemporaryFile(dir=self._folder, buffering=0)  # noqa: SIM115
            view = memoryview(b"".join(self._parts))
            while view:
                view = view[self._file.write(view) :]
        except OSError as error:
            raise Unavailable(
                f"cannot write an in-progress transaction to a file: {error.strerror}",
                hint="make room in the folder of `spill`, or raise `memory`",
            ) from error
        self._parts.clear()
        self.held = 0
        self.spilled += moved
        return moved

    def rewind(self) -> None:
        """Before the first `read`; nothing is appended any more."""
        if self._file is not None:
            self._file.seek(0)

    def read(self, least: int) -> bytes:
        """The next bytes, some `least` or more unless the stream ends; cut anywhere. b"" = end."""
        pieces: list[bytes] = []
        size = 0
        wanted = max(least, _PIECE)
        while size < wanted and (piece := self._piece(wanted - size)):
            pieces.append(piece)
            size += len(piece)
        return b"".join(pieces)

    def _piece(self, most: int) -> bytes:
        if self._file is not None:
            if data := self._file.read(most):
                return data
            self._file.close()
            self._file = None
        if not self._parts:
            return b""
        piece = self._parts.popleft()
        self.held -= len(piece)
        return piece

    def close(self) -> None:
        """Forgets everything."""
        self._parts.clear()
        self.held = 0
        if self._file is not None:
            self._file.close()
            self._file = None


class Streams:
    """All transactions in progress; together they hold at most `memory` bytes, about: `held` now,
    and `spilled` ever went to files."""

    def __init__(self, *, memory: int, folder: Path | None = None) -> None:
        self._memory = memory
        self._folder = folder
        self._streams: dict[int, StreamedTransaction] = {}
        self.held = 0
        self.spilled = 0

    def __len__(self) -> int:
        return len(self._streams)

    def append(self, xid: int, piece: bytes) -> None:
        """Whole messages of the transaction `xid`, rows of its subtransactions among them."""
        if not piece:
            return
        stream = self._streams.get(xid)
        if stream is None:
            stream = self._streams[xid] = StreamedTransaction(self._folder)
        stream.append(piece)
        self.held += len(piece)
        while self.held > self._memory:
            largest = max(self._streams.values(), key=lambda each: each.held)
            moved = largest.spill()
            self.held -= moved
            self.spilled += moved

    def described(self, xid: int, oid: bytes) -> None:
        """The stream of `xid` now has the latest description of this relation."""
        if xid in self._streams:
            self._streams[xid].current.add(oid)

    def outdated(self, oid: bytes) -> None:
        """A description of this relation came outside of all streams."""
        for stream in self._streams.values():
            stream.current.discard(oid)

    def abort(self, xid: int, subxid: int) -> None:
        """A transaction (both equal) or one of its subtransactions was rolled back."""
        if xid == subxid:
            self.take(xid).close()
        elif xid in self._streams:
            self._streams[xid].aborted.add(subxid.to_bytes(4, "big"))

    def take(self, xid: int) -> StreamedTransaction:
        """The transaction `xid`, which is no longer in progress; empty if nothing of it came."""
        stream = self._streams.pop(xid, None) or StreamedTransaction(self._folder)
        self.held -= stream.held
        stream.rewind()
        return stream

    def close(self) -> None:
        """Forgets everything."""
        for xid in list(self._streams):
            self.take(xid).close()
