"""`layout: cloudevents`: CloudEvents 1.0 in structured JSON, several as its JSON batch format.

`data` is the body of the layout `penstock`; the attributes are for who routes without reading it.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import orjson

from penstock.sinks.encoding.columns import Column, Columns, Values
from penstock.sinks.encoding.dialect import Dialect
from penstock.sinks.encoding.kinds import RowKinds
from penstock.sinks.encoding.layout import Layout, PenstockColumns
from penstock.sinks.encoding.pieces import Pick, Piece, PlacePiece, TextPiece, Time


class CloudEvents(Layout):
    """See the module."""

    def content_type(self, dialect: Dialect, *, many: bool) -> bytes:
        """See Layout."""
        return b"application/cloudevents-batch+json" if many else b"application/cloudevents+json"

    def changes(self, body: Any) -> Sequence[Mapping[str, Any]]:
        """See Layout."""
        return [event["data"] for event in (body if isinstance(body, list) else [body])]

    def columnar(self, dialect: Dialect, connector: str) -> "CloudEventColumns":
        """See Layout."""
        return CloudEventColumns(dialect)


class CloudEventColumns:
    """See `Columnar`."""

    extra_names: tuple[str, ...] = ("_attributes",)

    def __init__(self, dialect: Dialect) -> None:
        self._dialect, self._data = dialect, PenstockColumns(dialect)
        self.shared = self._data.shared

    def pieces(self, *, element: bool) -> tuple[Piece | bytes, ...]:
        """See Columnar."""
        form, nil = self._dialect.form, self._dialect.nil
        return (
            b'{"id":', TextPiece("event_id", form, nil), Pick("kind", "_attributes"),
            b',"time":', Time("committed_at", form, nil),
            b',"partitionkey":', TextPiece("document_id", form, nil),
            b',"sequence":', PlacePiece("cursor", "ordinal", form),
            b',"data":', *self._data.pieces(element=False), b"}",
        )  # fmt: skip

    def extras(
        self, columns: Columns, row_kinds: RowKinds, images: Mapping[str, Column]
    ) -> dict[str, Any]:
        """See Columnar."""
        shared = (orjson.dumps(_attributes(kind.values)) for kind in row_kinds.kinds)
        return {"_attributes": Values([b"," + one[1:-1] for one in shared])}


def _attributes(values: Mapping[str, Any]) -> dict[str, Any]:
    parts = (values["backend"], values["database"], values["schema"])
    return {
        "specversion": "1.0",
        "type": f"penstock.{values['operation'].lower()}",
        "source": "/" + "/".join(quote(part, safe="") for part in parts if part),
        "subject": values["collection"],
        "datacontenttype": "application/json",
    }


PLUGIN = CloudEvents()
