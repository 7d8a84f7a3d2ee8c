"""Log lines for connections to sources: each loss and each recovery, from the board's reports.

Of a backend with many partitions the connection is lost when none of them is read. A loss that is
over before the next report shows in the number of reconnects.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from penstock.ops.announce import Announcement
from penstock.ops.board import Entry, Snapshot

LOST, BACK = "the source's connection is lost", "the source's connection is back"


class _Seen(NamedTuple):
    """Of a backend at the last look: `lost` is when its connection was, None while there is one."""

    reconnects: int
    at: float
    lost: float | None


class SourceConnections:
    """Of all backends of a pipeline."""

    def __init__(self) -> None:
        self._seen: dict[str, _Seen] = {}

    def changes(self, snapshot: Snapshot) -> Iterator[Announcement]:
        """What happened since the last call."""
        for (kind, name), entry in snapshot.items():
            if kind == "source" and "connected" in entry.fields:
                yield from self._changes(name, entry)

    def _changes(self, name: str, entry: Entry) -> Iterator[Announcement]:
        fields = entry.fields
        count = int(fields.get("reconnects") or 0)
        seen = self._seen.get(name, _Seen(count, entry.at, None))
        lost, back = seen.lost, entry.changed["connected"]
        # A reader that stops, or has not connected yet, has no error.
        if not fields["connected"] and fields.get("last_error"):
            if lost is None:
                lost = back
                yield _lost(name, fields)
        elif fields["connected"]:
            if lost is None and count > seen.reconnects and fields.get("partition_count", 1) == 1:
                lost, back = seen.at, entry.at
                yield _lost(name, fields)
            if lost is not None:
                yield Announcement("info", BACK, {"backend": name, "away": round(back - lost, 1)})
                lost = None
        self._seen[name] = _Seen(count, entry.at, lost)


def _lost(name: str, fields: Mapping[str, Any]) -> Announcement:
    error = fields.get("last_error")
    return Announcement("warning", LOST, {"backend": name} | ({"error": error} if error else {}))
