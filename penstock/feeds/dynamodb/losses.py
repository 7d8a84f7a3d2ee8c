"""What a stream can have lost, as gaps. Pure."""

from collections.abc import Mapping

from penstock.feeds import Gap, GapPolicy, HistoryLost
from penstock.position import PartitionId, Place

_HINT = "on_gap: continue goes on with what there is; load the table anew to repair the other side"
# For people; documented in docs/reference/operations.md.
CAUSES: Mapping[str, str] = {
    "stream_gone": "the stream of {partition} is not there any more",
    "stream_replaced": "the stream of {table} was disabled and enabled again: what was written in"
    " between is lost",
    "trimmed": "records of {partition} after {after} are older than the stream keeps them",
    "shard_gone": "the shard {partition} is not there any more",
}


def gap_of(
    cause: str, partition: PartitionId, place: Place | None, *, table: str, policy: GapPolicy
) -> Gap:
    """The gap after a place; None is the shard's beginning."""
    after = "" if place is None else str(place)
    detail = CAUSES[cause].format(partition=partition, table=table, after=after or "its beginning")
    return Gap(cause=cause, after=after, detail=detail, policy=policy)


def loss(gap: Gap) -> HistoryLost:
    """The error for a gap."""
    return HistoryLost(gap, hint=_HINT)
