"""The memory feed: partitions with any lineage, that end, split, merge and are trimmed."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from types import MappingProxyType
from typing import Any

from penstock.feeds import At, Gap, GapPolicy, HistoryLost, Lineage, Listing
from penstock.feeds.memory.decoder import MemoryDecoder
from penstock.feeds.memory.following import MemoryFollowing
from penstock.feeds.memory.places import (
    COMMITTED,
    bookmark_at,
    number_of,
    number_of_token,
    place_of,
)
from penstock.feeds.memory.settings import MemoryFeedSettings
from penstock.model.change import Images, OnError
from penstock.model.errors import Malformed, SettingsError
from penstock.model.finding import Finding
from penstock.model.page import Decoder
from penstock.model.position import START, Bookmark, Bookmarks, PartitionId, Place


class MemoryFeed:
    """The implementation of `feeds.Feed`. A pickled copy is a feed that remembers nothing."""

    def __init__(self, settings: MemoryFeedSettings) -> None:
        self.settings = settings
        self.acknowledged: dict[PartitionId, Place] = {}
        self.failures: set[tuple[PartitionId, int]] = set()
        """The failures that happened already."""
        self.connections = self.reads = self.listings = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return MemoryFeed, (self.settings,)

    @property
    def backend(self) -> str:
        """See `feeds.Feed`."""
        return self.settings.name

    @property
    def polled(self) -> bool:
        """See `feeds.Polled`."""
        return self.settings.polled

    @property
    def on_gap(self) -> GapPolicy:
        """See `feeds.Feed`."""
        return self.settings.on_gap

    def partitions(self, known: Bookmarks = MappingProxyType({})) -> Listing:
        """See `feeds.Feed`."""
        self.listings += 1
        settings, late = self.settings, self.settings.late if self.listings % 2 else ()
        listed = [
            replace(each, first=self._first(each, known))
            for each in self.lineage.values()
            if each.partition not in settings.unlisted and each.partition not in late
        ]
        return Listing(lineages=listed, history=settings.history)

    def _first(self, lineage: Lineage, known: Bookmarks) -> Bookmark | None:
        """A child of a known parent begins at its beginning; after a start at "now" or a time, at
        the change of that time, also if it is listed late."""
        parents = [known[name] for name in lineage.parents if name in known]
        since = max((int((each.mark or {}).get("since", 0)) for each in parents), default=0)
        return bookmark_at(self.settings, None, since=since) if parents else None

    @cached_property
    def lineage(self) -> Mapping[PartitionId, Lineage]:
        """Every partition that ever was, parents first."""
        roots = [PartitionId(f"p{number}") for number in range(self.settings.partitions)]
        if self.settings.chained:
            parents = [(), *((name,) for name in roots)]
            each = zip(roots, parents, strict=False)
            return {name: Lineage(partition=name, parents=of) for name, of in each}
        found = {name: Lineage(partition=name) for name in roots}
        for root in roots:
            last = [root]
            for generation in range(self.settings.generations):
                if generation % 2 == 0:
                    names = [PartitionId(f"{last[0]}.{half}") for half in (0, 1)]
                else:
                    names = [PartitionId(f"{last[0].rpartition('.')[0]}.m")]
                found |= {name: Lineage(partition=name, parents=tuple(last)) for name in names}
                last = names
        return found

    @cached_property
    def _parents(self) -> set[PartitionId]:
        return {parent for each in self.lineage.values() for parent in each.parents}

    def ends(self, partition: PartitionId) -> bool:
        """Whether a partition has an end."""
        return self.settings.chained or partition in self._parents

    def begin(self, at: At = None) -> Bookmarks:
        """See `feeds.Feed`. What is made up is there from the beginning: "now" is after all of it,
        and a time is after the changes that were committed before it."""
        if isinstance(at, Mapping):
            return at
        roots = [each.partition for each in self.lineage.values() if not each.parents]
        if at is None:
            known = ((name, self.acknowledged.get(name)) for name in roots)
            return {name: bookmark_at(self.settings, place) for name, place in known}
        number = 0
        if at == "now":
            number = self.settings.changes
        elif isinstance(at, datetime):
            number = max(0, -((COMMITTED - at) // timedelta(milliseconds=1)))
        number = min(number, self.settings.changes)
        return {name: bookmark_at(self.settings, None, since=number) for name in roots}

    def newest(self, partition: PartitionId) -> Place | None:
        """See `feeds.EstimatesLag`."""
        changes = self.settings.changes
        return place_of(self.settings, partition, changes - 1) if changes else None

    def remaining(self, partition: PartitionId, bookmark: Bookmark) -> int | None:
        """See `feeds.EstimatesLag`."""
        done = int((bookmark.mark or {}).get("since", 0))
        if bookmark.place is not None:
            done = number_of(self.settings, bookmark.place) + 1
        return self.settings.changes - done

    def follow(
        self,
        partition: PartitionId,
        bookmark: Bookmark = START,
        *,
        despite: Sequence[Gap] = (),
    ) -> MemoryFollowing:
        """See `feeds.Feed`."""
        self.connections += 1
        if partition not in self.lineage:
            raise SettingsError(f"there is no partition {partition}")
        after, since = (
            self._resumed(partition, bookmark),
            int((bookmark.mark or {}).get("since", 0)),
        )
        following = MemoryFollowing(self, partition, after, since=since)
        first = following.next
        for gap, begins in self._gaps(partition, bookmark, after, first):
            if gap.cause not in {each.cause for each in despite}:
                lost = HistoryLost(gap, hint="on_gap: continue goes on after the gap")
                if self.settings.found == "follow":
                    raise lost
                return MemoryFollowing(self, partition, after, since=since, loss=lost)
            first = max(first, begins)
        following.next, following.begins = first, str(first) if despite else ""
        return following

    def _gaps(
        self, partition: PartitionId, bookmark: Bookmark, after: Place | None, first: int
    ) -> Sequence[tuple[Gap, int]]:
        """What the partition lost, and the change that it goes on with after each gap."""
        settings, found = self.settings, list[tuple[str, str, int]]()
        history = (bookmark.mark or {}).get("history", settings.history)
        if history != settings.history:
            found.append(("other_history", f"the source is {settings.history}, not {history}", 0))
        if partition == "p0" and first < settings.trimmed:
            text = f"{partition} begins at change {settings.trimmed} by now"
            found.append(("trimmed", text, settings.trimmed))
        if partition in settings.unlisted and first < settings.changes:
            text = f"{self.backend} no longer lists the partition {partition}"
            found.append(("partition_gone", text, settings.changes))
        place = "" if after is None else str(after)
        return [
            (Gap(cause=cause, after=place, detail=text, policy=settings.on_gap), begins)
            for cause, text, begins in found
        ]

    def _resumed(self, partition: PartitionId, bookmark: Bookmark) -> Place | None:
        """After which change to follow: with `tokens` the one that the mark names."""
        if bookmark.place is None:
            return self.acknowledged.get(partition)
        if not self.settings.tokens:
            return bookmark.place
        number = number_of_token(str((bookmark.mark or {}).get("token", "")))
        if number is None:
            raise Malformed(f"the bookmark of {partition} at {bookmark.place} has no token")
        return place_of(self.settings, partition, number)

    def status(self) -> Mapping[str, Any]:
        """See `feeds.Feed`."""
        return {"state": self.settings.state, "message": "", "at_risk": ""}

    def decoder(self, images: Images, on_error: OnError = "stop") -> Decoder:
        """See `feeds.Feed`. What it makes up can be read."""
        return MemoryDecoder(self.settings, images)

    def check(self) -> Sequence[Finding]:
        """See `feeds.Feed`."""
        return [Finding(level="ok", subject=self.backend, message="made up in memory")]
