"""Pages of Cosmos DB's change feed -> documents, in the order of their places -> changes. Pure.

A page's payload is the answer's body, untouched. A place is the LSN (of the transaction), `/`, and
the item's `_rid`: inside a transaction the feed has no order of its own. In latest-version mode an
item is once in it; which items a replay gives again is not certain, so nothing is counted. In
all-versions mode, a log, the ordinal counts the versions of one item inside a transaction; versions
of one `id` share the first one's `_rid`, so that a delete stays before the create after it.
"""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson
import pyarrow as pa

from penstock.model.change import Images, OnError
from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.model.position import Place
from penstock.wire.row_decoder import Row, RowDecoder, as_json

Document = dict[str, Any]
_DIGITS = 20


class DocumentContext(NamedTuple):
    """What a page's context says. `paths` are those of the partition key; the first `skip` changes
    are not part of the page. `mark` is JSON text of the feed's mark at a change inside the page,
    and `end` of that at the last one."""

    database: str
    container: str
    paths: tuple[str, ...]
    every: bool
    mark: str
    end: str
    skip: int = 0

    def pack(self) -> bytes:
        return orjson.dumps(self._asdict())

    @classmethod
    def of(cls, page: Page) -> "DocumentContext":
        """Raises Malformed."""
        try:
            found = orjson.loads(page.context)
            return cls(**{**found, "paths": tuple(found["paths"])})
        except (ValueError, TypeError, KeyError) as error:
            raise Malformed("the context of a page of Cosmos DB is not readable", "wire") from error


def values_at(document: Document, paths: Sequence[str]) -> dict[str, Any]:
    """The values of a partition key by their dotted names; None where an item has none."""
    found: dict[str, Any] = {}
    for path in paths:
        value: Any = document
        names = path.strip("/").split("/")
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        found[".".join(names)] = value
    return found


def key_of(document: Document, paths: Sequence[str], *, every: bool) -> dict[str, Any]:
    """Partition key and `id`, of an item or of a version; raises Malformed."""
    found = document
    if every:
        metadata = document.get("metadata") or {}
        found = document.get("current") or document.get("previous") or {}
        if not found:  # a delete without its previous image names both in its metadata
            names = [".".join(path.strip("/").split("/")) for path in paths]
            given = metadata.get("partitionKey") or {}
            values = []
            for path, name in zip(paths, names, strict=True):
                if path.strip("/") not in given and name not in given:
                    raise Malformed(f"a delete has no value of the partition key {name}", "wire")
                values.append(given.get(path.strip("/"), given.get(name)))
            return _key(dict(zip(names, values, strict=True)), metadata.get("id"))
    return _key(values_at(found, paths), found.get("id"))


def _key(values: dict[str, Any], identity: Any) -> dict[str, Any]:
    if not isinstance(identity, str):
        raise Malformed("a change has no id", "wire")
    return {**values, "id": identity}


def in_order(
    documents: Sequence[Document], paths: Sequence[str], *, every: bool
) -> list[tuple[Place, Document]]:
    """Each document with its place, sorted; raises Malformed for one without LSN or `_rid`."""
    try:
        placed = _versions(documents, paths) if every else [
            (Place(_cursor(each["_lsn"], each["_rid"]), 0), each) for each in documents
        ]  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise Malformed("a document of the change feed has no LSN or no _rid", "wire") from error
    placed.sort(key=lambda each: each[0])
    return placed


def _versions(documents: Sequence[Document], paths: Sequence[str]) -> list[tuple[Place, Document]]:
    names: dict[tuple[int, bytes], str] = {}
    counts: dict[str, int] = {}
    placed = []
    for each in documents:
        lsn = each["metadata"]["lsn"]
        key = _digest(each, paths)
        image = each.get("current") or each.get("previous") or {}
        name = names.setdefault((lsn, key), image.get("_rid") or f"~{key.hex()}")
        cursor = _cursor(lsn, name)
        ordinal = counts.get(cursor, 0)
        counts[cursor] = ordinal + 1
        placed.append((Place(cursor, ordinal), each))
    return placed


def _digest(document: Document, paths: Sequence[str]) -> bytes:
    try:
        key: Any = key_of(document, paths, every=True)
    except Malformed:  # the decoder says what is wrong with it
        key = document
    return hashlib.blake2b(orjson.dumps(key), digest_size=8).digest()


def _cursor(lsn: Any, rid: Any) -> str:
    if not isinstance(lsn, int) or not 0 <= lsn < 10**_DIGITS or not isinstance(rid, str):
        raise ValueError("not an LSN and a resource id")
    return f"{lsn:0{_DIGITS}d}/{rid}"


def lsn_of(place: Place) -> int:
    """The LSN of a place; raises Malformed."""
    digits = place.cursor[:_DIGITS]
    if not digits.isdecimal() or place.cursor[_DIGITS : _DIGITS + 1] != "/":
        raise Malformed(f"{place} is not a place of Cosmos DB's change feed", "wire")
    return int(digits)


def read_documents(page: Page, context: DocumentContext) -> list[tuple[Place, Document]]:
    """A page's documents in order; raises Malformed."""
    try:
        documents = orjson.loads(page.payload)["Documents"]
    except (ValueError, KeyError, TypeError) as error:
        raise Malformed(
            "a page of Cosmos DB is not an answer of the change feed", "wire"
        ) from error
    return in_order(documents, context.paths, every=context.every)[context.skip :]


# What the service adds to each item; "System properties of an item", Microsoft Learn.
_SYSTEM = frozenset({"_rid", "_self", "_etag", "_attachments", "_ts", "_lsn"})
_OPERATIONS = {"create": "INSERT", "replace": "REPLACE", "delete": "DELETE"}


class CosmosDecoder(RowDecoder):
    """`system` keeps the service's own properties of an item. A change of latest-version mode is an
    upsert: REPLACE, with the item as it is now. The event id is `backend:partition:place`."""

    def __init__(
        self, backend: str, tenant: str, images: Images, on_error: OnError, system: bool
    ) -> None:
        super().__init__(backend, tenant, images, on_error, system)
        self._system = system

    def decode(self, page: Page) -> Sequence[pa.RecordBatch]:
        context = DocumentContext.of(page)
        rows = [self._row(place, each, context) for place, each in read_documents(page, context)]
        if rows:
            rows[-1]["mark"] = context.end
        return self._batches(page, rows, database=context.database, collection=context.container)

    def _row(self, place: Place, document: Document, context: DocumentContext) -> Row:
        head = {"cursor": place.cursor, "ordinal": place.ordinal, "mark": context.mark,
                "event_id": str(place) if context.every else place.cursor}  # fmt: skip
        try:
            return head | self._change(document, context)
        except (Malformed, ValueError, TypeError, KeyError) as error:
            # Never the text of another exception: it may quote a value.
            text = error.message if isinstance(error, Malformed) else type(error).__name__
        what = f"the change {place} of {context.container}"
        whole = orjson.dumps({"Documents": [document]})
        return head | self._unreadable(what, text, whole, context._replace(skip=0).pack())

    def _change(self, document: Document, context: DocumentContext) -> Row:
        operation, at, delta = "REPLACE", document.get("_ts"), None
        before: Document | None = None
        after: Document | None = document
        if context.every:
            metadata = document["metadata"]
            operation = _OPERATIONS.get(metadata.get("operationType", ""), "")
            if not operation:
                raise Malformed("its operationType is none of create, replace and delete", "wire")
            before, after = document.get("previous") or None, document.get("current") or None
            at = metadata.get("crts")
            delta = {"expired": True} if metadata.get("timeToLiveExpired") else None
        key = key_of(document, context.paths, every=context.every)
        return {
            "operation": operation,
            "tenant": self._tenant_of(before, after),
            "document_id": document_id(key),
            "key": self._pack(key),
            "before": self._image(before),
            "after": self._image(after),
            "delta": None if delta is None else self._pack(delta),
            "committed_at": None if at is None else datetime.fromtimestamp(at, UTC),
        }

    def _image(self, item: Document | None) -> Any:
        if item is None:
            return None
        if not self._system:
            item = {name: value for name, value in item.items() if name not in _SYSTEM}
        return self._pack(item)


def document_id(key: dict[str, Any]) -> str:
    """The id alone where it is the partition key, too; else a JSON array of both."""
    return str(key["id"]) if len(key) == 1 else as_json(list(key.values()))
