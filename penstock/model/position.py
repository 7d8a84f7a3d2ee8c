"""Where we are: a place inside one partition, and the bookmark that is stored for it.

A cursor is opaque outside its feed, except for one promise that every feed makes: inside one
partition, cursors compare as text in the order of their changes. (PostgreSQL pads its commit LSN,
MongoDB its cluster time, DynamoDB its sequence number.) So a sink can compare places without
knowing the feed.
"""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, NewType

from penstock.model.errors import Malformed

PartitionId = NewType("PartitionId", str)
# The partition of a load whose rows belong to all partitions of a table together. Those hold their
# changes until the load has ended. No source has this name.
ROWS = PartitionId("*/rows")

# What a feed stores beside a place, plain JSON of its own: a resume token, a continuation, which
# history of which server the place belongs to.
Mark = Mapping[str, Any]


class Place(NamedTuple):
    """One change's place in its partition; compares as the source ordered them.

    `cursor` names the source's unit (transaction, page), `ordinal` counts changes inside it from 0.
    As a progress mark it means "this change and everything before it".
    """

    cursor: str
    ordinal: int

    def __str__(self) -> str:
        return f"{self.cursor}:{self.ordinal}"

    @classmethod
    def parse(cls, text: str) -> "Place":
        """The inverse of `str(place)`; raises Malformed on anything else."""
        cursor, _, ordinal = text.rpartition(":")
        if not cursor or not ordinal.isdecimal():
            raise Malformed(f"{text!r} is not a place (CURSOR:ORDINAL)", "model")
        return tuple.__new__(cls, (cursor, int(ordinal)))  # half the time of cls(...)


class Bookmark(NamedTuple):
    """How far a partition is done, and what its feed needs to go on from there.

    It is the saved position, the token, the lease's continuation and, under Spark, the offset.
    `place`: None is before the first change. `mark`: None if nothing stores marks. `ended`: the
    partition has an end, and all of it is done.
    """

    place: Place | None = None
    mark: Mark | None = None
    ended: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain JSON: `place` ("CURSOR:ORDINAL" or null), `mark`, and `ended` if it is true."""
        place = None if self.place is None else str(self.place)
        found = {"place": place, "mark": None if self.mark is None else dict(self.mark)}
        return found | {"ended": True} if self.ended else found

    @classmethod
    def from_json(cls, document: Any) -> "Bookmark":
        """The inverse; a place alone, as text, is a bookmark without a mark. Raises Malformed."""
        if isinstance(document, str):
            document = {"place": document}
        try:
            place, mark = document["place"], document.get("mark")
            return cls(
                None if place is None else Place.parse(place),
                None if mark is None else dict(mark),
                bool(document.get("ended", False)),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise Malformed(f"{json.dumps(document)[:80]} is not a bookmark", "model") from error


# Where a partition begins that nothing is known of.
START = Bookmark()

# A partition that is absent has not been started.
Bookmarks = Mapping[PartitionId, Bookmark]
Position = Mapping[PartitionId, Place]


def bookmarks_to_json(bookmarks: Bookmarks) -> dict[str, Any]:
    """Plain JSON: partition id -> bookmark, sorted: equal bookmarks are equal text."""
    return {partition: bookmarks[partition].to_json() for partition in sorted(bookmarks)}


def bookmarks_from_json(document: Mapping[str, Any]) -> dict[PartitionId, Bookmark]:
    """The inverse of `bookmarks_to_json`; raises Malformed."""
    return {PartitionId(name): Bookmark.from_json(each) for name, each in document.items()}
