"""A shard at the service as a bookmark names it, and what it can have lost after that, as gaps."""

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.feeds import HistoryLost
from penstock.feeds.dynamodb.beginning import (
    RETENTION,
    ShardBeginning,
    beginning_of,
    parents_of,
)
from penstock.feeds.dynamodb.client import StreamsClient
from penstock.feeds.dynamodb.lineage import REPLACES, ShardTree, StreamShard, label_of
from penstock.feeds.dynamodb.settings import DynamodbSettings
from penstock.feeds.dynamodb.streams import TableStreams
from penstock.feeds.shared import lost
from penstock.model.errors import Unavailable
from penstock.model.position import Bookmark, PartitionId, Place

# For people; documented in docs/reference/operations.md.
CAUSES: Mapping[str, str] = {
    "stream_gone": "the stream of {partition} is not there any more",
    "stream_replaced": "the stream of {table} was disabled and enabled again: what was written in"
    " between is lost",
    "trimmed": "records of {partition} after {after} are older than the stream keeps them",
    "shard_gone": "the shard {partition} is not there any more",
}
_HINT = "on_gap: continue goes on with what there is; load the table anew to repair the other side"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedShard:
    """One shard, to be read after a bookmark."""

    settings: DynamodbSettings
    streams: TableStreams
    client: StreamsClient
    partition: PartitionId
    bookmark: Bookmark

    @property
    def id(self) -> str:
        """As the service names it."""
        return self.partition.rpartition("/")[2]

    @property
    def label(self) -> str:
        return label_of(self.partition)

    def lost(self, cause: str, after: Place | None) -> HistoryLost:
        """The error for a gap after a place; None is the shard's beginning."""
        settings = self.settings
        detail = CAUSES[cause].format(
            partition=self.partition, table=settings.table_name, after=after or "its beginning"
        )
        return lost(cause, after, detail, policy=settings.on_gap, hint=_HINT)

    def cause(self, beginning: ShardBeginning) -> str:
        """The cause of what is lost for sure, before anything is read; "" for nothing."""
        if self.streams.arn(self.label) is None:
            return "stream_gone"
        if self.bookmark.place is None and self._is_after_another_stream:
            return "stream_replaced"
        return "trimmed" if beginning.is_overdue(self.client.now()) else ""

    @property
    def _is_after_another_stream(self) -> bool:
        mark = self.bookmark.mark or {}
        parents = map(PartitionId, mark.get("parents", {}))
        return REPLACES in mark or any(label_of(parent) != self.label for parent in parents)

    def found(self, cause: str, after: Place | None) -> HistoryLost | None:
        """What reading found after a place; None if there was nothing to read. Raises Unavailable
        for a shard that is open: it cannot be gone."""
        arn = self.streams.arn(self.label)
        described = None if arn is None else self.client.describe(arn)
        if described is None:
            return self.lost("stream_gone", after)
        listed = ShardTree(described.shards).shards.get(self.id)
        if listed is not None and listed.is_open and cause == "shard_gone":
            raise Unavailable(f"{self.partition} is listed as open, and reading does not find it")
        bookmark = self.bookmark._replace(place=after)
        if listed is not None and _has_nothing_after(bookmark, listed, self.client.now()):
            known = self.client.account.shard(arn or "", self.id)
            if after is not None or known.refusals > 1:  # one answer may be wrong
                return None
        return self.lost(cause, after)


def _has_nothing_after(bookmark: Bookmark, shard: StreamShard, now: float) -> bool:
    """Whether a listed shard that cannot be read any more had nothing after the bookmark: all was
    read; or it was to be read from the horizon, or from a time that is not a day ago, and was
    closed more than a day ago."""
    if shard.last is None:
        return False
    if bookmark.place is not None:
        return int(bookmark.place.cursor) >= shard.last
    beginning = beginning_of(bookmark)
    if beginning.since is not None:
        return beginning.since >= now - RETENTION
    return _is_the_horizon(bookmark) and not beginning.is_overdue(now)


def _is_the_horizon(bookmark: Bookmark) -> bool:
    """Whether nothing was read before it: neither of the shard nor of its ancestors."""
    parents = parents_of(bookmark)
    if not parents:
        return bookmark.place is None and (bookmark.mark or {}).get("from") == "trim_horizon"
    return all(map(_is_the_horizon, parents))
