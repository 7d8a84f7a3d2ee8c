"""Where a shard is read from, as pure code: after a place, or from what a bookmark's mark says.

A mark is `{"from": "trim_horizon" | seconds since 1970, "asked": seconds}`; `asked` is when it was
made. `from` stays until a record was read. Of an open shard that was read from "now" on there is
`iterator` as well, which is exact while it lives; the time is for afterwards. `iterator` without
`from` is no horizon: when it expires, the place is unknown.

`{"through": seconds}`, with a place or without, is the age of the data: everything that was created
until then was read. If it is longer ago than a stream keeps its records, some may be gone. Without
it (older bookmarks) a time in `from`, `asked` or `read` (when the shard was last read) counts.

`{"backlog": [asked, read]}`, with a place, is of a first start that has not read up to `asked` yet:
what is lost before such a start is no gap. A record that was read proves that all later ones were
there at `read`, so that its shard's children can be read for a while after that, however old it is.
"""

from dataclasses import dataclass, replace
from typing import Any

from penstock.model.errors import Malformed
from penstock.model.position import Bookmark, Mark, Place

# Seconds: how long an iterator lives, less a margin; how long a stream keeps a record.
LIFETIME = 14 * 60.0
RETENTION = 24 * 3600.0
# Seconds after a read for which nothing of a first start's backlog counts as trimmed.
_BACKLOG = 15 * 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardBeginning:
    """Where to read from. `since` is None for the trim horizon; `asked` and `through` are 0 if not
    known; `pinned` is False where nothing but the iterator is known. `begun` and `read`: when the
    backlog of a first start was asked for, and last read."""

    after: Place | None = None
    since: float | None = None
    asked: float = 0.0
    through: float = 0.0
    iterator: str = ""
    pinned: bool = True
    begun: float = 0.0
    read: float = 0.0

    def to_mark(self) -> dict[str, Any]:
        if not self.pinned:
            return {"iterator": self.iterator}
        mark: dict[str, Any] = {"from": "trim_horizon" if self.since is None else self.since}
        mark |= {"asked": round(self.asked, 6)} if self.asked else {}
        mark |= {"through": int(self.through)} if self.through else {}
        return mark | ({"iterator": self.iterator} if self.iterator else {})

    def without_iterator(self) -> "ShardBeginning":
        """The same after the iterator has expired; one that is not pinned stays."""
        return replace(self, iterator="") if self.pinned else self

    def read_through(self, through: float, now: float) -> "ShardBeginning":
        """The same place; there was nothing that was created until `through`."""
        kept = replace(self, through=max(self.through, through))
        return kept if self.live_iterator(now) else kept.without_iterator()

    def is_overdue(self, now: float) -> bool:
        """Whether records that belong to us may be older than the stream keeps them."""
        through = self.through or self.asked
        if self.begun > through:
            through = max(through, self.read + _BACKLOG - RETENTION)
        return self.after is None and 0 < through < now - RETENTION

    def live_iterator(self, now: float) -> str:
        """The iterator, if it still lives; if it is not known since when, the service decides."""
        lives = not self.pinned or now - self.asked < LIFETIME
        return self.iterator if lives else ""


def beginning_of(bookmark: Bookmark) -> ShardBeginning:
    """From a bookmark. A child begins at its own beginning; if nothing was read of its parents, it
    inherits where they began. Raises Malformed."""
    try:
        return _beginning_of(bookmark)
    except (ValueError, TypeError, AttributeError) as error:
        raise Malformed(f"the mark of a bookmark is damaged: {error}", "dynamodb") from error


def _beginning_of(bookmark: Bookmark) -> ShardBeginning:
    mark = bookmark.mark or {}
    if bookmark.place is not None:
        begun, read = mark.get("backlog", (0.0, 0.0))
        return ShardBeginning(
            after=bookmark.place, through=_through(mark), begun=float(begun), read=float(read)
        )
    parents = parents_of(bookmark)
    if not parents:
        return _from_mark(mark)
    # What a shard has was created after the last that its parents have.
    through = max(_through(each.mark or {}) for each in parents)
    first = _beginning_of(parents[0])
    if any(each.place is not None for each in parents) or not first.pinned:
        return ShardBeginning(through=through, begun=first.begun, read=first.read)
    # A parent's iterator says nothing about its children, which begin after all of it.
    return replace(first.without_iterator(), through=through)


def _from_mark(mark: Mark) -> ShardBeginning:
    since, asked = mark.get("from", "trim_horizon"), float(mark.get("asked", 0))
    return ShardBeginning(
        since=None if since == "trim_horizon" else float(since),
        asked=asked,
        begun=asked,
        read=asked,
        through=_through(mark),
        iterator=str(mark.get("iterator", "")),
        pinned="from" in mark or not mark.get("iterator"),
    )


def _through(mark: Mark) -> float:
    """The age of the data; 0 if it is not known."""
    since, asked = mark.get("from", "trim_horizon"), float(mark.get("asked", 0))
    if "through" in mark:
        return float(mark["through"])
    if since != "trim_horizon":
        return asked if mark.get("iterator") else float(since)
    return float(mark.get("read", 0))


def parents_of(bookmark: Bookmark) -> list[Bookmark]:
    """Where the parents of a shard ended, in its first bookmark."""
    found = (bookmark.mark or {}).get("parents", {})
    return [Bookmark.from_json(each) for each in found.values()]


def is_before(created: float, since: float) -> bool:
    """Whether a record was surely created before `since`. Services cut times to the second, and
    DynamoDB Local to the minute: rather one too many than one too few. 0 is not known."""
    return 0 < created <= since - (60 if created % 60 == 0 else 1)
