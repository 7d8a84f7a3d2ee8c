"""The memory feed with a script: partitions that end, split, merge and are trimmed, a source that
loses its history and fails on demand, and changes with opaque tokens.

`type: staged` in a pipeline file needs the fixture `staged`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

import pyarrow as pa
from pydantic import Field, model_validator

from penstock.feeds import At, FeedPlugin, Gap, HistoryLost, Lineage, Listing
from penstock.feeds.memory import (
    MemoryDecoder,
    MemoryFeed,
    MemoryFeedSettings,
    MemoryFollowing,
    number_of,
    place_of,
)
from penstock.feeds.shared import PolicyWithoutSnapshots
from penstock.model.change import Images, OnError
from penstock.model.errors import Malformed, SettingsError, Unavailable
from penstock.model.page import Page
from penstock.model.position import START, Bookmark, Bookmarks, PartitionId, Place


class StagedSettings(MemoryFeedSettings):
    """What happens at the source."""

    type: Literal["staged"] = "staged"  # type: ignore[assignment]
    chained: bool = False
    """Each partition is the parent of the next, and ends; else they are side by side, endless."""
    generations: int = Field(0, ge=0)
    """How often each partition ends: it splits into two (`p0.0`, `p0.1`), and at the next end the
    two merge into one (`p0.m`), which splits again."""
    fail_at: tuple[int, ...] = ()
    """Numbers of changes that can't be read the first time: `read` raises Unavailable once."""
    trimmed: int = Field(0, ge=0)
    """The source has no changes of `p0` before this number any more."""
    unlisted: tuple[str, ...] = ()
    """Partitions that the source no longer lists, and that are gone."""
    found: Literal["follow", "read"] = "follow"
    """Whether following a partition finds what it lost, or only the first read."""
    history: str = ""
    """Which history of the source this is: bookmarks of another one are a gap."""
    tokens: bool = False
    """Changes have opaque tokens, as in a change stream: event ids are made of them, and a place is
    not enough to resume, a bookmark's mark must have the token of its change."""
    on_gap: PolicyWithoutSnapshots = "fail"

    @model_validator(mode="before")
    @classmethod
    def _is_simple(cls, data: Any) -> Any:
        return data


def bookmark_at(settings: StagedSettings, place: Place | None, *, since: int = 0) -> Bookmark:
    """What to store when everything up to a place is durable. `since`: the first change, of every
    partition, that belongs to a start at "now" or at a time; children inherit it."""
    mark: dict[str, Any] = {}
    if place is not None and settings.tokens:
        mark["token"] = token_of(number_of(settings, place))
    if since:
        mark["since"] = since
    if settings.history:
        mark["history"] = settings.history
    return Bookmark(place, mark)


# Numbers are scrambled, so that the order of tokens says nothing.
_TOKENS, _FACTOR = 1 << 48, 0x5DEECE66D


def token_of(number: int) -> str:
    """A change's opaque token."""
    return f"{number * _FACTOR % _TOKENS:012x}"


def number_of_token(token: str) -> int | None:
    """The inverse; None for what is no token."""
    try:
        return int(token, 16) * pow(_FACTOR, -1, _TOKENS) % _TOKENS
    except ValueError:
        return None


class StagedDecoder(MemoryDecoder):
    """With `tokens`, event ids and marks are made of them."""

    def decode(self, page: Page) -> Sequence[pa.RecordBatch]:
        """See `page.Decoder`."""
        (batch,) = super().decode(page)
        settings = self._settings
        if not isinstance(settings, StagedSettings) or not settings.tokens:
            return [batch]
        places = map(Place, batch["cursor"].to_pylist(), batch["ordinal"].to_pylist())
        tokens = [token_of(number_of(settings, place)) for place in places]
        made = {
            "event_id": [f"{settings.name}:{page.partition}-{token}" for token in tokens],
            "mark": [f'{{"token":"{token}"}}' for token in tokens],
        }
        for name, values in made.items():
            where = batch.schema.get_field_index(name)
            field = batch.schema.field(where)
            batch = batch.set_column(where, field, pa.array(values, field.type))
        return [batch]


class StagedFollowing(MemoryFollowing):
    """A partition that may end, fail or have lost something."""

    _feed: "StagedFeed"

    def __init__(
        self,
        feed: "StagedFeed",
        partition: PartitionId,
        after: Place | None,
        *,
        since: int = 0,
        loss: HistoryLost | None = None,
    ) -> None:
        super().__init__(feed, partition, after)
        self._since = since
        self._loss = loss  # which the first read finds
        self.next = max(self.next, since)

    def read(self, timeout: float) -> Sequence[Page]:
        """See `feeds.Following`."""
        if self._loss is not None and self._connected:
            self._connected = False
            raise self._loss
        return super().read(timeout)

    def _take(self) -> Sequence[Page]:
        pages: list[Page] = []
        while len(pages) < 8 and self.next < self._feed.settings.changes:
            end = self._end()
            if end <= self.next:
                if pages:
                    break
                self._fail(self.next)
            pages.append(self._page(end))
        return pages

    def _end(self) -> int:
        """Of the next page, which ends before the next failure."""
        settings, first = self._feed.settings, self.next
        end = min(first + settings.page, settings.changes)
        for number in settings.fail_at:
            if first <= number < end and (self._partition, number) not in self._feed.failures:
                end = number
        return end

    def _fail(self, number: int) -> None:
        self._feed.failures.add((self._partition, number))
        self._connected = False
        raise Unavailable(f"{self._partition} fails at change {number}, as its settings say")

    @property
    def drained(self) -> bool:  # type: ignore[override]
        """See `feeds.Following`."""
        return self._feed.ends(self._partition) and self.next >= self._feed.settings.changes

    def bookmark(self, place: Place | None) -> Bookmark:
        """See `feeds.Following`."""
        return bookmark_at(self._feed.settings, place, since=self._since)


class StagedFeed(MemoryFeed):
    """A memory feed that remembers what it was asked, and what happened."""

    settings: StagedSettings

    def __init__(self, settings: StagedSettings) -> None:
        super().__init__(settings)
        self.failures: set[tuple[PartitionId, int]] = set()
        """The failures that happened already."""
        self.connections = self.listings = 0

    @property
    def on_gap(self) -> PolicyWithoutSnapshots:  # type: ignore[override]
        """See `feeds.Feed`."""
        return self.settings.on_gap

    def partitions(self, known: Bookmarks = MappingProxyType({})) -> Listing:
        """See `feeds.Feed`."""
        self.listings += 1
        listed = [
            replace(each, first=self._first(each, known))
            for each in self.lineage.values()
            if each.partition not in self.settings.unlisted
        ]
        return Listing(lineages=listed, history=self.settings.history)

    def _first(self, lineage: Lineage, known: Bookmarks) -> Bookmark | None:
        """A child of a known parent begins at its beginning; after a start at "now" or a time, at
        the change of that time, also if it is listed late."""
        parents = [known[name] for name in lineage.parents if name in known]
        since = max((_since(each) for each in parents), default=0)
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
        """See `feeds.Feed`."""
        if isinstance(at, Mapping):
            return at
        roots = [each.partition for each in self.lineage.values() if not each.parents]
        if at is None:
            known = ((name, self.acknowledged.get(name)) for name in roots)
            return {name: bookmark_at(self.settings, place) for name, place in known}
        since = self.number_at(at)
        return {name: bookmark_at(self.settings, None, since=since) for name in roots}

    def remaining(self, partition: PartitionId, bookmark: Bookmark) -> int | None:
        """See `feeds.EstimatesLag`."""
        done = _since(bookmark)
        if bookmark.place is not None:
            done = number_of(self.settings, bookmark.place) + 1
        return self.settings.changes - done

    def follow(
        self,
        partition: PartitionId,
        bookmark: Bookmark = START,
        *,
        despite: Sequence[Gap] = (),
    ) -> StagedFollowing:
        """See `feeds.Feed`."""
        self.connections += 1
        if partition not in self.lineage:
            raise SettingsError(f"there is no partition {partition}")
        after, since = self._resumed(partition, bookmark), _since(bookmark)
        following = StagedFollowing(self, partition, after, since=since)
        first = following.next
        for gap, begins in self._gaps(partition, bookmark, after, first):
            if gap.cause not in {each.cause for each in despite}:
                lost = HistoryLost(gap, hint="on_gap: continue goes on after the gap")
                if self.settings.found == "follow":
                    raise lost
                return StagedFollowing(self, partition, after, since=since, loss=lost)
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

    def decoder(self, images: Images, on_error: OnError = "stop") -> StagedDecoder:
        """See `feeds.Feed`. What it makes up can be read."""
        return StagedDecoder(self.settings, images)


def _since(bookmark: Bookmark) -> int:
    return int((bookmark.mark or {}).get("since", 0))


PLUGIN = FeedPlugin(settings=StagedSettings, build=StagedFeed)
