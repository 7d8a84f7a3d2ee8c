"""One message of the stream, decoded: the consumer's view of a change. Pure.

Understands the `penstock` layout, MessagePack or JSON, told apart by the first byte.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
import ormsgpack

from penstock.errors import Malformed
from penstock.position import Place

__all__ = ["Message", "decode_body"]

_KNOWN = ("event_id", "operation", "backend")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A stored message: where and when JetStream stored it, and its decoded body."""

    sequence: int
    subject: str
    stored_at: datetime
    headers: Mapping[str, str]
    body: Mapping[str, Any]

    @property
    def event_id(self) -> str:
        """The change's identity, the same on every replay."""
        return str(self.body["event_id"])

    @property
    def place(self) -> Place:
        """The change's place in its partition, taken from its identity."""
        return Place.parse(self.event_id.removeprefix(f"{self.body['backend']}:"))

    @property
    def operation(self) -> str:
        """INSERT, UPDATE, DELETE, ..."""
        return str(self.body["operation"])

    @property
    def collection(self) -> str:
        """The table, or "" where there is none (a logical message)."""
        return str(self.body.get("collection") or "")

    @property
    def committed_at(self) -> datetime | None:
        """When the source committed the change."""
        text = self.body.get("committed_at")
        return datetime.fromisoformat(text) if text else None


def decode_body(data: bytes) -> Mapping[str, Any]:
    """MessagePack or JSON -> the change as a map; raises Malformed."""
    try:
        # No MessagePack map starts with 0x7b, which is "{".
        body = orjson.loads(data) if data[:1] in (b"{", b"") else ormsgpack.unpackb(data)
    except ValueError as error:
        raise Malformed(
            f"a message of {len(data)} bytes is neither JSON nor MessagePack"
        ) from error
    if not isinstance(body, dict) or any(name not in body for name in _KNOWN):
        raise Malformed(f"a message of {len(data)} bytes is not a change")
    return body
