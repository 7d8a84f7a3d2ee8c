"""Pages of Cosmos DB's change feed -> changes. Pure."""

import base64
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
import ormsgpack
import pyarrow as pa

from penstock.model.change import Images, OnError, schema
from penstock.model.errors import Malformed
from penstock.model.page import Page
from penstock.model.position import Place
from penstock.wire.cosmos.documents import Document, DocumentContext, key_of, read_documents

# What the service adds to each item; "System properties of an item", Microsoft Learn.
_SYSTEM = frozenset({"_rid", "_self", "_etag", "_attachments", "_ts", "_lsn"})
_OPERATIONS = {"create": "INSERT", "replace": "REPLACE", "delete": "DELETE"}
Row = dict[str, Any]


class CosmosDecoder:
    """The implementation of `page.Decoder`. `tenant` is `none` or `field:NAME`; `system` keeps the
    properties that the service adds to an item.

    A change of latest-version mode is an upsert: REPLACE, with the item as it is now. The event id
    is `backend:partition:place`.
    """

    def __init__(
        self, backend: str, tenant: str, system: bool, images: Images, on_error: OnError
    ) -> None:
        self._given = backend, tenant, system, images, on_error
        self._backend, self._images, self._on_error = backend, images, on_error
        self._tenant = tenant.removeprefix("field:") if tenant.startswith("field:") else None
        self._system = system
        self._pack: Callable[[Any], Any] = _json if images == "json" else ormsgpack.packb
        self.unknown_types: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return CosmosDecoder, self._given

    def decode(self, page: Page) -> Sequence[pa.RecordBatch]:
        """See `page.Decoder`."""
        context = DocumentContext.of(page)
        rows = [self._row(place, each, context) for place, each in read_documents(page, context)]
        if not rows:
            return []
        shared = {
            "backend": self._backend,
            "partition": page.partition,
            "database": context.database,
            "collection": context.container,
            "unchanged": (),
            "captured_at": page.captured_at,
        }
        prefix = f"{self._backend}:{page.partition}:"
        columns: list[pa.Array[Any]] = []
        for field in schema(self._images):
            name = field.name
            if name in shared:
                column: list[Any] = [shared[name]] * len(rows)
            elif name == "mark":
                column = [context.mark] * (len(rows) - 1) + [context.end]
            elif name == "event_id":
                column = [prefix + row["place"] for row in rows]
            else:
                column = [row.get(name) for row in rows]
            columns.append(pa.array(column, field.type))
        return [pa.RecordBatch.from_arrays(columns, schema=schema(self._images))]

    def _row(self, place: Place, document: Document, context: DocumentContext) -> Row:
        head = {"cursor": place.cursor, "ordinal": place.ordinal,
                "place": str(place) if context.every else place.cursor}  # fmt: skip
        try:
            return head | self._change(document, context)
        except (Malformed, ValueError, TypeError, KeyError) as error:
            return head | self._unreadable(place, document, context, error)

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

    def _tenant_of(self, *images: Document | None) -> str | None:
        """Of the last image that has it."""
        if self._tenant is None:
            return None
        values = [image[self._tenant] for image in images if image and self._tenant in image]
        value = values[-1] if values else None
        return value if value is None or isinstance(value, str) else _json(value)

    def _unreadable(
        self, place: Place, document: Document, context: DocumentContext, error: Exception
    ) -> Row:
        # Never the text of another exception: it may quote a value.
        text = error.message if isinstance(error, Malformed) else type(error).__name__
        if self._on_error == "stop":
            raise Malformed(f"the change {place} of {context.container} cannot be read: {text}")
        whole = orjson.dumps({"Documents": [document]})
        alone, in_text = context._replace(skip=0).pack(), self._images == "json"
        image = {
            "reason": "not-readable",
            "error": text,
            "raw": base64.b64encode(whole).decode() if in_text else whole,
            "context": base64.b64encode(alone).decode() if in_text else alone,
        }
        return {"operation": "ERROR", "after": self._pack(image)}


def _json(value: Any) -> str:
    return orjson.dumps(value).decode()


def document_id(key: dict[str, Any]) -> str:
    """The id alone where it is the partition key, too; else a JSON array of both."""
    return str(key["id"]) if len(key) == 1 else _json(list(key.values()))
