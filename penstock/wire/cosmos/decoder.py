"""Pages of Cosmos DB's change feed -> changes. Pure."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
import pyarrow as pa

from penstock.model.change import Images, OnError
from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.model.position import Place
from penstock.wire.cosmos.documents import Document, DocumentContext, key_of, read_documents
from penstock.wire.row_decoder import Row, RowDecoder, as_json

# What the service adds to each item; "System properties of an item", Microsoft Learn.
_SYSTEM = frozenset({"_rid", "_self", "_etag", "_attachments", "_ts", "_lsn"})
_OPERATIONS = {"create": "INSERT", "replace": "REPLACE", "delete": "DELETE"}


class CosmosDecoder(RowDecoder):
    """The implementation of `page.Decoder`. `system` keeps the properties that the service adds to
    an item.

    A change of latest-version mode is an upsert: REPLACE, with the item as it is now. The event id
    is `backend:partition:place`.
    """

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
                raise Malformed("its operationType is none of create, replace and delete")
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
