"""Feeds: one per database system. The contract is here; each implementation has its own folder.

A feed knows its partitions and can follow one of them from a place. Following is I/O only; what
it returns are pages, and a page is decoded elsewhere, by the feed's pure decoder.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from penstock.change import Images, OnError
from penstock.errors import PositionLost
from penstock.finding import Finding
from penstock.page import Decoder, Page
from penstock.position import PartitionId, Place
from penstock.settings import Settings

__all__ = [
    "Feed",
    "FeedPlugin",
    "Following",
    "Gap",
    "HistoryLost",
    "Holder",
    "Lineage",
    "Mark",
    "TellsItsReader",
    "TellsOfTables",
]

# What is stored with a position, plain JSON of the feed's own: which history it belongs to.
Mark = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """One partition and its parents, which are drained before it starts."""

    partition: PartitionId
    parents: tuple[PartitionId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Changes that the source cannot give us any more, or that it took back.

    `cause` is machine-readable. The hole is behind `after` (a place, or "" for nothing stored yet)
    and ends at `to`, a position of the source; "" as long as nobody knows. `detail` says it for
    people. `continues`: whether the feed's policy is to go on behind it.
    """

    cause: str
    after: str
    to: str = ""
    detail: str = ""
    continues: bool = False


class HistoryLost(PositionLost):
    """The changes behind a position are gone, or the source is another one: `gap` says which."""

    def __init__(self, gap: Gap, *, hint: str = "") -> None:
        super().__init__(gap.detail, hint=hint)
        self.gap = gap

    def __reduce__(self) -> tuple[object, ...]:
        return _lost, (self.gap, self.hint)


def _lost(gap: Gap, hint: str) -> HistoryLost:
    return HistoryLost(gap, hint=hint)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who reads a partition now, at the source: `reader` names it there (a process id)."""

    partition: PartitionId
    reader: str
    text: str


class Following(Protocol):
    """One partition, being read. Owned by one thread, except for `acknowledge` and `status`.

    Nothing depends on `close` being called.
    """

    def read(self, timeout: float) -> Sequence[Page]:
        """The next pages, in order; waits at most `timeout` seconds and then returns none.

        Raises Unavailable (follow again from the last place), PositionLost, Malformed or
        SettingsError.
        """
        ...

    @property
    def drained(self) -> bool:
        """Whether the partition has ended and `read` has returned all of it (a closed shard, a
        split feed range, a snapshot chunk). Its children may start when this is durable. A
        partition without an end (a slot, a change stream) is never drained."""
        ...

    def keep_alive(self) -> None:
        """Tells the source that we are still there; called every few seconds while nobody reads
        (the buffer is full). Takes no data off the wire."""
        ...

    def acknowledge(self, place: Place) -> None:
        """Everything up to and including `place` is durable; the source may forget it.

        Only notes it, from any thread; the reading thread tells the source with its next `read`
        or `keep_alive`. What the source need not keep for us (a filtered change, an idle log)
        is acknowledged by the following itself, as soon as nothing before it is in flight.
        """
        ...

    def mark(self, place: Place | None) -> Mark | None:
        """What to store together with `place`, which is durable (None: nothing is yet): with it
        `Feed.follow` can tell later whether the source still is the one that we know, and has all
        that follows. None: what is stored already. From any thread."""
        ...

    def settle(self, mark: Mark | None) -> None:
        """`mark` is stored: the source may be told as much as it covers. None: nobody stores
        marks, so whatever is durable may be told at once. Only notes it, from any thread."""
        ...

    @property
    def begins(self) -> str:
        """Where in the source's own terms this following began; the end of a gap before it."""
        ...

    def status(self) -> Mapping[str, Any]:
        """Plain JSON for the status page: at least `connected`; current and confirmed places."""
        ...

    def close(self) -> None:
        """Lets go of the connection, telling the source the last acknowledged place first."""
        ...


class Feed(Protocol):
    """A change feed that is read partition by partition.

    Constructing one does no I/O, and a feed pickles (it is its settings). `follow` may be called
    again from any place it has returned, and yields exactly the changes after it as long as the
    source still has them; pages may be cut differently, changes never differ.
    """

    @property
    def backend(self) -> str:
        """The pipeline's name for this source: part of every event id."""
        ...

    def partitions(self) -> Sequence[Lineage]:
        """The partitions there are now. Does I/O; raises as `Following.read` does."""
        ...

    def prepare(self) -> None:
        """Makes what following needs and may be made (a slot, a publication when asked); pins
        "now" for a first start. Idempotent. Does I/O."""
        ...

    def follow(
        self,
        partition: PartitionId,
        after: Place | None,
        mark: Mark | None = None,
        *,
        despite: Gap | None = None,
    ) -> Following:
        """Reads `partition` from behind `after`; None is where the source itself remembers us to
        be (a slot's confirmed position, a trim horizon), never silently "now".

        `mark` is what was stored with `after`; None: nobody stores marks. If the source lacks
        what follows `after`, or is another one, this raises HistoryLost with the gap; called
        again `despite` that gap, it makes anew what is needed, and follows from behind the hole.
        """
        ...

    def decoder(self, images: Images, on_error: OnError = "stop") -> Decoder:
        """A pure decoder of this feed's pages. Pickles. Unless `on_error` is `stop`, a change that
        can't be read is a change with the operation ERROR, and the rest of its page as ever."""
        ...

    def check(self) -> Sequence[Finding]:
        """Preflight: everything that could keep this feed from running or make it lose data."""
        ...


@runtime_checkable
class TellsOfTables(Protocol):
    """A feed that knows which tables it follows."""

    def tables(self) -> Sequence[tuple[str, str]]:
        """(schema, table), as they are now, by name. Raises Unavailable, SettingsError."""
        ...


@runtime_checkable
class TellsItsReader(Protocol):
    """A feed whose partitions have one reader at a time, known at the source."""

    def holders(self) -> Sequence[Holder]:
        """Who reads now, for each partition that is being read. Does I/O; raises Unavailable."""
        ...

    def evict(self, holder: Holder) -> None:
        """Ends that reader's connection: it lost its lease and does not let go. Does I/O."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedPlugin:
    """What a feed's entry point names: its settings and how to build it."""

    settings: type[Settings]
    build: Callable[[Any], Feed]
