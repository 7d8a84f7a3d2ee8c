"""Reading change events with the native kernel, all documents of a page in one call.

It reads the ordinary ones: `changes.Reader` reads every other event, and says what is wrong with a
broken one.
"""

import ctypes
from array import array
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from uuid import UUID

from penstock.model.change import Images
from penstock.native import library
from penstock.wire.changestream.changes import NameRule, Read

_OPERATIONS = ("INSERT", "UPDATE", "REPLACE", "DELETE")
_NUMBERS = 20  # of an event, in events.c


class _Buffer(ctypes.Structure):
    """cursor.h's struct buffer."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_int64), ("room", ctypes.c_int64))


class EventKernel:
    """One decoder's. `tenant`: by the names of the collection alone."""

    def __init__(self, functions: ctypes.CDLL, images: Images, tenant: NameRule) -> None:
        self._functions = functions
        self._json = images == "json"
        self._tenant = tenant

    @classmethod
    def of(cls, images: Images, tenant: NameRule | None, *, flatten: bool) -> "EventKernel | None":
        """None without the native library, or for what only Python does."""
        if (functions := library()) is None or tenant is None or flatten:
            return None
        pointer, number = ctypes.c_void_p, ctypes.c_int32
        functions.penstock_bson_read.argtypes = [
            ctypes.c_char_p, pointer, ctypes.c_int64, number, pointer, pointer,
        ]  # fmt: skip
        functions.penstock_bson_read.restype = number
        functions.penstock_bson_free.argtypes = [pointer]
        functions.penstock_bson_free.restype = None
        return cls(functions, images, tenant)

    def read(self, payload: bytes, documents: Sequence[tuple[int, int]]) -> list[Read | None]:
        """The change of each document (start, stop); None: `changes.Reader` reads it."""
        spans = array("q", chain.from_iterable(documents))
        count, written = len(documents), _Buffer()
        found = array("q", bytes(8 * _NUMBERS * count))
        try:
            failed = self._functions.penstock_bson_read(
                payload, spans.buffer_info()[0], count, self._json, found.buffer_info()[0],
                ctypes.byref(written),
            )  # fmt: skip
            if failed:
                return [None] * count
            out = ctypes.string_at(written.data, written.size) if written.data else b""
        finally:
            self._functions.penstock_bson_free(ctypes.byref(written))
        return list(self._reads(found.tolist(), payload, out))

    def _reads(self, found: list[int], payload: bytes, out: bytes) -> Iterator[Read | None]:
        tenant = self._tenant
        for at in range(0, len(found), _NUMBERS):
            (
                operation, db, db_end, coll, coll_end, text, text_end, key, key_end,
                before, before_end, after, after_end, delta, delta_end,
                session, transaction, has_wall, wall, cluster,
            ) = found[at : at + _NUMBERS]  # fmt: skip
            if operation < 0:
                yield None
                continue
            database = _name(payload[db:db_end]) if db >= 0 else None
            collection = _name(payload[coll:coll_end]) if coll >= 0 else None
            is_part = session >= 0 and transaction >= 0
            yield Read(
                _OPERATIONS[operation],
                tenant(database, collection),
                database,
                collection,
                out[text:text_end].decode(),
                out[key:key_end],
                out[before:before_end] if before >= 0 else None,
                out[after:after_end] if after >= 0 else None,
                out[delta:delta_end] if delta >= 0 else None,
                _transaction(payload[session : session + 16], transaction) if is_part else None,
                wall * 1000 if has_wall else cluster * 1_000_000 if cluster >= 0 else None,
            )


@lru_cache(1000)
def _name(raw: bytes) -> str:
    return raw.decode()


@lru_cache(1000)
def _transaction(session: bytes, number: int) -> str:
    return f"{UUID(bytes=session)}/{number}"
