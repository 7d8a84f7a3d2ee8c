"""Where a query without saved positions began: kept in its first offset.

Spark logs where a micro-batch ends, and asks the source anew where the first one starts: after a
crash before the first commit, and at every start until there is a change. So the first end comes at
once, with a change or without, and carries the beginning.
"""

from collections.abc import Mapping
from typing import Any

from penstock.position import Bookmark, PartitionId, bookmarks_from_json

__all__ = ["bookmarks_of", "start_of", "with_beginning"]

Json = Mapping[str, Any]

# Beside the partitions of an offset. No feed names a partition so.
_BEGUN = "@begun"


def with_beginning(end: Json, begun: Json) -> dict[str, Any]:
    """The first offset of a query that began at `begun`."""
    return {**end, _BEGUN: begun}


def start_of(end: Json, start: Json) -> Json:
    """Where the micro-batch starts whose end that is."""
    found: Json = end.get(_BEGUN, start)
    return found


def bookmarks_of(offset: Json) -> dict[PartitionId, Bookmark]:
    """The bookmarks of any offset; raises Malformed."""
    return bookmarks_from_json({name: each for name, each in offset.items() if name != _BEGUN})
