"""A partition that descends from nothing known: what came before it is lost, and its first bookmark
says so, wherever the bookmark goes (into a task, into the store), until a gap is on record.
"""

from penstock.feeds import Gap, GapPolicy, HistoryLost
from penstock.model.position import Bookmark

# The cause of the gap.
LINEAGE_BROKEN = "lineage_broken"
_HOLE = "hole"
_HINT = "load the data anew; on_gap: continue goes on with what the source still has"


def behind_hole(cause: str, detail: str) -> Bookmark:
    """The first bookmark of a partition after a hole."""
    return Bookmark(mark={_HOLE: {"cause": cause, "detail": detail}})


def is_behind_hole(bookmark: Bookmark) -> bool:
    """Whether it is such a bookmark."""
    return bookmark.place is None and _HOLE in (bookmark.mark or {})


def hole_before(bookmark: Bookmark, policy: GapPolicy) -> HistoryLost | None:
    """The gap before a partition that begins with this bookmark, if there is one."""
    if not is_behind_hole(bookmark):
        return None
    hole = (bookmark.mark or {})[_HOLE]
    gap = Gap(cause=hole["cause"], after="", detail=hole["detail"], policy=policy)
    return HistoryLost(gap, hint=_HINT)
