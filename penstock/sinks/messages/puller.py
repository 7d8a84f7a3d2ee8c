"""`layout: puller`: the flat event of a fan-out service between MongoDB and its consumers.

For consumers that exist already: the names and values are those that Go's `encoding/json` writes
and reads of a struct without tags. docs/reference/messages.md has every field.
"""

import re
from base64 import b64encode
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

    version = 2
    omits = ("DROP", "RENAME", "DROP_DATABASE", "INVALIDATE")

    fields = (
        "event_id", "tenant", "database", "namespace", "collection", "operation", "relation_id",
        "document_id", "data", "cursor", "transaction", "mark", "committed_ms", "hash_partition",
    )  # fmt: skip

    def body(self, change: Mapping[str, Any]) -> Any:
        operation, document = change["operation"], change["document_id"]
        return {
            "EventID": change["event_id"],
            "TenantID": change["tenant"],
            "Collection": change["collection"],
            "DocumentID": document,
            "Type": "UPDATE" if operation == "REPLACE" else operation,
            "FullDocument": change["data"],
            "ClusterTime": _time(change["cursor"]) if is_document(change) else None,
            "TxnNumber": _number(change["transaction"]),
            "ResumeToken": _token(change["mark"]),
            "Timestamp": change["committed_ms"],
            # What the hash partition is the hash of.
            "PartitionKey": None
            if document is None
            else f"{change['collection'] or ''}/{document}",
            "PartitionID": change["hash_partition"],
        }

    def changes(self, body: Any) -> Sequence[Mapping[str, Any]]:
        return [_change(one) for one in (body if isinstance(body, list) else [body])]


@lru_cache(maxsize=1)
def _time(cursor: str) -> Mapping[str, int] | None:
    match = _TIME.fullmatch(cursor)
    return {"T": int(match[1], 16), "I": int(match[2], 16)} if match else None


def _number(transaction: str | None) -> Any:
    """The number in `SESSION/NUMBER`, as it is written."""
    _, slash, number = (transaction or "").rpartition("/")
    return orjson.Fragment(number) if slash and number.isdecimal() else None


def _token(mark: str | None) -> str | None:
    """The token's BSON, as a `bson.Raw` is in JSON."""
    found = None if mark is None else orjson.loads(mark)
    if not isinstance(found, dict) or not isinstance(found.get("token"), dict):
        return None
    import bson  # which only MongoDB's extra has

    from penstock.wire.changestream.tokens import token_from_mark

    return b64encode(bson.encode(token_from_mark(found))).decode()


def _change(event: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        **dict.fromkeys(FIELDS),
        "event_id": event["EventID"],
        "backend": event["EventID"].partition(":")[0],
        "tenant": event["TenantID"],
        "collection": event["Collection"],
        "operation": event["Type"],
        "document_id": event["DocumentID"],
        "data": event["FullDocument"],
        "unchanged": [],
        "committed_at": of_milliseconds(event["Timestamp"]),
    }


PLUGIN = Puller()
