"""The body of a message -> the changes in it, each as the map of the layout `penstock`. Pure.

`Penstock-Schema` names the layout, whose plug-in reads the decoded body; `Content-Type` names an
Arrow stream; MessagePack and JSON differ in the first byte. See docs/reference/messages.md.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
import ormsgpack
import pyarrow as pa

from penstock.model.errors import Malformed
from penstock.nats.compression import ENCODING, Decompressor
from penstock.process.plugins import plugin

_KNOWN = frozenset({"event_id", "operation", "backend"})
_ARROW = "application/vnd.apache.arrow.stream"
_SHARED = (
    "backend", "tenant", "database", "schema", "collection", "operation", "relation_id",
    "schema_version",
)  # fmt: skip


def changes_of(
    headers: Mapping[str, str],
    data: bytes,
    decompressor: Decompressor | None = None,
    load: Callable[[bytes], Any] = orjson.loads,
) -> list[Mapping[str, Any]]:
    """The changes of one message, in order; raises Malformed, SettingsError when its layout is not
    installed, and what the decompressor raises. Without one there are no dictionaries. `load` reads
    JSON."""
    if ENCODING in headers:
        data = (decompressor or Decompressor()).plain(headers, data)
    try:
        changes = _changes(headers, data, load)
    except (ValueError, LookupError, TypeError, AttributeError, OSError) as error:
        raise Malformed(
            f"cannot decode a message of {len(data)} bytes by the layout and content type of its"
            " headers"
        ) from error
    for change in changes:
        if not isinstance(change, dict) or not change.keys() >= _KNOWN:
            raise Malformed(f"a message of {len(data)} bytes is not a change")
    return changes


def _changes(
    headers: Mapping[str, str], data: bytes, load: Callable[[bytes], Any]
) -> list[Mapping[str, Any]]:
    if headers.get("Content-Type") == _ARROW:
        return _tabular(data, load)
    try:
        # Neither a map nor an array of MessagePack starts with "{" or "[".
        body = load(data) if data[:1] in (b"{", b"[", b"") else ormsgpack.unpackb(data)
    except ValueError as error:
        raise Malformed(
            f"a message of {len(data)} bytes is neither JSON nor MessagePack"
        ) from error
    # `NAME-VERSION`; the layout `penstock` has its version alone.
    name, named, _ = headers.get("Penstock-Schema", "").partition("-")
    return list(plugin("layouts", name if named else "penstock").changes(body))


def _tabular(data: bytes, load_json: Callable[[bytes], Any]) -> list[Mapping[str, Any]]:
    table = pa.ipc.open_stream(data).read_all()
    given = {name.decode(): value.decode() for name, value in (table.schema.metadata or {}).items()}
    load: Any = ormsgpack.unpackb if given.get("images") == "msgpack" else load_json
    relation = given.get("relation_id")
    shared = {
        **{name: given.get(name) for name in _SHARED},
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


def _iso(when: datetime) -> str:
    return when.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
