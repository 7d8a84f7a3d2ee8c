"""`layout: cloudevents`: CloudEvents 1.0 in structured JSON, several as its JSON batch format.

`data` is the body of the layout `penstock`; the attributes are for who routes without reading it.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from penstock.sinks.messages.dialect import Dialect
from penstock.sinks.messages.layout import Layout


class CloudEvents(Layout):
    def content_type(self, dialect: Dialect, *, many: bool) -> bytes:
        return b"application/cloudevents-batch+json" if many else b"application/cloudevents+json"

    def body(self, change: Mapping[str, Any]) -> Any:
        return {
            "id": change["event_id"],
            "specversion": "1.0",
            "type": f"penstock.{change['operation'].lower()}",
            "source": _source(change["backend"], change["database"], change["schema"]),
            "subject": change["collection"],
            "datacontenttype": "application/json",
            "time": change["committed_at"],
            "partitionkey": change["document_id"],
            "sequence": change["position"],
            "data": change,
        }

    def changes(self, body: Any) -> Sequence[Mapping[str, Any]]:
        return [event["data"] for event in (body if isinstance(body, list) else [body])]


@lru_cache(maxsize=100)
def _source(*parts: str | None) -> str:
    return "/" + "/".join(quote(part, safe="") for part in parts if part)


PLUGIN = CloudEvents()
