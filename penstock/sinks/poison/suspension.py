"""Whether a table is followed: a state machine and the record of it. Pure.

While a table is suspended its changes are not published. They are counted, and the record says from
where to where they are missing, so that consumers see the hole.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

import orjson

from penstock.model.errors import Malformed
from penstock.model.machine import step
from penstock.model.position import Place

# The reason where an operator asked for it.
BY_HAND = "by-hand"
# Holes that a record remembers, the oldest forgotten first.
_HOLES = 50


class SuspensionState(StrEnum):
    """RESUMING: an operator asked for it, and the next change of the table does it."""

    FOLLOWING = "following"
    SUSPENDED = "suspended"
    RESUMING = "resuming"


class Event(StrEnum):
    POISONED = "poisoned"
    ASKED = "asked"
    MENDED = "mended"
    CHANGE = "change"


# (state, event) -> state; what is not here cannot happen.
TRANSITIONS: Mapping[tuple[SuspensionState, Event], SuspensionState] = {
    (SuspensionState.FOLLOWING, Event.POISONED): SuspensionState.SUSPENDED,
    (SuspensionState.RESUMING, Event.POISONED): SuspensionState.SUSPENDED,
    (SuspensionState.SUSPENDED, Event.ASKED): SuspensionState.RESUMING,
    (SuspensionState.RESUMING, Event.ASKED): SuspensionState.RESUMING,
    (SuspensionState.SUSPENDED, Event.MENDED): SuspensionState.FOLLOWING,
    (SuspensionState.RESUMING, Event.MENDED): SuspensionState.FOLLOWING,
    (SuspensionState.RESUMING, Event.CHANGE): SuspensionState.FOLLOWING,
}


class Table(NamedTuple):
    backend: str
    schema: str
    collection: str

    def __str__(self) -> str:
        return ".".join(name for name in (self.schema, self.collection) if name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """Changes of a table that are missing in the stream: from `first` to `last`, both included, in
    one partition. `skipped` counts them; one that is `open` still grows."""

    partition: str
    first: str
    last: str
    skipped: int
    reason: str
    open: bool = True

    def has(self, place: Place) -> bool:
        """True when the change at `place` is one of them."""
        return Place.parse(self.first) <= place <= Place.parse(self.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspension:
    """A table's record. `since` is when it came into its state (ISO 8601); `columns` and `limit`
    are what its changes looked like and what the server took when it was suspended."""

    backend: str
    schema: str
    collection: str
    relation_id: int | None = None
    state: SuspensionState = SuspensionState.FOLLOWING
    reason: str = ""
    error: str = ""
    since: str = ""
    columns: tuple[str, ...] = ()
    limit: int = 0
    holes: tuple[Hole, ...] = ()

    @classmethod
    def of(cls, table: Table) -> "Suspension":
        """The record of a table that never was suspended."""
        return cls(backend=table.backend, schema=table.schema, collection=table.collection)

    @property
    def table(self) -> Table:
        return Table(self.backend, self.schema, self.collection)

    @property
    def skipped(self) -> int:
        """Changes that are missing, over all holes."""
        return sum(hole.skipped for hole in self.holes)

    def after(self, event: Event, now: str, **fields: Any) -> "Suspension":
        """The record after an event at `now`; raises Malformed for one that cannot happen."""
        try:
            state = step(TRANSITIONS, self.state, event)
        except KeyError as error:
            raise Malformed(f"the table {self.table}: {error.args[0]}", "poison") from None
        since = now if state is not self.state else self.since
        holes = self.holes
        if state is SuspensionState.FOLLOWING:
            holes = tuple(replace(hole, open=False) for hole in holes)
        return replace(self, state=state, since=since, holes=holes, **fields)

    def hides(self, partition: str, place: Place) -> bool:
        """True when the change at this place is not to be published. One that is before its
        suspension and is offered again is none of it."""
        if self.skipped_before(partition, place):
            return True
        begun = [hole for hole in self.holes if hole.open and hole.partition == partition]
        return self.state is not SuspensionState.FOLLOWING and all(
            Place.parse(hole.first) <= place for hole in begun
        )

    def skip(self, partition: str, places: "list[Place]") -> "Suspension":
        """The record when the changes at these places, in order, are skipped; one that was counted
        before (it was offered again) is not counted twice."""
        fresh = [place for place in places if not self.skipped_before(partition, place)]
        if not fresh:
            return self
        if any(hole.open and hole.partition == partition for hole in self.holes):
            return replace(self, holes=tuple(_grown(hole, partition, fresh) for hole in self.holes))
        hole = Hole(
            partition=partition,
            first=str(fresh[0]),
            last=str(fresh[-1]),
            skipped=len(fresh),
            reason=self.reason,
        )
        return replace(self, holes=(*self.holes, hole)[-_HOLES:])

    def begins(self, partition: str, place: Place) -> bool:
        """True when the change at this place is the first of a hole."""
        return any(hole.partition == partition and hole.first == str(place) for hole in self.holes)

    def skipped_before(self, partition: str, place: Place) -> bool:
        """True when the change at this place was skipped, and counted."""
        return any(hole.partition == partition and hole.has(place) for hole in self.holes)

    def to_json(self) -> bytes:
        return orjson.dumps({**asdict(self), "skipped": self.skipped})

    @classmethod
    def parse(cls, body: bytes) -> "Suspension":
        """The inverse of `to_json`; raises Malformed."""
        try:
            fields = orjson.loads(body)
            fields.pop("skipped")
            fields["state"] = SuspensionState(fields["state"])
            fields["columns"] = tuple(fields["columns"])
            fields["holes"] = tuple(Hole(**hole) for hole in fields["holes"])
            return cls(**fields)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise Malformed("a message is no record of a table", "poison") from error


def _grown(hole: Hole, partition: str, places: list[Place]) -> Hole:
    if not hole.open or hole.partition != partition:
        return hole
    return replace(hole, last=str(places[-1]), skipped=hole.skipped + len(places))
