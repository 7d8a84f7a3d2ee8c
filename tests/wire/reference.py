"""The decoder once more, slowly and from message objects: what the fast path must agree with."""

import base64
import json
from typing import Any

import orjson
import ormsgpack

from penstock.model.change import Images
from penstock.model.page import Page
from penstock.wire.pgoutput.context import HEARTBEAT_PREFIX, Context
from penstock.wire.pgoutput.lsn import format_lsn, message_cursor
from penstock.wire.pgoutput.messages import (
    UNCHANGED,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Relation,
    Truncate,
    TupleData,
    Update,
    decode_message,
)
from penstock.wire.pgoutput.values import value_of


def image(data: Any, images: Images) -> Any:
    """A row image as Python values. (orjson refuses JSON that PostgreSQL allows: 1e400.)"""
    if data is None:
        return None
    return json.loads(data) if images == "json" else ormsgpack.unpackb(data)


def reference(page: Page, images: Images) -> list[dict[str, Any]]:
    """Rows with the columns that depend on the payload; images as Python values. (With `text`,
    document ids are made of texts, too.)"""
    context = Context.unpack(page.context)
    relations: dict[int, Relation] = {}
    for raw in context.relations:
        relation = decode_message(raw)
        assert isinstance(relation, Relation)
        relations[relation.oid] = relation
    state: dict[str, Any] = {
        "cursor": format_lsn(context.commit_lsn), "transaction": str(context.xid),
        "committed_at": context.committed_at,
    }  # fmt: skip
    ordinal, rows = context.ordinal, []

    def values(relation: Relation, data: TupleData, only_key: bool = False) -> dict[str, Any]:
        found = {}
        for column, value in zip(relation.columns, data, strict=True):
            if value is UNCHANGED or (only_key and not column.key):
                continue
            convert, _ = value_of(column.type_oid, context.types, images, set())
            convert = bytes.decode if images == "text" else convert
            found[column.name] = None if value is None else convert(value)  # type: ignore[arg-type]
        return found

    def add(operation: str, relation: Relation | None = None, **fields: Any) -> None:
        nonlocal ordinal
        row = dict.fromkeys(("key", "before", "after", "document_id", "collection"))
        row |= {"unchanged": [], "operation": operation, "ordinal": ordinal, **state}
        if relation is not None:
            row |= {"namespace": relation.namespace, "collection": relation.name}
        rows.append(row | fields)
        ordinal += 1

    def keyed(relation: Relation, row: dict[str, Any]) -> dict[str, Any]:
        columns = [column.name for column in relation.columns if column.key]
        if relation.replica_identity == "f" or not columns:
            columns = list(context.keys.get(relation.oid, ()))
        if not columns or any(name not in row for name in columns):
            return {}
        key = {name: row[name] for name in columns}
        plain = [base64.b64encode(v).decode() if isinstance(v, bytes) else v for v in key.values()]
        text = plain[0] if len(plain) == 1 else plain
        if not isinstance(text, str):
            text = orjson.dumps(text).decode()
        return {"key": key, "document_id": text}

    at = 0
    while at < len(page.payload):
        size = int.from_bytes(page.payload[at + 1 : at + 5], "big")
        frame = page.payload[at + 5 : at + 1 + size]
        at += 1 + size
        if frame[:1] != b"w":
            continue
        match decode_message(frame[25:], streamed=context.streamed):
            case Begin() as begin:
                state = {"cursor": format_lsn(begin.final_lsn), "transaction": str(begin.xid),
                         "committed_at": begin.committed_at}  # fmt: skip
                ordinal = 0
            case Commit():
                state = {}
            case Relation() as relation:
                relations[relation.oid] = relation
            case Insert(relation=oid, new=new):
                row = values(relations[oid], new)
                add("INSERT", relations[oid], after=row, **keyed(relations[oid], row))
            case Update() as update:
                relation = relations[update.relation]
                row = values(relation, update.new)
                old = update.old and values(relation, update.old, update.old_kind == "K")
                missing = [column.name for column in relation.columns if column.name not in row]
                add("UPDATE", relation, after=row, before=old, unchanged=missing,
                    **keyed(relation, (old or {}) | row))  # fmt: skip
            case Delete() as delete:
                relation = relations[delete.relation]
                old = values(relation, delete.old, delete.old_kind == "K")
                add("DELETE", relation, before=old, **keyed(relation, old))
            case Truncate() as truncate:
                for oid in truncate.relations:
                    add("TRUNCATE", relations[oid])
            case LogicalMessage(prefix=prefix) if prefix == HEARTBEAT_PREFIX:
                pass
            case LogicalMessage() as message:
                inside = dict(state), ordinal
                if not message.transactional:
                    state = {"cursor": message_cursor(message.lsn), "transaction": None,
                             "committed_at": None}  # fmt: skip
                    ordinal = 0
                add("MESSAGE", collection=message.prefix, after=_body(message, images))
                if not message.transactional:
                    state, ordinal = inside
    return [_comparable(row) for row in rows]


def _body(message: LogicalMessage, images: Images) -> dict[str, Any]:
    try:
        return {"prefix": message.prefix, "content": message.content.decode()}
    except UnicodeDecodeError:
        data: Any = message.content
        if images != "msgpack":
            data = base64.b64encode(data).decode()
        return {"prefix": message.prefix, "content": data, "binary": True}


def _comparable(row: dict[str, Any]) -> dict[str, Any]:
    """Spliced JSON becomes values, as it does for who reads the message."""
    for name in ("key", "before", "after"):
        if row[name] is not None:
            row[name] = {k: _plain(v) for k, v in row[name].items()}
    return row


def _plain(value: Any) -> Any:
    if isinstance(value, orjson.Fragment):
        return json.loads(orjson.dumps(value))
    return [_plain(item) for item in value] if isinstance(value, list) else value
