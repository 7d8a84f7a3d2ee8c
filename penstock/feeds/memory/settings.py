"""What the memory feed is asked to make up."""

from typing import Literal

from pydantic import Field

from penstock.feeds.shared import PolicyWithoutSnapshots
from penstock.model.settings import Duration, Settings


class MemoryFeedSettings(Settings):
    """What the feed makes up."""

    name: str = "memory"
    """The backend: part of every event id."""
    type: Literal["memory"] = "memory"
    changes: int = Field(1_000, ge=0)
    """Changes of each partition."""
    partitions: int = Field(1, ge=1)
    """Partitions without a parent, called `p0`, `p1` and so on."""
    chained: bool = False
    """Each partition is the parent of the next, and ends; else they are side by side, endless."""
    generations: int = Field(0, ge=0)
    """How often each partition ends: it splits into two (`p0.0`, `p0.1`), and at the next end the
    two merge into one (`p0.m`), which splits again."""
    page: int = Field(100, ge=1)
    """Changes per page."""
    unit: int = Field(10, ge=1)
    """Changes per cursor, as in a transaction; a page may end inside."""
    fail_at: tuple[int, ...] = ()
    """Numbers of changes that can't be read the first time: `read` raises Unavailable once."""
    latency: Duration = Field(0.0, ge=0)
    """How long each read takes."""
    trimmed: int = Field(0, ge=0)
    """The source has no changes of `p0` before this number any more."""
    unlisted: tuple[str, ...] = ()
    """Partitions that the source no longer lists, and that are gone."""
    found: Literal["follow", "read"] = "follow"
    """Whether following a partition finds what it lost, or only the first read."""
    late: tuple[str, ...] = ()
    """Partitions that only every second listing has."""
    history: str = ""
    """Which history of the source this is: bookmarks of another one are a gap."""
    state: str = ""
    """What the feed's status says of the source, such as `disabled`."""
    tokens: bool = False
    """Changes have opaque tokens, as in a change stream: event ids are made of them, and a place is
    not enough to resume, a bookmark's mark must have the token of its change."""
    polled: bool = False
    """Whether tasks read it by themselves in open micro-batches: a source that anyone may poll."""
    on_gap: PolicyWithoutSnapshots = "fail"
