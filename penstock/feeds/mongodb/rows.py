"""Documents of a collection as pages of the change stream: what a snapshot reads goes through the
decoder of changes, each document as the event of its insertion. Pure.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import bson
from bson.raw_bson import RawBSONDocument

from penstock.feeds.mongodb.cluster import stamp_of
from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.model.position import PartitionId, Place
from penstock.wire.changestream.events import RAW, element

_LENGTH = struct.Struct("<i")
_ID = b"_id\0"
_STRING = 2
# BSON types of a fixed size that an `_id` usually has.
_SIZES = {1: 8, 7: 12, 8: 1, 9: 8, 16: 4, 17: 8, 18: 8, 19: 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentPages:
    """What all pages of a snapshot have in common. `place`: the first one after the snapshot;
    `time`: its cluster time."""

    partition: PartitionId
    place: Place
    time: int
    database: str
    collection: str
    taken_at: int

    def pages(self, batches: Iterator[bytes], rows: int, size: int) -> Iterator[Page]:
        """Pages of at most `rows` documents and about `size` bytes of these, which come in runs."""
        parts: list[bytes] = []
        head, total = self._head(), 0
        for batch in batches:
            for document in documents(batch):
                if len(parts) >= rows or (parts and total + len(document) > size):
                    yield self._page(parts)
                    parts, total = [], 0
                parts.append(element(_event(head, document)))
                total += len(document)
        if parts:
            yield self._page(parts)

    def _head(self) -> bytes:
        """The fields that all events have in common."""
        event = {
            "_id": {"_data": "00"},
            "operationType": "insert",
            "clusterTime": stamp_of(self.time),
            "ns": {"db": self.database, "coll": self.collection},
        }
        return bson.encode(event)[4:-1]

    def _page(self, parts: list[bytes]) -> Page:
        return Page(
            partition=self.partition,
            first=self.place,
            last=self.place._replace(ordinal=len(parts) - 1),
            count=len(parts),
            captured_at=self.taken_at,
            context=b"",
            payload=b"".join(parts),
        )


def documents(batch: bytes) -> Iterator[bytes]:
    """The documents of a run of them. Raises Malformed."""
    at = 0
    while at < len(batch):
        stop = at + (_LENGTH.unpack_from(batch, at)[0] if at + 5 <= len(batch) else 0)
        if not at + 5 <= stop <= len(batch):
            raise Malformed(f"a batch of documents is broken at byte {at}")
        yield batch[at:stop]
        at = stop


def _event(head: bytes, document: bytes) -> bytes:
    key = id_element(document)
    body = b"".join((head, b"\x03documentKey\0", _document(key), b"\x03fullDocument\0", document))
    return _document(body)


def _document(elements: bytes) -> bytes:
    return _LENGTH.pack(len(elements) + 5) + elements + b"\0"


def id_element(document: bytes) -> bytes:
    """The element `_id` of a document, which the server stores as the first one. Raises
    Malformed."""
    kind = document[4]
    if document.startswith(_ID, 5):
        if size := _SIZES.get(kind):
            return document[4 : 9 + size]
        if kind == _STRING:
            return document[4 : 13 + _LENGTH.unpack_from(document, 9)[0]]
    found: Any = RawBSONDocument(document, RAW).get("_id", ...)
    if found is ...:
        raise Malformed("a document has no _id")
    return bson.encode({"_id": found})[4:-1]
