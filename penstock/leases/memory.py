"""Leases in memory: for tests, and for pipelines that need no positions after a restart."""

from builtins import list as List  # `list` is a method here
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from threading import Lock

from penstock.leases import Lease, changed
from penstock.model.errors import LeaseLost, SettingsError


class MemoryStore:
    """A `LeaseStore` that lives as long as the object; threads may share it."""

    def __init__(self) -> None:
        self._rows: dict[str, Lease] = {}
        self._lock = Lock()
        # One counter for all rows: a row that is deleted and made again never repeats a revision.
        self._revisions = count(1)

    @classmethod
    def of_url(cls, url: str) -> "MemoryStore":
        """Of `memory:`; raises SettingsError."""
        if url not in ("memory:", "memory://"):
            raise SettingsError("a store in memory has no name", "leases", hint="write `memory:`")
        return cls()

    def get(self, name: str) -> Lease | None:
        return self._rows.get(name)

    def list(self, prefix: str) -> List[Lease]:
        with self._lock:
            return [row for name, row in sorted(self._rows.items()) if name.startswith(prefix)]

    def put(self, lease: Lease) -> Lease:
        with self._lock:
            self._verify(lease)
            row = replace(lease, revision=str(next(self._revisions)))
            self._rows[lease.name] = row
            return row

    def put_all(self, leases: Sequence[Lease]) -> List[Lease | LeaseLost]:
        return [self._outcome(lease) for lease in leases]

    def delete(self, lease: Lease) -> None:
        with self._lock:
            self._verify(lease)
            self._rows.pop(lease.name, None)

    def close(self) -> None:
        """Nothing to let go of."""

    def _outcome(self, lease: Lease) -> Lease | LeaseLost:
        try:
            return self.put(lease)
        except LeaseLost as error:
            return error

    def _verify(self, lease: Lease) -> None:
        row = self._rows.get(lease.name)
        if (row.revision if row else "") != lease.revision:
            raise changed(lease.name)
