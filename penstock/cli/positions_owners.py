"""Whose rows are, and since when; rows that a live owner has are not changed."""

import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from penstock.leases import Lease, LeaseStore
from penstock.leases.holder import (
    SAVED,
    TERM,
    LeaseHolder,
    instance_name,
    owner_has_ended,
    terms,
)
from penstock.leases.owned import OwnedRows
from penstock.model.errors import SettingsError

_POLL = 0.5  # seconds


def wait_for_owners(
    store: LeaseStore,
    prefix: str,
    names: Collection[str],
    *,
    report: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Lease]:
    """The rows, by full name, as soon as none of them has a live owner.

    An owner lives if a row of its own changes within its term. Raises SettingsError then, and
    Unavailable. A row without a term was written by `penstock run`: its pipeline's lease decides.
    """
    holder = LeaseHolder(OwnedRows(store, prefix, instance_name()), clock=clock)
    first: dict[str, str] = {}
    while True:
        rows = {row.name: row for row in store.list(prefix) if row.name in names}
        free = {row.name for row in holder.free(rows.values())}
        held = [row for row in rows.values() if row.name not in free and "term" in terms(row)]
        if not held:
            return rows
        for row in held:
            if first.get(row.name, row.revision) != row.revision:
                raise SettingsError(
                    f"{row.name} has an owner that lives: {row.owner}",
                    hint="stop that process first: it gives its partitions back when it ends",
                )
        if not first:
            report(
                f"{held[0].name} is {held[0].owner}'s: looking for up to"
                f" {max(map(_term, held)):g} s whether that is alive"
            )
        first |= {row.name: row.revision for row in held}
        sleep(_POLL)


def refuse_unless_ended(row: Lease) -> None:
    """Raises SettingsError unless nobody has the row, or a process of this machine that ended."""
    if row.owner and "term" in terms(row) and not owner_has_ended(row):
        raise SettingsError(
            f"{row.name} is {row.owner}'s, which is no process of this machine that has ended",
            hint="without --now, its owner is waited for",
        )


def age(row: Lease, now: datetime) -> float | None:
    """Seconds since the last checkpoint, or else since the owner has the row; None if neither is
    known. By this host's clock and that of the owner's host, which may differ."""
    for text in (row.properties.get(SAVED), row.properties.get("since")):
        try:
            then = datetime.fromisoformat(str(text))
        except ValueError:
            continue
        return max(0.0, (now - (then if then.tzinfo else then.replace(tzinfo=UTC))).total_seconds())
    return None


def age_text(seconds: float | None) -> str:
    """In the largest unit that fits: 59s, 3m, 47h, 12d."""
    if seconds is None:
        return ""
    for unit, length, most in (("s", 1, 120), ("m", 60, 7200), ("h", 3600, 172_800)):
        if seconds < most:
            return f"{seconds // length:.0f}{unit}"
    return f"{seconds // 86_400:.0f}d"


def about_owner(row: Lease, now: datetime) -> dict[str, Any]:
    """Plain JSON. `owner_ended`: it was a process of this machine. `asked_by`: who wants the
    partition. `age_seconds`: see `age`."""
    return {
        "owner": row.owner,
        "owner_ended": bool(row.owner) and owner_has_ended(row),
        "asked_by": str(terms(row).get("asked_by", "")) if row.owner else "",
        "age_seconds": age(row, now),
    }


def owner_text(about: Mapping[str, Any]) -> str:
    """Of `about_owner`, for people."""
    notes = ["ended"] if about["owner_ended"] else []
    notes += [f"asked for by {about['asked_by']}"] if about["asked_by"] else []
    return f"{about['owner']} ({', '.join(notes)})" if notes else str(about["owner"])


def _term(row: Lease) -> float:
    term = terms(row).get("term")
    return term if isinstance(term, int | float) else TERM
