"""One change of the stream, decoded: the consumer's view of it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.model.position import Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A change: where and when JetStream stored the message that it is in, and the change as the
    layout `penstock` has it. Changes that share a message share its sequence and headers."""

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
        """The change's place in its partition."""
        return Place.parse(str(self.body["position"]))

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
