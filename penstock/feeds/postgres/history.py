"""Is this still the server, the history and the slot that our position belongs to? Pure.

A slot has no identity: one that was dropped and made again under its name looks like the old one.
What gives it away is that it promises less than we let it forget. So nothing is acknowledged that
was not stored first, in the mark beside the position: a slot that is further than the mark was
moved by somebody else, or is another one.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from penstock.feeds import Mark
from penstock.feeds.postgres.slot import Slot, System
from penstock.model.position import Place
from penstock.wire.eras import era_of, next_era
from penstock.wire.pgoutput.lsn import format_lsn, lsn_of, parse_lsn

# WAL ends may be reported a page apart before and after a restart.
_SLACK = 8192

_ALIGNED = 8  # bytes: where records begin

_SLOT = (
    "go on after the gap with on_gap: resnapshot, which has the tables copied anew, or with on_gap:"
    " continue, and copy them yourself"
)
_SERVER = (
    f"the server was restored from a backup, or is another one: correct `connection`, or {_SLOT}"
)

# cause -> whether the server's log is another one, which uses our LSNs again; and a hint.
CAUSES: Mapping[str, tuple[bool, str]] = {
    "other_system": (True, _SERVER),
    "other_timeline": (True, _SERVER),
    "server_behind": (True, _SERVER),
    "diverged": (True, _SERVER),
    "slot_missing": (False, _SLOT),
    "slot_lost": (False, f"{_SLOT}; raise max_slot_wal_keep_size so that it does not happen again"),
    "publication_missing": (False, _SLOT),
    "sink_went_back": (
        False,
        "the destination was restored from a backup, or a standby of it that lacked changes was"
        f" promoted, and the slot does not have them any more: {_SLOT}",
    ),
    "slot_recreated": (False, f"{_SLOT}; instances of one pipeline must share one positions store"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownHistory:
    """What was stored with a position: the history it belongs to. `flushed` is the furthest that
    the slot may be because of us. `era` is of cursors that are made now; a position of an earlier
    one is no LSN of this history. Empty or 0: nothing is known. `is_behind`: the sink went back to
    the position, and the slot must not be further."""

    system: str = ""
    timeline: int = 0
    flushed: int = 0
    publication: str = ""
    era: str = ""
    is_behind: bool = False

    def to_json(self) -> dict[str, Any]:
        found = {**asdict(self), "flushed": format_lsn(self.flushed)}
        return found if self.is_behind else {n: v for n, v in found.items() if n != "is_behind"}

    @property
    def text(self) -> str:
        """What the mark of each change has of it; JSON."""
        return json.dumps({"system": self.system, "timeline": self.timeline})


def known_of(mark: Mark | None, after: Place | None) -> KnownHistory:
    """From a mark, which may be empty or of an older penstock; raises Malformed."""
    stored = mark or {}
    flushed = stored.get("flushed")
    era = era_of(after.cursor) if after is not None else ""
    return KnownHistory(
        system=str(stored.get("system") or ""),
        timeline=int(stored.get("timeline") or 0),
        flushed=parse_lsn(flushed) if flushed else 0,
        publication=str(stored.get("publication") or ""),
        era=max(era, str(stored.get("era") or "")),
        is_behind=bool(stored.get("is_behind")),
    )


def position_of(known: KnownHistory, after: Place | None) -> int | None:
    """The LSN of `after`; None if there is none, or if it is one of an earlier history."""
    if after is None or era_of(after.cursor) != known.era:
        return None
    return lsn_of(after.cursor)


def era_behind(known: KnownHistory, cause: str) -> str:
    """The era of what comes after a gap."""
    return next_era(known.era) if CAUSES[cause][0] else known.era


def can_anchor(known: KnownHistory, position: int | None, slot: Slot, publication: str) -> bool:
    """Whether the server will begin with the very transaction that `position` is the commit of: not
    if the slot is beyond it, if another publication chose what we got, or if the position is inside
    the record of a message, which is not sent again."""
    return (
        position is not None
        and slot.confirmed <= position
        and position % _ALIGNED == 0
        and known.publication == publication
    )


@dataclass(frozen=True, slots=True)
class HistoryVerdict:
    """`cause` is of CAUSES, or "" when nothing is lost. `flushed` is how far the slot may be on
    this history; `fork` where the server's history left ours, if it did and that is known."""

    cause: str = ""
    detail: str = ""
    flushed: int = 0
    fork: int = 0


def judge(
    known: KnownHistory,
    after: Place | None,
    *,
    slot: Slot | None,
    system: System,
    current: int,
    forks: Mapping[int, int],
    has_diverged: bool = False,
) -> HistoryVerdict:
    """The first cause that applies, worst first. `current`: the end of the server's log. `forks`:
    where its timeline left each earlier one. `has_diverged`: our last transaction is not there."""
    position = position_of(known, after)
    if known.system and known.system != system.identifier:
        return HistoryVerdict(
            "other_system",
            f"the server is another one: its system identifier is {system.identifier},"
            f" and our position is of {known.system}",
        )
    flushed, fork = known.flushed, 0
    if known.timeline and known.timeline != system.timeline:
        fork = forks.get(known.timeline, 0)
        # A commit record at the fork, or after it, is not in the new history.
        if not fork or (position is not None and position >= fork):
            where = f"left ours at {format_lsn(fork)}" if fork else "does not come from ours"
            return HistoryVerdict(
                "other_timeline",
                f"the server is on timeline {system.timeline}, which {where};"
                f" our position is {_text(position)} on timeline {known.timeline}",
                fork=fork,
            )
        flushed = min(flushed, fork)
    if max(position or 0, flushed - _SLACK) > current:
        return HistoryVerdict(
            "server_behind",
            f"our position {_text(max(position or 0, flushed))} is ahead of the server's"
            f" log, which ends at {format_lsn(current)}",
        )
    if has_diverged:
        return diverged(known, after)
    return _of_slot(slot, flushed, is_behind=known.is_behind)


def diverged(known: KnownHistory, after: Place | None) -> HistoryVerdict:
    """Our last transaction is not at its place, as reading the log finds."""
    position = position_of(known, after)
    detail = f"the server's log has another transaction where ours was, at {_text(position)}"
    return HistoryVerdict("diverged", detail)


def without_publication(publication: str) -> HistoryVerdict:
    """The publication is gone: one that is made now is not there for what the log has already."""
    return HistoryVerdict(
        "publication_missing",
        f"the publication {publication} is gone, and what the log has cannot be decoded without it",
    )


def _of_slot(slot: Slot | None, flushed: int, *, is_behind: bool) -> HistoryVerdict:
    if slot is None:
        return HistoryVerdict("slot_missing", "the slot is gone, and with it the changes since")
    if slot.lost:
        return HistoryVerdict(
            "slot_lost",
            f"the slot {slot.name} is lost ({slot.invalidation or 'wal_removed'}): the"
            " server removed changes it had to keep",
        )
    if flushed and slot.confirmed > flushed and is_behind:
        return HistoryVerdict(
            "sink_went_back",
            f"the destination went back to {format_lsn(flushed)}, and the slot {slot.name} begins"
            f" at {format_lsn(slot.confirmed)}: what it had between the two is lost",
        )
    if flushed and slot.confirmed > flushed:
        return HistoryVerdict(
            "slot_recreated",
            f"the slot {slot.name} begins at {format_lsn(slot.confirmed)}, and we let it"
            f" forget what is before {format_lsn(flushed)} only: it was made anew, or somebody"
            " else read it",
        )
    return HistoryVerdict(flushed=flushed)


def _text(lsn: int | None) -> str:
    return "unknown" if lsn is None else format_lsn(lsn)
