"""What stores share: a client that is made when it is first used, and leases in one SQL table.

Every operation on the table is one statement: the database's own lock on the row is the compare-
and-swap. A store brings what differs: how it connects, its durability, and the meaning of its
errors. The column `continuation` has the properties, too: the table is as earlier versions made it,
and a role that may only read and write it is enough.
"""

import os
from abc import ABC, abstractmethod
from builtins import list as List  # `list` is a method here
from collections.abc import Mapping, Sequence
from dataclasses import replace
from threading import RLock
from typing import Any, ClassVar, Generic, TypeVar

from penstock.leases import Lease, changed
from penstock.leases.encoding import number_of, packed, unpacked
from penstock.model.errors import LeaseLost
from penstock.process.closing import Closable

C = TypeVar("C", bound=Closable)


class ClientStore(ABC, Generic[C]):
    """A `LeaseStore` of a URL. Its client belongs to the process that made it: what came through a
    fork is its parent's. Threads may share the object, and it pickles."""

    def __init__(self, url: str = "") -> None:
        self._url = url
        self._lock = RLock()
        self._made: tuple[int, C] | None = None  # with the process that made it

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._url,)

    @abstractmethod
    def put_all(self, leases: Sequence[Lease]) -> Sequence[Lease | LeaseLost]:
        """See LeaseStore."""

    def put(self, lease: Lease) -> Lease:
        (found,) = self.put_all([lease])
        if isinstance(found, LeaseLost):
            raise found
        return found

    def close(self) -> None:
        with self._lock:
            kept, self._made = self._kept(), None
            if kept is not None:
                kept.close()

    @abstractmethod
    def _connect(self) -> C:
        """Makes a client."""

    def _is_usable(self, client: C) -> bool:
        """Whether a client that was kept is as good as a new one."""
        return True

    def _client(self) -> C:
        with self._lock:
            if (kept := self._kept()) is None or not self._is_usable(kept):
                kept = self._connect()
                self._made = os.getpid(), kept
            return kept

    def _kept(self) -> C | None:
        return self._made[1] if self._made is not None and self._made[0] == os.getpid() else None


# Statements, each with its values.
Work = Sequence[tuple[str, Mapping[str, Any]]]

_ROWS = "SELECT name, owner, continuation, revision FROM {table} WHERE NOT deleted"
_STATEMENTS = {
    "create": """\
CREATE TABLE IF NOT EXISTS {table} (
    name text PRIMARY KEY,
    owner text NOT NULL,
    continuation text NOT NULL,
    revision bigint NOT NULL,
    deleted boolean NOT NULL DEFAULT false
)""",
    # A deleted row stays as a mark, so that a name that comes back never repeats a revision.
    "insert": """\
INSERT INTO {table} AS l (name, owner, continuation, revision)
VALUES ({name}, {owner}, {continuation}, 1)
ON CONFLICT (name) DO UPDATE SET owner = {owner}, continuation = {continuation},
    revision = l.revision + 1, deleted = false WHERE l.deleted
RETURNING revision""",
    "update": """\
UPDATE {table}
SET owner = {owner}, continuation = {continuation}, revision = revision + 1
WHERE name = {name} AND revision = {revision} AND NOT deleted RETURNING revision""",
    "delete": """\
UPDATE {table} SET owner = '', continuation = '', revision = revision + 1, deleted = true
WHERE name = {name} AND revision = {revision} AND NOT deleted RETURNING revision""",
    "get": f"{_ROWS} AND name = {{name}}",
    "list": f"{_ROWS} AND substr(name, 1, length({{prefix}})) = {{prefix}}",
}


def statements_of(table: str, parameter: str) -> Mapping[str, str]:
    """In the words of one database: of `table`, which is ours and no input, with parameters as its
    driver writes them, `:{}` or `%({})s`."""
    names = ("name", "owner", "continuation", "revision", "prefix")
    words = {"table": table, **{name: parameter.format(name) for name in names}}
    return {name: text.format(**words) for name, text in _STATEMENTS.items()}


class RowStore(ClientStore[C]):
    """A `LeaseStore` over one connection."""

    statements: ClassVar[Mapping[str, str]]

    @abstractmethod
    def _run(self, statement: str, values: Mapping[str, Any]) -> List[Any]:
        """Runs one of `statements`, durable when it returns; the rows of its answer."""

    @abstractmethod
    def _run_all(self, work: Work) -> List[List[Any]]:
        """Runs statements in one transaction; the rows of each answer."""

    def get(self, name: str) -> Lease | None:
        rows = self._run(self.statements["get"], {"name": name})
        return _lease(rows[0]) if rows else None

    def list(self, prefix: str) -> List[Lease]:
        # Sorted here: databases sort text by their locale.
        return [
            _lease(row) for row in sorted(self._run(self.statements["list"], {"prefix": prefix}))
        ]

    def put_all(self, leases: Sequence[Lease]) -> List[Lease | LeaseLost]:
        # By name: two instances that write the same rows lock them in the same order.
        order = sorted(range(len(leases)), key=lambda at: leases[at].name)
        answers = self._run_all([self._put(leases[at]) for at in order]) if order else []
        # An answer has the new revision, or no row.
        rows = dict(zip(order, answers, strict=True))
        return [
            replace(lease, revision=str(rows[at][0][0])) if rows[at] else changed(lease.name)
            for at, lease in enumerate(leases)
        ]

    def delete(self, lease: Lease) -> None:
        is_known = lease.revision or self.get(lease.name) is not None
        if is_known and not self._run(self.statements["delete"], _values(lease)):
            raise changed(lease.name)

    def _put(self, lease: Lease) -> tuple[str, Mapping[str, Any]]:
        statement = self.statements["update"] if lease.revision else self.statements["insert"]
        return statement, _values(lease)


def _values(lease: Lease) -> Mapping[str, Any]:
    return {
        "name": lease.name,
        "owner": lease.owner,
        "continuation": packed(lease.continuation, lease.properties),
        "revision": number_of(lease.revision),
    }


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
