"""What a stream can have lost, as gaps. Pure."""

from collections.abc import Mapping

from penstock.feeds.dynamodb.beginning import RETENTION, beginning_of
from penstock.feeds.dynamodb.lineage import REPLACES, StreamShard, label_of
from penstock.feeds.dynamodb.settings import DynamodbSettings
from penstock.model.errors import InvalidStream
from penstock.model.position import Bookmark, PartitionId

# For people; documented in docs/reference/operations.md.
CAUSES: Mapping[str, str] = {
    "stream_gone": "the stream of {partition} is not there any more",
    "stream_replaced": "the stream of {table} was disabled and enabled again: what was written in"
    " between is lost",
    "trimmed": "records of {partition} after {after} are older than the stream keeps them",
    "shard_gone": "the shard {partition} is not there any more",
}


def is_after_another(bookmark: Bookmark, label: str) -> bool:
    """Whether it is the first bookmark of a stream that came after another one of its table."""
    mark = bookmark.mark or {}
    return REPLACES in mark or any(
        label_of(PartitionId(parent)) != label for parent in mark.get("parents", {})
    )


def has_nothing_after(bookmark: Bookmark, shard: StreamShard, now: float) -> bool:
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
    mark = bookmark.mark or {}
    parents = [Bookmark.from_json(each) for each in mark.get("parents", {}).values()]
    if not parents:
        return bookmark.place is None and mark.get("from") == "trim_horizon"
    return all(map(_is_the_horizon, parents))


def verify(history: str, settings: DynamodbSettings) -> None:
    """Raises InvalidStream if this ARN of a token is not one of the table's streams, or not the
    stream that the settings name."""
    table = history.partition(":table/")[2].partition("/stream/")[0]
    name = settings.table_name
    if table != name or (settings.stream and history != settings.stream):
        raise InvalidStream(
            f"the token is of the stream {history}, which is not {settings.stream or name}",
            hint=f"take a token of {name}, a time or trim_horizon; or follow the table {table}",
        )
