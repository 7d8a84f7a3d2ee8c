"""A positions store in one module: rows in a JSON file, on a folder that all instances share.

It is what docs/how-to/write-a-store.md describes, and passes the contract suite of stores.
"""

import fcntl
import os
import secrets
from builtins import list as List  # `list` is a method here
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from urllib.parse import urlsplit

import orjson

from penstock.leases import Lease
from penstock.model.errors import LeaseLost, SettingsError, Unavailable

__all__ = ["FileStore"]

Rows = dict[str, Lease]


class FileStore:
    """A `penstock.leases.LeaseStore`. It is its path, so it pickles, and any number of threads,
    processes and hosts may have one of the same file."""

    def __init__(self, url: str) -> None:
        self._path = Path(urlsplit(url).path)
        if not self._path.name:
            raise SettingsError("the URL names no file", hint="write jsonfile:///FOLDER/FILE")

    def get(self, name: str) -> Lease | None:
        """The row as it is now, or None."""
        with self._locked() as rows:
            return rows.get(name)

    def list(self, prefix: str) -> List[Lease]:
        """All rows whose name starts with `prefix`, by name."""
        with self._locked() as rows:
            return [rows[name] for name in sorted(rows) if name.startswith(prefix)]

    def put(self, lease: Lease) -> Lease:
        """Writes the row if it still has its revision; raises LeaseLost otherwise."""
        [outcome] = self.put_all([lease])
        if isinstance(outcome, LeaseLost):
            raise outcome
        return outcome

    def put_all(self, leases: Sequence[Lease]) -> List[Lease | LeaseLost]:
        """Writes each row that still has its revision, all in one write of the file."""
        with self._locked() as rows:
            outcomes = [_swap(rows, lease) for lease in leases]
            self._write(rows)
            return outcomes

    def delete(self, lease: Lease) -> None:
        """Removes the row if it still has its revision; raises LeaseLost otherwise."""
        with self._locked() as rows:
            if _revision(rows, lease.name) != lease.revision:
                raise LeaseLost(f"{lease.name!r} was changed by another owner")
            rows.pop(lease.name, None)
            self._write(rows)

    def close(self) -> None:
        """Nothing stays open."""

    @contextmanager
    def _locked(self) -> Iterator[Rows]:
        """The rows, under the lock."""
        try:
            with self._path.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                found = orjson.loads(self._path.read_bytes()) if self._path.exists() else []
                yield {row["name"]: Lease(**row) for row in found}
        except OSError as error:
            raise Unavailable(f"the positions file {self._path}: {error.strerror}") from error

    def _write(self, rows: Rows) -> None:
        # A crash leaves the old file or the new one, and what `put` returned survives a power cut.
        fresh = self._path.with_suffix(".new")
        with fresh.open("wb") as file:
            file.write(orjson.dumps([asdict(row) for row in rows.values()]))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _swap(rows: Rows, lease: Lease) -> Lease | LeaseLost:
    if _revision(rows, lease.name) != lease.revision:
        return LeaseLost(f"{lease.name!r} was changed by another owner")
    # Drawn anew: a row that is deleted and made again never repeats a revision.
    rows[lease.name] = replace(lease, revision=secrets.token_hex(8))
    return rows[lease.name]


def _revision(rows: Rows, name: str) -> str:
    return rows[name].revision if name in rows else ""
