"""The body of a message -> the changes in it, each as the map of the layout `penstock`. Pure.

Every layout and encoding that the sink writes is read here; docs/reference/messages.md describes
them. `Penstock-Schema` names the layout, `Content-Type` an Arrow stream; the first byte tells
MessagePack from JSON.
"""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import ormsgpack
import pyarrow as pa

from penstock.errors import Malformed

__all__ = ["changes_of"]

_KNOWN = ("event_id", "operation", "backend")
_ARROW = "application/vnd.apache.arrow.stream"
_SHARED = ("backend", "tenant", "database", "schema", "collection", "operation", "relation_id")
_OF_EACH = (
    "event_id", "document_id", "key", "data", "before", "unchanged", "position", "transaction",
    "committed_at", "captured_at", "delta",
)  # fmt: skip
_UNAVAILABLE = "__debezium_unavailable_value"
_OPERATIONS = {
    "c": "INSERT", "u": "UPDATE", "d": "DELETE", "r": "READ", "t": "TRUNCATE", "m": "MESSAGE",
}  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def changes_of(headers: Mapping[str, str], data: bytes) -> list[Mapping[str, Any]]:
    """The changes of one message, in order; raises Malformed."""
    try:
        changes = _changes(headers, data)
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        raise Malformed(f"a message of {len(data)} bytes can't be read as what it says") from error
    for change in changes:
        if not isinstance(change, dict) or any(name not in change for name in _KNOWN):
            raise Malformed(f"a message of {len(data)} bytes is not a change")
    return changes


def _changes(headers: Mapping[str, str], data: bytes) -> list[Mapping[str, Any]]:
    if headers.get("Content-Type") == _ARROW:
        return _tabular(data)
    try:
        # Neither a map nor an array of MessagePack starts with "{" or "[".
        body = orjson.loads(data) if data[:1] in (b"{", b"[", b"") else ormsgpack.unpackb(data)
    except ValueError as error:
        raise Malformed(
            f"a message of {len(data)} bytes is neither JSON nor MessagePack"
        ) from error
    layout = headers.get("Penstock-Schema", "").partition("-")[0]
    bodies = body if isinstance(body, list) else [body]
    if layout == "debezium":
        return [_of_debezium(one) for one in bodies]
    if layout == "puller":
        return [_of_puller(one) for one in bodies]
    if layout == "cloudevents":
        return [one["data"] for one in bodies]
    if isinstance(body, dict) and "changes" in body:
        shared = {name: body[name] for name in _SHARED}
        names = body["fields"]
        return [shared | dict(zip(names, one, strict=True)) for one in body["changes"]]
    return bodies


def _tabular(data: bytes) -> list[Mapping[str, Any]]:
    table = pa.ipc.open_stream(data).read_all()
    said = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
    load: Any = ormsgpack.unpackb if said.get("images") == "msgpack" else orjson.loads
    relation = said.get("relation_id")
    shared = {
        **{name: said.get(name) for name in _SHARED},
        "relation_id": int(relation) if relation else None,
    }
    changes: list[Mapping[str, Any]] = []
    for row in table.to_pylist():
        row["position"] = f"{row.pop('cursor')}:{row.pop('ordinal')}"
        for name in ("key", "data", "before", "delta"):
            image = row.get(name)
            row[name] = None if image is None else load(image)
        for name in ("committed_at", "captured_at"):
            row[name] = None if row[name] is None else _iso(row[name])
        changes.append(shared | row)
    return changes


def _of_debezium(body: Mapping[str, Any]) -> Mapping[str, Any]:
    source, data = body["source"], body["message"] if body["op"] == "m" else body["after"]
    unchanged = [name for name, value in (data or {}).items() if value == _UNAVAILABLE]
    transaction = source["txId"]
    return {
        "event_id": f"{source['name']}:{source['sequence']}",
        "backend": source["name"],
        "tenant": None,
        "database": source["db"],
        "schema": source["schema"] or None,
        "collection": source["table"] or None,
        "operation": _OPERATIONS[body["op"]],
        "relation_id": None,
        "document_id": None,
        "key": None,
        "data": data and {name: data[name] for name in data if name not in unchanged},
        "before": body["before"],
        "unchanged": unchanged,
        "position": source["sequence"],
        "transaction": None if transaction is None else str(transaction),
        "committed_at": _of_milliseconds(source["ts_ms"]),
        "captured_at": _of_milliseconds(body["ts_ms"]),
        "delta": _of_description(body.get("updateDescription")),
    }


def _of_description(said: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if said is None:
        return None
    truncated = said["truncatedArrays"] or ()
    return {
        "updated": orjson.loads(said["updatedFields"]),
        "removed": said["removedFields"] or [],
        "truncated": [{"field": one["field"], "new_size": one["size"]} for one in truncated],
    }


def _of_puller(body: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        **dict.fromkeys((*_SHARED, *_OF_EACH)),
        "event_id": body["event_id"],
        "backend": body["event_id"].partition(":")[0],
        "tenant": body["tenant"],
        "collection": body["collection"],
        "operation": body["type"].upper(),
        "document_id": body["document_id"],
        "data": body["full_document"],
        "unchanged": [],
        "committed_at": _of_milliseconds(body["timestamp"]),
    }


def _of_milliseconds(count: int | None) -> str | None:
    return None if count is None else _iso(_EPOCH + timedelta(milliseconds=count))


def _iso(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
