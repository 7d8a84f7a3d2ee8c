"""Where we are: a place inside one partition, and a position over all of them.

A cursor is opaque outside its feed, except for one promise that every feed makes: inside one
partition, cursors compare as text in the order of their changes. (PostgreSQL pads its commit LSN,
MongoDB its cluster time, DynamoDB its sequence number.) So a sink can compare places without
knowing the feed.
"""

from collections.abc import Mapping
from typing import NamedTuple, NewType

from penstock.errors import Malformed

__all__ = ["DRAINED", "PartitionId", "Place", "Position", "position_from_json", "position_to_json"]

PartitionId = NewType("PartitionId", str)


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
        cursor, colon, ordinal = text.rpartition(":")
        if not colon or not cursor or not ordinal.isdecimal():
            raise Malformed(f"{text!r} is not a place (CURSOR:ORDINAL)")
        return cls(cursor, int(ordinal))


# The place of a partition that has ended and is done: behind every cursor, which are alphanumeric.
DRAINED = Place("~", 0)

# A partition that is absent has not been started; its feed decides where it begins.
Position = Mapping[PartitionId, Place]


def position_to_json(position: Position) -> dict[str, str]:
    """Plain JSON: partition id -> "CURSOR:ORDINAL", sorted: equal positions are equal text."""
    return {partition: str(position[partition]) for partition in sorted(position)}


def position_from_json(document: Mapping[str, str]) -> dict[PartitionId, Place]:
    """The inverse of `position_to_json`; raises Malformed."""
    return {PartitionId(partition): Place.parse(text) for partition, text in document.items()}
