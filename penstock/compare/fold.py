"""The last state of each document of one collection, as the changes of a stream give it. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["Fold"]

Identity = Callable[[Mapping[str, Any]], str]


class Fold:
    """Changes of one collection -> its documents. `identity` gives the text of a key."""

    def __init__(self, identity: Identity) -> None:
        self.documents: dict[str, Mapping[str, Any]] = {}
        self.changes = 0
        self._identity = identity

    def apply(self, body: Mapping[str, Any]) -> list[str]:
        """Applies one change; returns the documents that it may have changed."""
        self.changes += 1
        operation = body["operation"]
        if operation in ("TRUNCATE", "DROP"):
            gone = list(self.documents)
            self.documents.clear()
            return gone
        if body.get("key") is None and body.get("document_id") is None:
            return []  # no document: a message, a rename
        now = self._identity(body)
        was = self._before(body) or now
        old = self.documents.pop(was, None)
        if operation != "DELETE":
            # Unchanged is not null; without data the document was gone when it was looked up.
            data = body.get("data") or old
            if data is not None:
                same = [name for name in body.get("unchanged") or () if old and name in old]
                self.documents[now] = {**data, **{name: (old or {})[name] for name in same}}
        return [was] if was == now else [was, now]

    def _before(self, body: Mapping[str, Any]) -> str | None:
        """The document's identity before an update that changed its key."""
        key, before = body.get("key"), body.get("before")
        if not key or not before or any(name not in before for name in key):
            return None
        return self._identity({**body, "key": {name: before[name] for name in key}})
