"""Hash partitions: a stable number for each document, by which consumers share a stream.

FNV-1a (64 bit, unsigned) over the UTF-8 of `collection/document_id`, modulo how many there are. All
changes of a document have one number. A change without a document id has 0.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.model.page import Decoder, DecoderAround, Page
from penstock.native import NativeColumn, library

MOST = 1024
_OFFSET, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
_SLASH = np.uint64(ord("/"))


class HashingDecoder(DecoderAround):
    """A `page.Decoder` that sets the column `route`, around a feed's own that leaves it null."""

    def __init__(self, decoder: Decoder, count: int) -> None:
        super().__init__(decoder)
        self.count = count

    def __reduce__(self) -> tuple[Any, ...]:
        return HashingDecoder, (self.decoder, self.count)

    def decode(self, page: Page) -> Sequence[pa.RecordBatch]:
        return [routed(batch, self.count) for batch in self.decoder.decode(page)]


def hashing(decoder: Decoder, count: int) -> Decoder:
    """The decoder for `count` hash partitions. With one, the column stays null."""
    return decoder if count == 1 else HashingDecoder(decoder, count)


def routed(batch: pa.RecordBatch, count: int) -> pa.RecordBatch:
    numbers = hash_partitions(batch.column("collection"), batch.column("document_id"), count)
    at = batch.schema.get_field_index("route")
    return batch.set_column(at, batch.schema.field(at), numbers)


def hash_partitions(collection: Any, document: Any, count: int) -> Any:
    """An int32 column: of each row of two text columns the hash partition, 0 to before `count`."""
    if (function := _function()) is None:
        return hash_partitions_plainly(collection, document, count)
    rows = len(document)
    numbers = np.empty(rows, np.int32)
    columns = NativeColumn.of(collection), NativeColumn.of(document)
    function(*map(ctypes.byref, columns), rows, count, numbers.ctypes.data)
    return pa.array(numbers)


def hash_partitions_plainly(collection: Any, document: Any, count: int) -> Any:
    """The same with NumPy: the reference, and what runs without the native library."""
    start = np.full(len(document), _OFFSET)
    with np.errstate(over="ignore"):
        hashes = (_hashed(start, collection) ^ _SLASH) * _PRIME
        hashes = _hashed(hashes, document)
    numbers = (hashes % np.uint64(count)).astype(np.int32)
    numbers[np.asarray(document.is_null())] = 0
    return pa.array(numbers)


def _hashed(hashes: "np.ndarray[Any, np.dtype[np.uint64]]", column: Any) -> Any:
    """FNV-1a over each row's bytes, from a hash for each: the first byte of all rows first."""
    _, ends, data = column.buffers()
    if data is None:
        return hashes
    bounds = np.frombuffer(ends, np.int32, len(column) + 1, 4 * column.offset)
    starts, sizes = bounds[:-1], np.diff(bounds)
    sizes = np.where(np.asarray(column.is_null()), 0, sizes)
    text, hashes = np.frombuffer(data, np.uint8), hashes.copy()
    rows = np.flatnonzero(sizes)
    at = 0
    while rows.size:
        hashes[rows] = (hashes[rows] ^ text[starts[rows] + at]) * _PRIME
        at += 1
        rows = rows[sizes[rows] > at]
    return hashes


@cache
def _function() -> Any:
    found = library()
    if (function := getattr(found, "penstock_hash_partitions", None)) is not None:
        pointer = ctypes.c_void_p
        function.restype = None
        function.argtypes = [pointer, pointer, ctypes.c_int64, ctypes.c_int32, pointer]
    return function
