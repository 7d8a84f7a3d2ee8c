"""`layout: puller`: the flat event of a fan-out service between MongoDB and its consumers.

For consumers that exist already. docs/reference/messages.md has every field.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson

from penstock.sinks.messages.kinds import is_document
from penstock.sinks.messages.layout import FIELDS, Layout, of_milliseconds

# A cluster time: seconds and a counter, perhaps after an era.
_TIME = re.compile(r".*?([0-9A-F]{8})/([0-9A-F]{8})")


class Puller(Layout):
    """Several changes are an array of events. What became of a collection or database is not
    published: no event of a puller says it."""

    omits = ("DROP", "RENAME", "DROP_DATABASE", "INVALIDATE")

    fields = (
        "event_id", "tenant", "database", "namespace", "collection", "operation", "relation_id",
        "document_id", "data", "cursor", "transaction", "mark", "committed_ms", "hash_partition",
    )  # fmt: skip

    def body(self, change: Mapping[str, Any]) -> Any:
        operation, document = change["operation"], change["document_id"]
        return {
            "event_id": change["event_id"],
            "tenant": change["tenant"],
            "collection": change["collection"],
            "type": "UPDATE" if operation == "REPLACE" else operation,
            "document_id": document,
            "full_document": change["data"],
            "cluster_time": _time(change["cursor"]) if is_document(change) else None,
            "txn_number": _number(change["transaction"]),
            "resume_token": _token(change["mark"]),
            "timestamp": change["committed_ms"],
            # What the hash partition is the hash of.
            "partition_key": None
            if document is None
            else f"{change['collection'] or ''}/{document}",
            "partition_id": change["hash_partition"],
        }

    def changes(self, body: Any) -> Sequence[Mapping[str, Any]]:
        return [_change(one) for one in (body if isinstance(body, list) else [body])]


@lru_cache(maxsize=1)
def _time(cursor: str) -> Mapping[str, int] | None:
    match = _TIME.fullmatch(cursor)
    return {"t": int(match[1], 16), "i": int(match[2], 16)} if match else None


def _number(transaction: str | None) -> Any:
    """The number in `SESSION/NUMBER`, as it is written."""
    _, slash, number = (transaction or "").rpartition("/")
    return orjson.Fragment(number) if slash and number.isdecimal() else None


def _token(mark: str | None) -> Any:
    found = None if mark is None else orjson.loads(mark)
    return found.get("token") if isinstance(found, dict) else None


def _change(event: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        **dict.fromkeys(FIELDS),
        "event_id": event["event_id"],
        "backend": event["event_id"].partition(":")[0],
        "tenant": event["tenant"],
        "collection": event["collection"],
        "operation": event["type"],
        "document_id": event["document_id"],
        "data": event["full_document"],
        "unchanged": [],
        "committed_at": of_milliseconds(event["timestamp"]),
    }


PLUGIN = Puller()
