"""Leases in one SQL table: the statements of the compare-and-swap, and what their answers mean.

Every operation is one statement, so the database's own lock on the row is the compare-and-swap. A
store brings what differs: how it connects, its durability, and the meaning of its errors. A
connection belongs to the process that made it. The column `continuation` has the properties, too:
the table is as earlier versions made it, and a role that may only read and write it is enough.
"""

import os
from abc import ABC, abstractmethod
from builtins import list as List  # `list` is a method here
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from threading import RLock
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from penstock.leases import Lease, changed
from penstock.leases.encoding import number_of, packed, unpacked
from penstock.model.errors import LeaseLost

# Statements, each with its values.
Work = Sequence[tuple[str, Mapping[str, Any]]]

_CREATE = """\
CREATE TABLE IF NOT EXISTS {table} (
    name text PRIMARY KEY,
    owner text NOT NULL,
    continuation text NOT NULL,
    revision bigint NOT NULL,
    deleted boolean NOT NULL DEFAULT false
)"""

# A deleted row stays as a mark, so that a name that comes back never repeats a revision.
_INSERT = """\
INSERT INTO {table} AS l (name, owner, continuation, revision)
VALUES ({name}, {owner}, {continuation}, 1)
ON CONFLICT (name) DO UPDATE SET owner = {owner}, continuation = {continuation},
    revision = l.revision + 1, deleted = false WHERE l.deleted
RETURNING revision"""
_UPDATE = """\
UPDATE {table}
SET owner = {owner}, continuation = {continuation}, revision = revision + 1
WHERE name = {name} AND revision = {revision} AND NOT deleted RETURNING revision"""
_DELETE = """\
UPDATE {table} SET owner = '', continuation = '', revision = revision + 1, deleted = true
WHERE name = {name} AND revision = {revision} AND NOT deleted RETURNING revision"""
_ROWS = "SELECT name, owner, continuation, revision FROM {table} WHERE NOT deleted"
_GET = f"{_ROWS} AND name = {{name}}"
_LIST = f"{_ROWS} AND substr(name, 1, length({{prefix}})) = {{prefix}}"

_PARAMETERS = ("name", "owner", "continuation", "revision", "prefix")


class _Closes(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=_Closes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statements:
    """In the words of one database. `of` takes the table and how its driver writes a parameter:
    `:{}` or `%({})s`."""

    create: str
    insert: str
    update: str
    delete: str
    get: str
    list: str

    @classmethod
    def of(cls, table: str, parameter: str) -> "Statements":
        """All of them; `table` is ours, and no input."""
        words = {"table": table, **{name: parameter.format(name) for name in _PARAMETERS}}
        return cls(
            create=_CREATE.format(**words),
            insert=_INSERT.format(**words),
            update=_UPDATE.format(**words),
            delete=_DELETE.format(**words),
            get=_GET.format(**words),
            list=_LIST.format(**words),
        )


class RowStore(ABC, Generic[C]):
    """A `LeaseStore` over one connection; threads may share it."""

    statements: ClassVar[Statements]

    def __init__(self) -> None:
        self._lock = RLock()
        self._made: C | None = None
        self._owner = 0

    @property
    def _connection(self) -> C | None:
        """The one of this process: what came through a fork is its parent's."""
        return self._made if self._owner == os.getpid() else None

    def _keep(self, connection: C) -> C:
        self._made, self._owner = connection, os.getpid()
        return connection

    def close(self) -> None:
        """Closes the connection; it is made again when used."""
        with self._lock:
            connection, self._made = self._connection, None
            if connection is not None:
                connection.close()

    @abstractmethod
    def _run(self, statement: str, values: Mapping[str, Any]) -> List[Any]:
        """Runs one of `statements`, durable when it returns; the rows of its answer."""

    @abstractmethod
    def _run_all(self, work: Work) -> List[List[Any]]:
        """Runs statements in one transaction; the rows of each answer."""

    def get(self, name: str) -> Lease | None:
        """The row as it is now, or None."""
        rows = self._run(self.statements.get, {"name": name})
        return _lease(rows[0]) if rows else None

    def list(self, prefix: str) -> List[Lease]:
        """All rows whose name starts with `prefix`, by name."""
        # Sorted here: databases sort text by their locale.
        return [_lease(row) for row in sorted(self._run(self.statements.list, {"prefix": prefix}))]

    def put(self, lease: Lease) -> Lease:
        """Writes the row if it still has `lease.revision`; raises LeaseLost otherwise."""
        return _written(lease, self._run(*self._put(lease)))

    def put_all(self, leases: Sequence[Lease]) -> List[Lease | LeaseLost]:
        """Writes each row that still has its revision, in one transaction."""
        # By name: two instances that write the same rows lock them in the same order.
        order = sorted(range(len(leases)), key=lambda at: leases[at].name)
        answers = self._run_all([self._put(leases[at]) for at in order]) if order else []
        outcomes = {at: _outcome(leases[at], rows) for at, rows in zip(order, answers, strict=True)}
        return [outcomes[at] for at in range(len(leases))]

    def delete(self, lease: Lease) -> None:
        """Removes the row if it still has `lease.revision`; raises LeaseLost otherwise."""
        if lease.revision or self.get(lease.name) is not None:
            _written(lease, self._run(self.statements.delete, _values(lease)))

    def _put(self, lease: Lease) -> tuple[str, Mapping[str, Any]]:
        statement = self.statements.update if lease.revision else self.statements.insert
        return statement, _values(lease)


def _values(lease: Lease) -> Mapping[str, Any]:
    return {
        "name": lease.name,
        "owner": lease.owner,
        "continuation": packed(lease.continuation, lease.properties),
        "revision": number_of(lease.revision),
    }


def _outcome(lease: Lease, rows: Sequence[Any]) -> Lease | LeaseLost:
    """What a swap did: its answer has the new revision, or no row."""
    if not rows:
        return changed(lease.name)
    return replace(lease, revision=str(rows[0][0]))


def _written(lease: Lease, rows: Sequence[Any]) -> Lease:
    outcome = _outcome(lease, rows)
    if isinstance(outcome, LeaseLost):
        raise outcome
    return outcome


def _lease(row: tuple[str, str, str, int]) -> Lease:
    name, owner, text, revision = row
    continuation, properties = unpacked(text)
    return Lease(
        name=name,
        owner=owner,
        continuation=continuation,
        properties=properties,
        revision=str(revision),
    )
