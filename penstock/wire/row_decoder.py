"""What decoders share that make one row, a dictionary, of each change. Pure."""

from collections.abc import Sequence
from typing import Any

import orjson
import ormsgpack
import pyarrow as pa

from penstock.model.change import Images, OnError, schema
from penstock.model.errors import Malformed
from penstock.model.images import base64_of
from penstock.model.page import Page
from penstock.wire.documents import error_image

Row = dict[str, Any]


class RowDecoder:
    """The head of a `page.Decoder`. `tenant` is `none` or `field:NAME`. The event id is
    `backend:partition:` and a row's own `event_id`."""

    def __init__(
        self, backend: str, tenant: str, images: Images, on_error: OnError, *more: Any
    ) -> None:
        self._given = backend, tenant, images, on_error, *more
        self._backend, self._images, self._on_error = backend, images, on_error
        self._tenant = tenant.removeprefix("field:") if tenant.startswith("field:") else None
        self._pack: Any = as_json if images == "json" else ormsgpack.packb
        self.unknown_types: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._given

    def _batches(self, page: Page, rows: Sequence[Row], **same: Any) -> Sequence[pa.RecordBatch]:
        if not rows:
            return []
        same |= {"backend": self._backend, "partition": page.partition, "unchanged": (),
                 "captured_at": page.captured_at}  # fmt: skip
        prefix = f"{self._backend}:{page.partition}:"
        columns: list[pa.Array[Any]] = []
        for field in schema(self._images):
            name = field.name
            if name in same:
                column = [same[name]] * len(rows)
            elif name == "event_id":
                column = [prefix + row[name] for row in rows]
            else:
                column = [row.get(name) for row in rows]
            columns.append(pa.array(column, field.type))
        return [pa.RecordBatch.from_arrays(columns, schema=schema(self._images))]

    def _tenant_of(self, *images: Row | None) -> str | None:
        if self._tenant is None:
            return None
        values = [image[self._tenant] for image in images if image and self._tenant in image]
        value = values[-1] if values else None
        return value if value is None or isinstance(value, str) else as_text(value)

    def _unreadable(self, what: str, error: str, raw: bytes, context: bytes) -> Row:
        """The row of a change that cannot be read: payload and context of a page of it alone."""
        if self._on_error == "stop":
            raise Malformed(f"{what} cannot be read: {error}", "wire")
        image = error_image(
            self._images, reason="not-readable", error=error, raw=raw, context=context
        )
        return {"operation": "ERROR", "after": self._pack(image)}


def as_json(value: Any) -> str:
    return orjson.dumps(value).decode()


def as_text(value: Any) -> str:
    """A value as text: JSON, and bytes are base64."""
    if isinstance(value, bytes):
        return base64_of(value)
    return orjson.dumps(value, default=base64_of).decode()
