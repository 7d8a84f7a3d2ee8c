"""What a change feed can have lost, as gaps. Pure."""

from collections.abc import Mapping

from penstock.feeds import Gap, GapPolicy, HistoryLost
from penstock.model.position import PartitionId, Place

_HINT = "on_gap: continue goes on with what there is; load the container anew to repair the rest"
# Its LSNs begin again, so that nothing can go on under the same names, whatever the policy is.
_REPLACED = "give the backend another `name`: places of another container cannot be compared"

# For people; documented in docs/reference/operations.md.
CAUSES: Mapping[str, str] = {
    "container_gone": "the container {container} of {partition} is not there any more",
    "container_replaced": "{container} was deleted and made again: its changes begin anew",
    "retention": "changes of {partition} after {after} are older than the service keeps them",
}


def loss(
    cause: str,
    partition: PartitionId,
    place: Place | None,
    *,
    container: str,
    policy: GapPolicy,
    said: str = "",
) -> HistoryLost:
    """The error for a gap after a place; `said` is what the service said."""
    after = "" if place is None else str(place)
    detail = CAUSES[cause].format(
        container=container, partition=partition, after=after or "its beginning"
    )
    detail += f" ({said})" if said else ""
    is_new = cause == "container_replaced"
    gap = Gap(cause=cause, after=after, detail=detail, policy="fail" if is_new else policy)
    return HistoryLost(gap, hint=_REPLACED if is_new else _HINT)
