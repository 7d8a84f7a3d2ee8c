"""The memory feed: partitions with any lineage, that end, split, merge and are trimmed."""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from penstock.change import Images, OnError
from penstock.errors import Malformed, SettingsError
from penstock.feeds import At, Following, Gap, GapPolicy, HistoryLost, Lineage, SharedConnection
from penstock.feeds.memory.decoder import FetchingDecoder, MemoryDecoder
from penstock.feeds.memory.following import MemoryConnection, MemoryFollowing
from penstock.feeds.memory.places import (
    COMMITTED,
    bookmark_at,
    number_of,
    number_of_token,
    place_of,
)
from penstock.feeds.memory.settings import MemoryFeedSettings
from penstock.finding import Finding
from penstock.page import Decoder
from penstock.position import START, Bookmark, Bookmarks, PartitionId, Place

__all__ = ["MemoryFeed"]


class MemoryFeed:
    """The implementation of `feeds.Feed`. A pickled copy is a feed that remembers nothing."""

    def __init__(self, settings: MemoryFeedSettings) -> None:
        self.settings = settings
        self.acknowledged: dict[PartitionId, Place] = {}
        self.failures: set[tuple[PartitionId, int]] = set()
        """The failures that happened already."""
        self.connections = 0
        self.reads = 0

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

    def partitions(self) -> Sequence[Lineage]:
        """See `feeds.Feed`."""
        return [each for each in self.lineage.values() if each.partition not in self._unlisted]

    @property
    def _unlisted(self) -> tuple[str, ...]:
        return self.settings.unlisted

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
        return {
            name: bookmark_at(
                self.settings, place_of(self.settings, name, number - 1) if number else None
            )
            for name in roots
        }

    def newest(self, partition: PartitionId) -> Place | None:
        """See `feeds.EstimatesLag`."""
        changes = self.settings.changes
        return place_of(self.settings, partition, changes - 1) if changes else None

    def remaining(self, partition: PartitionId, bookmark: Bookmark) -> int | None:
        """See `feeds.EstimatesLag`."""
        done = 0 if bookmark.place is None else number_of(self.settings, bookmark.place) + 1
        return self.settings.changes - done

    def follow(
        self, partition: PartitionId, bookmark: Bookmark = START, *, despite: Gap | None = None
    ) -> Following:
        """See `feeds.Feed`."""
        self.connections += 1
        return self.following(partition, bookmark, despite)

    def shared_connection(self) -> SharedConnection | None:
        """See `feeds.FollowsMany`."""
        return MemoryConnection(self) if self.settings.shared else None

    def read_once(self) -> None:
        """What each read costs, of one partition or of several."""
        self.reads += 1
        if self.settings.latency:
            time.sleep(self.settings.latency)

    def following(
        self, partition: PartitionId, bookmark: Bookmark, despite: Gap | None
    ) -> MemoryFollowing:
        """A partition that is read, over a connection that is counted elsewhere."""
        if partition not in self.lineage:
            raise SettingsError(f"there is no partition {partition}")
        after = self._resumed(partition, bookmark)
        following = MemoryFollowing(self, partition, after)
        cause, first = "trimmed", self.settings.trimmed if partition == "p0" else 0
        if partition in self._unlisted:
            cause, first = "partition_gone", self.settings.changes
        if following.next >= first:
            return following
        if despite is None:
            details = {
                "trimmed": f"{partition} begins at change {first} by now",
                "partition_gone": f"{self.backend} no longer lists the partition {partition}",
            }
            gap = Gap(
                cause=cause,
                after="" if after is None else str(after),
                detail=details[cause],
                policy=self.settings.on_gap,
            )
            raise HistoryLost(gap, hint="on_gap: continue goes on after the gap")
        following.next = first
        following.begins = str(first)
        return following

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

    def decoder(self, images: Images, on_error: OnError = "stop") -> Decoder:
        """See `feeds.Feed`. What it makes up can be read."""
        kind = FetchingDecoder if self.settings.fetched else MemoryDecoder
        return kind(self.settings, images)

    def check(self) -> Sequence[Finding]:
        """See `feeds.Feed`."""
        return [Finding(level="ok", subject=self.backend, message="made up in memory")]
