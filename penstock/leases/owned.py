"""The rows of one owner, and their only writer: any number of rows in one call.

A write states the revision that it replaces, so the store refuses it for a row that another owner
wrote. A refusal alone does not say whose the row is, and a lost answer does not say whether the
row was written: such rows are read again before anything else is written.
"""

from builtins import list as List  # `list` is a method here
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from threading import RLock
from types import MappingProxyType
from typing import Any

from penstock.leases import Lease, LeaseStore
from penstock.model.errors import LeaseLost, Unavailable

# Writes of a row that others change all the time, before it is left for later.
_TRIES = 5
# The property with what an owner drew when it took the row: names may be another process's, too.
NONCE = "nonce"


class OwnedRows:
    """Rows under a prefix, by their full name. Threads may share it. Raises Unavailable,
    SettingsError.

    A row that changed is still ours if it has the owner's name and the nonce that it was taken
    with. With `exact`, it is ours only if it is as this object wrote it. `stated`: properties that
    every row has which is written here.
    """

    def __init__(
        self,
        store: LeaseStore,
        prefix: str,
        owner: str = "",
        *,
        exact: bool = False,
        stated: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.store, self.owner, self.stated = store, owner, stated
        self.lock = RLock()
        # Rows that another owner wrote; not written again, until they are adopted or cleared.
        self.lost: set[str] = set()
        self._prefix, self._exact = prefix, exact
        # Ours, as the store had them when it answered last.
        self._rows: dict[str, Lease] = {}
        # What a write without an answer sent; empty after `resolve`.
        self._sent: dict[str, Lease] = {}

    def list(self) -> List[Lease]:
        """All rows under the prefix, whoever owns them."""
        return List(self.store.list(self._prefix))

    def known(self, names: Iterable[str]) -> List[Lease]:
        """Those of the rows that are ours, as they were when the store answered last."""
        with self.lock:
            return [self._rows[name] for name in names if name in self._rows]

    def adopt(self, rows: Iterable[Lease]) -> None:
        """These rows are ours from now on, as they were just read or written."""
        with self.lock:
            found = {row.name: row for row in rows}
            self._rows |= found
            self.lost.difference_update(found)

    def drop(self, names: Iterable[str]) -> None:
        with self.lock:
            for name in names:
                self._rows.pop(name, None)
                self._sent.pop(name, None)

    def clear(self) -> None:
        """No row is ours, and none is lost; writes nothing."""
        with self.lock:
            self._rows, self._sent, self.lost = {}, {}, set()

    def write(self, names: Collection[str], change: Callable[[Lease], Lease]) -> dict[str, Lease]:
        """Writes each row as `change` makes it of the stored one; returns what was written. A row
        not ours is made; a lost one is passed over. Unavailable also if others go on changing
        them."""
        written: dict[str, Lease] = {}
        with self.lock:
            self.resolve()
            for _ in range(_TRIES):
                written |= self._put([name for name in names if name not in self.lost], change)
                names = {*names} - {*written} - self.lost
                if not names:
                    return written
                self._read_again(names)
        raise Unavailable(f"{min(names)} is changed by others all the time", "leases")

    def remove(self, name: str) -> None:
        """Removes a row of ours. One that changed stays: it is lost, or still ours."""
        with self.lock:
            if (row := self._rows.get(name)) is None:
                return
            try:
                self.store.delete(row)
            except LeaseLost:
                self._read_again([name])
            else:
                self.drop([name])

    def state(self, row: Lease) -> Lease:
        stated = self.stated
        return replace(row, properties={**row.properties, **stated}) if stated else row

    def resolve(self) -> List[Lease]:
        """Reads rows of a write without an answer again; returns those of ours that changed."""
        with self.lock:
            return self._read_again(List(self._sent)) if self._sent else []

    def verify(self, only: Collection[str] = ()) -> List[Lease]:
        """Reads all rows again (of `only`, if any are ours); returns those of ours that changed."""
        with self.lock:
            ours = {*self._rows, *self._sent}
            names = ours.intersection(only) or ours
            return self._read_again(names) if names else []

    def _put(self, names: Collection[str], change: Callable[[Lease], Lease]) -> dict[str, Lease]:
        rows = [self.state(change(self._rows.get(name) or Lease(name=name))) for name in names]
        if not rows:
            return {}
        self._sent = {row.name: row for row in rows}
        answers = self.store.put_all(rows)
        self._sent = {}
        written = {each.name: each for each in answers if isinstance(each, Lease)}
        self._rows |= written
        return written

    def _read_again(self, names: Collection[str]) -> List[Lease]:
        found = {row.name: row for row in self._read(names)}
        changed = []
        for name in names:
            known, now, sent = self._rows.get(name), found.get(name), self._sent.pop(name, None)
            if (now and now.revision) == (known and known.revision):
                continue
            if now is not None and self._is_ours(now, known, sent):
                self._rows[name] = now
                changed.append(now)
            else:
                self.drop([name])
                self.lost.add(name)
        return changed

    def _read(self, names: Collection[str]) -> Iterable[Lease]:
        if len(names) > 1:
            return self.list()
        return filter(None, map(self.store.get, names))

    def _is_ours(self, now: Lease, known: Lease | None, sent: Lease | None) -> bool:
        if self._exact:
            return sent is not None and replace(now, revision=sent.revision) == sent
        ours = sent or known
        nonce = None if ours is None else ours.properties.get(NONCE)
        return now.owner == self.owner and now.properties.get(NONCE) == nonce
