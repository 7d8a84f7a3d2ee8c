"""One change event as the values of a change: what happened, to which document, with which images.

`Reader.read` raises one of BROKEN for an event that cannot be read.
"""

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import bson
import orjson
import ormsgpack
from bson.errors import BSONError
from bson.timestamp import Timestamp

from penstock.model.change import Images
from penstock.model.errors import Malformed
from penstock.model.images import base64_of
from penstock.wire.changestream.values import CODEC, document_text, flat, plain, typed

# Milliseconds since 1970: the times that Python and RFC 3339 can show.
_YEAR_1, _YEAR_10000 = -62_135_596_800_000, 253_402_300_800_000

# What reading a broken event can raise.
BROKEN = (
    BSONError, Malformed, ValueError, TypeError, LookupError, ArithmeticError, RecursionError,
    AttributeError, struct.error,
)  # fmt: skip

# The server's names of operations -> ours.
OPERATIONS: Mapping[str, str] = {
    "insert": "INSERT",
    "update": "UPDATE",
    "replace": "REPLACE",
    "delete": "DELETE",
    "drop": "DROP",
    "rename": "RENAME",
    "dropDatabase": "DROP_DATABASE",
    "invalidate": "INVALIDATE",
}
_OF_DOCUMENTS = ("insert", "update", "replace", "delete")

# Database, collection -> tenant; and the same with the documents that it may be in, in order.
NameRule = Callable[[str | None, str | None], str | None]
TenantRule = Callable[..., str | None]


class Read(NamedTuple):
    """One change, without its place; images are packed."""

    operation: str
    tenant: str | None
    database: str | None
    collection: str | None
    document_id: str | None = None
    key: bytes | None = None
    before: bytes | None = None
    after: bytes | None = None
    delta: bytes | None = None
    transaction: str | None = None
    committed_at: int | None = None


@dataclass(frozen=True, slots=True)
class Reader:
    """How events are read. `flatten`: nested documents become dotted columns."""

    images: Images
    tenant: TenantRule
    flatten: bool = False

    def pack(self, image: Any) -> bytes:
        if self.images == "json":
            return orjson.dumps(image, default=base64_of)
        return ormsgpack.packb(image)

    def read(self, documents: list[bytes]) -> Read:
        """The change of an event's documents (several if the server split it)."""
        event: dict[str, Any] = {}
        for document in documents:
            event |= bson.decode(document, CODEC)
        kind = event["operationType"]
        if (operation := OPERATIONS.get(kind)) is None:
            raise Malformed(
                "an unknown operation", "wire", hint="a newer server's? update penstock"
            )
        place = event.get("ns") or {}
        database, collection = place.get("db"), place.get("coll")
        if kind not in _OF_DOCUMENTS:
            return Read(
                operation,
                self.tenant(database, collection),
                database,
                collection,
                after=self._known(event),
                transaction=_transaction(event),
                committed_at=_committed(event),
            )
        if not (key := event.get("documentKey")) or "_id" not in key:
            raise Malformed("the event has no document key", "wire")
        before, after = event.get("fullDocumentBeforeChange"), event.get("fullDocument")
        return Read(
            operation,
            self.tenant(database, collection, after, before, key),
            database,
            collection,
            document_text(key["_id"]),
            self.pack(typed(key)),
            self._image(before),
            self._image(after),
            self._delta(event.get("updateDescription")),
            _transaction(event),
            _committed(event),
        )

    def _image(self, document: Any) -> bytes | None:
        if document is None:
            return None
        image = plain(document)
        return self.pack(flat(image) if self.flatten else image)

    def _delta(self, description: Any) -> bytes | None:
        if description is None:
            return None
        truncated = [
            {"field": each["field"], "new_size": each["newSize"]}
            for each in description.get("truncatedArrays") or ()
        ]
        updated = plain(description.get("updatedFields") or {})
        delta = {
            "updated": flat(updated) if self.flatten else updated,
            "removed": list(description.get("removedFields") or ()),
            "truncated": truncated,
        }
        # Only of paths whose text may mean several things, and from servers that say it.
        paths = description.get("disambiguatedPaths")
        return self.pack(delta | {"paths": plain(paths)} if paths else delta)

    def _known(self, event: Mapping[str, Any]) -> bytes | None:
        """What is known of an event that is not about a document."""
        if not (to := event.get("to")):
            return None
        return self.pack({"to": {"database": to.get("db"), "collection": to.get("coll")}})


def name_rule(rule: str) -> NameRule | None:
    """`tenant_rule` of database and collection; None for a rule that looks into documents."""
    if rule == "none":
        return lambda _database, _collection: None
    if rule == "database":
        return lambda database, _collection: database
    return _prefix if rule == "collection_prefix" else None


def tenant_rule(rule: str) -> TenantRule:
    """`none`, `database`, `collection_prefix` (of the name, up to its first underscore) or
    `field:PATH` (of the document after the change, else before it, else of its key)."""
    if (names := name_rule(rule)) is not None:
        return lambda database, collection, *_documents: names(database, collection)
    path = rule.removeprefix("field:").split(".")
    return lambda _database, _collection, *documents: _at(path, documents)


def _prefix(_database: str | None, collection: str | None) -> str | None:
    prefix, underscore, _ = (collection or "").partition("_")
    return prefix if underscore and prefix else None


def _at(path: list[str], documents: Iterable[Any]) -> str | None:
    for document in documents:
        value: Any = document
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            return document_text(value)
    return None


def _transaction(event: Mapping[str, Any]) -> str | None:
    session, number = event.get("lsid"), event.get("txnNumber")
    if session is None or number is None:
        return None
    return f"{session['id']}/{int(number)}"


def _committed(event: Mapping[str, Any]) -> int | None:
    """Microseconds since 1970: the server's wall clock, else the seconds of the cluster time."""
    wall, cluster = event.get("wallTime"), event.get("clusterTime")
    if wall is not None:
        if not _YEAR_1 <= int(wall) < _YEAR_10000:
            raise Malformed("wallTime is not in the years 1 to 9999", "wire")
        return int(wall) * 1000
    return cluster.time * 1_000_000 if isinstance(cluster, Timestamp) else None
