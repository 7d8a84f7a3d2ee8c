"""`layout: cloudevents`: CloudEvents 1.0 in structured JSON, several as its JSON batch format.

`data` is the body of the layout `penstock`; the attributes are for who routes without reading it.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import orjson

from penstock.sinks.encoding.columns import Column, Columns, Values
from penstock.sinks.encoding.dialect import Dialect
from penstock.sinks.encoding.layout import Penstock, schema_of
from penstock.sinks.encoding.pieces import Pick, Piece, PlacePiece, TextPiece, Time
from penstock.sinks.encoding.routes import Route, Routed

__all__ = ["CloudEvents"]


class CloudEvents:
    """A `Layout`, of JSON only."""

    version = b"cloudevents-1"
    extra_names: tuple[str, ...] = ("_attributes",)

    def __init__(self, dialect: Dialect, *, many: bool) -> None:
        self.dialect = dialect
        self.content_type = (
            b"application/cloudevents-batch+json" if many else b"application/cloudevents+json"
        )
        self._data = Penstock(dialect)

    def shared(self, route: Mapping[str, Any]) -> bytes:
        """See Layout: of `data`."""
        return self._data.shared(route)

    def change(self) -> tuple[Piece | bytes, ...]:
        """See Layout."""
        form, nil = self.dialect.form, self.dialect.nil
        return (
            b'{"id":', TextPiece("event_id", form, nil), Pick("kind", "_attributes"),
            b',"time":', Time("committed_at", form, nil),
            b',"partitionkey":', TextPiece("document_id", form, nil),
            b',"sequence":', PlacePiece("cursor", "ordinal", form),
            b',"data":', *self._data.change(), b"}",
        )  # fmt: skip

    def element(self) -> tuple[Piece | bytes, ...]:
        """See Layout."""
        return self.change()

    def around(self, route: Route, count: int) -> tuple[bytes, bytes]:
        """See Layout."""
        return self.dialect.list_start(count), self.dialect.list_end

    def extras(
        self, columns: Columns, routed: Routed, images: Mapping[str, Column]
    ) -> dict[str, Any]:
        """See Layout."""
        return {"_attributes": Values([_attributes(route.values) for route in routed.routes])}


def _attributes(route: Mapping[str, Any]) -> bytes:
    parts = (route["backend"], route["database"], schema_of(route))
    said = {
        "specversion": "1.0",
        "type": f"penstock.{route['operation'].lower()}",
        "source": "/" + "/".join(quote(part, safe="") for part in parts if part),
        "subject": route["collection"],
        "datacontenttype": "application/json",
    }
    return b"," + orjson.dumps(said)[1:-1]
