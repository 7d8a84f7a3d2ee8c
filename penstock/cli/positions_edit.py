"""One pipeline's stored positions: read at any time, changed only while the pipeline is ours, and
no live owner has them."""

import json
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from penstock.config import Deployment, Pipeline
from penstock.leases import Lease, LeaseStore, open_store, replace
from penstock.leases.holder import (
    SAVED,
    TERM,
    LeaseHolder,
    instance_name,
    owner_has_ended,
    released,
    terms,
)
from penstock.leases.kinds import Kind, verify_kind
from penstock.leases.owned import OwnedRows
from penstock.model.errors import LeaseLost, Malformed, SettingsError
from penstock.model.position import Bookmark
from penstock.process.closing import Closes
from penstock.process.processes import Machine
from penstock.service.ownership import Ownership

_POLL, _LOOK = 0.2, 0.5  # seconds
_BOOKMARK = (
    "write a place (CURSOR:ORDINAL), or the JSON that `penstock positions FILE show` prints under"
    ' "bookmark"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRow:
    """`name` is BACKEND/PARTITION. `bookmark` is None for a row that penstock did not write."""

    name: str
    lease: Lease
    bookmark: Bookmark | None


class Editing(Closes):
    """Opens the store. Raises Unavailable, SettingsError. `report` gets what is waited for."""

    def __init__(self, pipeline: Deployment, report: Callable[[str], None] = print) -> None:
        if pipeline.positions.startswith("memory:"):
            raise SettingsError(
                "positions in memory are gone when the pipeline ends",
                "cli.positions-in-memory",
                hint="write positions: sqlite:///FILE to keep them",
            )
        self._pipeline, self._report = pipeline, report
        self._prefix = f"{pipeline.name}/"
        self._store = open_store(pipeline.positions)

    def close(self) -> None:
        self._store.close()

    def rows(self) -> list[StoredRow]:
        return [self._row(lease) for lease in self._store.list(self._prefix)]

    def find(self, name: str) -> StoredRow | None:
        """One row; raises SettingsError for a name that cannot be one."""
        self.verify(name)
        lease = self._store.get(self._prefix + name)
        return None if lease is None else self._row(lease)

    def row(self, name: str) -> StoredRow:
        if (found := self.find(name)) is None:
            known = ", ".join(row.name for row in self.rows()) or "none"
            raise SettingsError(
                f"{name} has no stored position",
                "cli.no-position",
                hint=f"those that have: {known}",
            )
        return found

    def verify(self, name: str) -> None:
        """Raises SettingsError unless it names a partition of a backend of the pipeline."""
        backends = [backend.name for backend in self._pipeline.backends]
        backend, _, partition = name.partition("/")
        if backend not in backends or not partition:
            raise SettingsError(
                f"{name!r} is no partition of this pipeline",
                "cli.no-partition",
                hint=f"write BACKEND/PARTITION; its backends: {', '.join(backends)}",
            )

    def parse(self, name: str, text: str) -> Bookmark:
        """The bookmark given for a partition: a place, or JSON."""
        self.verify(name)
        try:
            return Bookmark.from_json(json.loads(text) if text.lstrip().startswith("{") else text)
        except (ValueError, Malformed) as error:
            raise SettingsError(
                f"{text[:80]!r} is no bookmark", "cli.no-bookmark", hint=_BOOKMARK
            ) from error

    def export(self) -> dict[str, Any]:
        """Plain JSON: `pipeline`, and `positions` by name."""
        rows = self.rows()
        if broken := [row.name for row in rows if row.bookmark is None]:
            raise SettingsError(
                f"the stored position of {broken[0]} can't be read",
                "cli",
                hint=f"penstock positions FILE delete {broken[0]}, or set it",
            )
        kept = {row.name: row.bookmark.to_json() for row in rows if row.bookmark is not None}
        return {"pipeline": self._pipeline.name, "positions": kept}

    def write(self, bookmarks: Mapping[str, Bookmark]) -> None:
        """Stores bookmarks, in one write. Raises SettingsError while an instance runs."""
        with self._owning():
            found = self._ownerless(bookmarks)
            rows = []
            for name, bookmark in bookmarks.items():
                full = self._prefix + name
                text = json.dumps(bookmark.to_json())
                rows.append(
                    replace(released(found.get(full) or Lease(name=full)), continuation=text)
                )
            for each in self._store.put_all(rows):
                if isinstance(each, LeaseLost):
                    raise each

    def delete(self, row: StoredRow) -> None:
        """Removes a row. Raises SettingsError while an instance runs."""
        with self._owning():
            self._ownerless([row.name])
            self._store.delete(row.lease)

    def release(self, row: StoredRow, *, now: bool) -> None:
        """Takes a row from its owner, which has ended. `now`: does not wait to see that. Raises
        SettingsError while the owner may live."""
        with self._owning():
            if now:
                refuse_unless_ended(row.lease)
            lease = row.lease if now else self._ownerless([row.name]).get(row.lease.name)
            if lease is not None and lease.owner:
                self._store.put(released(lease))

    @contextmanager
    def _owning(self) -> Iterator[None]:
        """The lease of the pipeline is ours, while its rows change."""
        kind: Kind = "pipeline" if isinstance(self._pipeline, Pipeline) else "processor"
        verify_kind(self._store.list(self._prefix), kind)
        ours = Ownership(self._store, self._pipeline.name, instance=instance_name(), kind=kind)
        # One that was killed holds it for its term.
        until = time.monotonic() + 2 * TERM
        while (owner := ours.attempt()) is not None:
            if time.monotonic() > until:
                raise SettingsError(
                    f"a running instance owns the positions of {self._pipeline.name}: {owner.text}",
                    "cli.pipeline-runs",
                    hint="stop it (and its standbys) before positions are changed",
                )
            time.sleep(_POLL)
        try:
            yield
        finally:
            ours.release()

    def _ownerless(self, names: Iterable[str]) -> dict[str, Lease]:
        """Rows by full name, once no live owner has any of them."""
        full = {self._prefix + name for name in names}
        return wait_for_owners(self._store, self._prefix, full, report=self._report)

    def _row(self, lease: Lease) -> StoredRow:
        try:
            bookmark = Bookmark.from_json(json.loads(lease.continuation))
        except (ValueError, Malformed):
            bookmark = None
        return StoredRow(name=lease.name.removeprefix(self._prefix), lease=lease, bookmark=bookmark)


def read_export(text: str) -> dict[str, Bookmark]:
    """What `Editing.export` gave, as text: BACKEND/PARTITION -> its bookmark."""
    try:
        found = json.loads(text)["positions"]
        return {str(name): Bookmark.from_json(each) for name, each in found.items()}
    except (ValueError, KeyError, TypeError, AttributeError, Malformed) as error:
        raise SettingsError(
            "this is no export of positions",
            "cli",
            hint="an export is the output of `penstock positions FILE export`",
        ) from error


def wait_for_owners(
    store: LeaseStore,
    prefix: str,
    names: Collection[str],
    *,
    report: Callable[[str], None],
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[str, Lease]:
    """The rows, by full name, as soon as none of them has a live owner. An owner lives if a row of
    its own changes within its term. Raises SettingsError then, and Unavailable. A row without a
    term was written by `penstock run`: its pipeline's lease decides."""
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
                    f"{row.name} has a live owner: {row.owner}",
                    "cli.owner-lives",
                    hint="stop that process first: it releases its partitions when it ends",
                )
        if not first:
            report(
                f"{held[0].name} belongs to {held[0].owner}: waiting up to"
                f" {max(map(_term, held)):g} s for a renewal"
            )
        first |= {row.name: row.revision for row in held}
        sleep(_LOOK)


def refuse_unless_ended(row: Lease) -> None:
    """Raises SettingsError unless nobody has the row, or a process of this machine that ended."""
    if row.owner and "term" in terms(row) and not owner_has_ended(row, Machine()):
        raise SettingsError(
            f"{row.name} belongs to {row.owner}, which is not an ended process of this machine",
            "cli",
            hint="without --now the command waits for the owner",
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
        "owner_ended": bool(row.owner) and owner_has_ended(row, Machine()),
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
