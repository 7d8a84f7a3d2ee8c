"""`layout: debezium`: the envelope of Debezium's PostgreSQL connector, as JSON without schemas.

For consumers that exist already. Where penstock knows less or otherwise than Debezium, see
docs/reference/messages.md.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson

from penstock.model.version import __version__
from penstock.sinks.messages.kinds import is_document
from penstock.sinks.messages.layout import FIELDS, Layout, of_milliseconds

# What Debezium sends for a column that the source did not send.
_UNAVAILABLE = "__debezium_unavailable_value"
_LETTERS = {
    "INSERT": "c", "UPDATE": "u", "REPLACE": "u", "DELETE": "d", "READ": "r", "TRUNCATE": "t",
}  # fmt: skip
_OPERATIONS = {letter: name for name, letter in _LETTERS.items() if name != "REPLACE"}
_LSN = re.compile(r"([0-9A-F]{8})/([0-9A-F]{8})")


class Debezium(Layout):
    """Several changes are an array of envelopes."""

    fields = (
        "backend", "database", "schema", "namespace", "collection", "operation", "relation_id",
        "connector", "position", "cursor", "transaction", "committed_ms", "captured_ms", "key",
        "data", "before", "unchanged", "delta",
    )  # fmt: skip

    def body(self, change: Mapping[str, Any]) -> Any:
        operation, old, delta = change["operation"], change["before"], change["delta"]
        source = {
            "version": __version__,
            "connector": change["connector"] or _guessed(change),
            "name": change["backend"],
            "snapshot": "true" if operation == "READ" else "false",
            "db": change["database"],
            "schema": change["schema"] or "",
            "table": change["collection"] or "",
            "xmin": None,
            "relation_id": change["relation_id"],
            "sequence": change["position"],
            "ts_ms": change["committed_ms"],
            "txId": _transaction(change["transaction"]),
            "lsn": _lsn(change["cursor"]),
        }
        # Of a deleted row Debezium sends the key, where there is no more.
        old = change["key"] if old is None and operation == "DELETE" else old
        letter = _LETTERS.get(operation, "m")  # SUSPEND is a message, too
        return {
            "op": letter,
            "source": source,
            "before": old,
            "message" if letter == "m" else "after": _completed(
                change["data"], change["unchanged"]
            ),
            **({} if delta is None else {"updateDescription": _description(delta)}),
            "ts_ms": change["captured_ms"],
            "transaction": None,
        }

    def changes(self, body: Any) -> Sequence[Mapping[str, Any]]:
        return [_change(one) for one in (body if isinstance(body, list) else [body])]


def _guessed(values: Mapping[str, Any]) -> str:
    """The connector, for a sink that was not given it."""
    if not is_document(values):
        return "postgresql"
    return "mongodb" if values["database"] else "unknown"


def _transaction(text: str | None) -> Any:
    """A number as it is written, if it is one."""
    if text is None or not (text.isdecimal() and text.isascii()):
        return text
    return orjson.Fragment(text)


@lru_cache(maxsize=1)
def _lsn(cursor: str) -> int | None:
    match = _LSN.fullmatch(cursor)
    return int(match[1], 16) << 32 | int(match[2], 16) if match else None


def _completed(image: Any, names: Sequence[str] | None) -> Any:
    """An image with a placeholder for each column that was not sent."""
    if image is None or not names:
        return image
    text, added = orjson.dumps(image), orjson.dumps(dict.fromkeys(names, _UNAVAILABLE))
    return orjson.Fragment(added if text == b"{}" else text[:-1] + b"," + added[1:])


def _description(delta: Any) -> dict[str, Any]:
    """The field of Debezium's MongoDB connector, which envelopes of other sources lack."""
    found = orjson.loads(orjson.dumps(delta))
    truncated = [
        {"field": one["field"], "size": one["new_size"]} for one in found.get("truncated") or ()
    ]
    return {
        "removedFields": found.get("removed") or None,
        "updatedFields": orjson.dumps(found.get("updated") or {}).decode(),
        "truncatedArrays": truncated or None,
    }


def _change(body: Mapping[str, Any]) -> Mapping[str, Any]:
    source, data = body["source"], body["message"] if body["op"] == "m" else body["after"]
    unchanged = [name for name, value in (data or {}).items() if value == _UNAVAILABLE]
    transaction = source["txId"]
    return {
        **dict.fromkeys(FIELDS),
        "event_id": f"{source['name']}:{source['sequence']}",
        "backend": source["name"],
        "database": source["db"],
        "schema": source["schema"] or None,
        "collection": source["table"] or None,
        "operation": _OPERATIONS.get(body["op"], "MESSAGE"),
        "relation_id": source.get("relation_id"),
        "data": data and {name: data[name] for name in data if name not in unchanged},
        "before": body["before"],
        "unchanged": unchanged,
        "position": source["sequence"],
        "transaction": None if transaction is None else str(transaction),
        "committed_at": of_milliseconds(source["ts_ms"]),
        "captured_at": of_milliseconds(body["ts_ms"]),
        "delta": _delta(body.get("updateDescription")),
    }


def _delta(description: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if description is None:
        return None
    truncated = description["truncatedArrays"] or ()
    return {
        "updated": orjson.loads(description["updatedFields"]),
        "removed": description["removedFields"] or [],
        "truncated": [{"field": one["field"], "new_size": one["size"]} for one in truncated],
    }


PLUGIN = Debezium()
