"""Gaps: what a partition lost, stored beside its position.

A row for each partition that ever lost something: whether it is stale (a copy made of its changes
may differ from the source), how often for which cause, and the latest gaps. A gap is recorded
before anything is done about it, so that a crash in between finds it again.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from penstock.leases import Lease, LeaseStore
from penstock.model.errors import LeaseLost, Malformed
from penstock.model.position import Bookmarks, PartitionId, Place

GapRow = dict[str, Any]

# A row is a record of what to mend, and no log.
_KEPT = 20
_TRIES = 10


def gap_id(partition: str, cause: str, after: str, mark: Mapping[str, Any] | None) -> str:
    """The same for the same hole, however often it is found."""
    text = json.dumps([partition, cause, after, mark or {}], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def losses(rows: Mapping[str, GapRow]) -> str:
    """A text that is another one after each loss of changes, each time that one is found again, and
    once reading goes on after it; "" where nothing was ever lost. Pure."""
    known = [
        (name, [[gap["id"], gap["to"]] for gap in row["gaps"]])
        for name, row in sorted(rows.items())
        if row["gaps"]
    ]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16] if known else ""


def unpublished(rows: Mapping[str, GapRow], saved: Bookmarks) -> list[str]:
    """The stale partitions of which changes were read before their last gap that are not saved as
    stored yet. A partition without a bookmark is done. Pure."""
    found = []
    for name, row in rows.items():
        bookmark = saved.get(PartitionId(name))
        if row["stale"] and row["gaps"] and bookmark is not None and not bookmark.ended:
            before = row["gaps"][-1]["from"]
            if before and (bookmark.place is None or bookmark.place < _place(before)):
                found.append(name)
    return found


def to_mend(rows: Mapping[str, GapRow]) -> dict[str, GapRow]:
    """The stale partitions that are to be mended so. Empty as long as changes do not go on after
    the last gap of each of them: one snapshot mends them all."""
    found = {
        name: row
        for name, row in rows.items()
        if row["stale"] and row["gaps"] and row["gaps"][-1]["policy"] == "resnapshot"
    }
    return found if all(row["gaps"][-1]["to"] for row in found.values()) else {}


class Gaps:
    """The gaps of one backend, or of all of a pipeline's, by the prefix: `shop/default`. Raises
    Unavailable, SettingsError; Malformed for a row that penstock did not write."""

    def __init__(self, store: LeaseStore, prefix: str) -> None:
        self._store = store
        # No pipeline's name has a colon: rows of gaps are no rows of positions.
        self._prefix = f"gaps:{prefix}/"

    def rows(self) -> dict[str, GapRow]:
        """Partition (after the prefix) -> `stale`, `counts` (by cause), `gaps` (latest last)."""
        return {
            lease.name.removeprefix(self._prefix): _row(lease)
            for lease in self._store.list(self._prefix)
        }

    def record(self, partition: str, gap: Mapping[str, Any]) -> GapRow:
        """Notes a gap: `id`, `cause`, `policy`, where it is `from`, and `to` if that is known. The
        same again only adds what is new of it. The partition is stale from now on."""

        def note(row: GapRow) -> None:
            if (found := _same(row, gap)) is not None:
                # Subscribers that heard of the stop are informed that reading goes on.
                found["announced"] = found["announced"] and found["policy"] == gap["policy"]
                found.update({key: gap[key] for key in gap if key not in ("id", "at")})
            else:
                row["gaps"] = [*row["gaps"], {**gap, "announced": False}][-_KEPT:]
                row["counts"][gap["cause"]] = row["counts"].get(gap["cause"], 0) + 1
            row["stale"] = True

        return self._change(partition, note)

    def announced(self, partition: str, identity: str) -> None:
        def note(row: GapRow) -> None:
            for each in row["gaps"]:
                each["announced"] = each["announced"] or each["id"] == identity

        self._change(partition, note)

    def clear(self, partition: str, *, seen: GapRow | None = None) -> None:
        """The partition is mended: it is not stale any more. Its gaps stay on record. `seen`: the
        row whose gaps were mended; it stays stale where another one was found after that."""

        def note(row: GapRow) -> None:
            if seen is None or losses({"": row}) == losses({"": seen}):
                row["stale"] = False

        self._change(partition, note)

    def _change(self, partition: str, change: Callable[[GapRow], object]) -> GapRow:
        name = f"{self._prefix}{partition}"
        for tried in range(1, _TRIES + 1):
            lease = self._store.get(name) or Lease(name=name)
            row = _row(lease)
            change(row)
            try:
                self._store.put(replace(lease, continuation=json.dumps(row)))
            except LeaseLost:
                if tried == _TRIES:
                    raise
            else:
                break
        return row


def _same(row: GapRow, gap: Mapping[str, Any]) -> GapRow | None:
    """The gap on record that this one is: by its id; or the last, if nothing was read after it.
    A gap found after what was read is found again after what was stored, which is less."""
    known: dict[str, GapRow] = {each["id"]: each for each in row["gaps"]}
    if gap["id"] in known:
        return known[gap["id"]]
    last: GapRow | None = row["gaps"][-1] if row["gaps"] and row["stale"] else None
    if last is None or last["to"] or last["cause"] != gap["cause"]:
        return None
    return last if _place(gap["from"]) <= _place(last["from"]) else None


def _place(text: str) -> tuple[str, int]:
    return Place.parse(text) if text else ("", 0)


def _row(lease: Lease) -> GapRow:
    if not lease.continuation:
        return {"stale": False, "counts": {}, "gaps": []}
    try:
        row: GapRow = json.loads(lease.continuation)
        return {"stale": row["stale"], "counts": row["counts"], "gaps": row["gaps"]}
    except (ValueError, KeyError, TypeError) as error:
        raise Malformed(
            f"the record {lease.name!r} can't be read",
            "leases",
            hint="did another program write to the positions store?",
        ) from error
