"""Pages of DynamoDB Streams -> records with Python's values (Decimal, bytes, sets): for the
iterator, whose shape of a record this is. Pure.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from penstock.change import OnError
from penstock.errors import Malformed
from penstock.page import Page
from penstock.position import Place
from penstock.wire.dynamodb.records import (
    PageContext,
    RecordHead,
    StreamRecord,
    place_of,
    read_records,
)
from penstock.wire.dynamodb.values import python_values

__all__ = ["PythonRecord", "python_records"]

_OPERATIONS = {"INSERT": "INSERT", "MODIFY": "UPDATE", "REMOVE": "DELETE"}
_values = python_values()

# Place, microseconds since 1970, record.
PythonRecord = tuple[Place, int, dict[str, Any]]


def python_records(page: Page, backend: str, on_error: OnError = "stop") -> Sequence[PythonRecord]:
    """A page's records in order. One that cannot be read raises Malformed, or unless `on_error` is
    `stop` has the operation ERROR, and in `new` what a decoder's row has in `after`."""
    context = PageContext.of(page)
    found = []
    for each in read_records(page):
        try:
            if not isinstance(each, StreamRecord):
                raise Malformed(each[2])
            images = _images(each)
            operation = _OPERATIONS[each.event]
        except (Malformed, KeyError) as error:
            if on_error == "stop":
                raise Malformed(f"a record of {context.table} cannot be read: {error}") from error
            what = {"reason": "not-readable", "error": str(error)}
            images = {"key": None, "old": None, "new": what}
            operation = "ERROR"
        found.append(_record(each, images, operation, page=page, context=context, backend=backend))
    return found


def _images(record: StreamRecord) -> dict[str, Any]:
    item = _values.item
    return {
        "key": item(record.keys),
        "new": None if record.new is None else item(record.new),
        "old": None if record.old is None else item(record.old),
    }


def _record(
    record: StreamRecord | tuple[RecordHead, bytes, str],
    images: dict[str, Any],
    operation: str,
    *,
    page: Page,
    context: PageContext,
    backend: str,
) -> PythonRecord:
    whole = record if isinstance(record, StreamRecord) else None
    head = None if isinstance(record, StreamRecord) else record[0]
    sequence = whole.sequence if whole else head.sequence if head else ""
    at = whole.created_at if whole else datetime.fromtimestamp(head.created if head else 0, UTC)
    event_id = whole.event_id if whole else ""
    meta = {
        "created_at": at,
        "event": {
            "id": event_id or f"{backend}:{page.partition}:{sequence}",
            "type": whole.event.lower() if whole and operation != "ERROR" else "error",
            "version": whole.version if whole else None,
        },
        "sequence_number": sequence,
        "operation": operation,
        "partition": page.partition,
        "database": None,
        "namespace": None,
        "table": context.table,
        "transaction": None,
        "unchanged": [],
        "delta": {"expired": True} if whole and whole.expired else None,
    }
    return place_of(sequence), int(at.timestamp() * 1e6), images | {"meta": meta}
