"""What stores share: a client that is made when it is first used, and revisions and properties in a
store's own terms.

A store that counts revisions has numbers, and a lease has text. A store with one column for the
continuation writes the properties after it: so tables of earlier versions stay as they are.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from threading import RLock
from typing import Any, Generic, Protocol, TypeVar

import orjson

from penstock.leases import Lease
from penstock.model.errors import LeaseLost


class _Closes(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=_Closes)


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
            kept = self._kept()
            if kept is None or not self._is_usable(kept):
                kept = self._connect()
                self._made = os.getpid(), kept
            return kept

    def _kept(self) -> C | None:
        return self._made[1] if self._made is not None and self._made[0] == os.getpid() else None


# A number that no row ever has: what a revision of another store stands for.
_NEVER = 2**63 - 1
# The separator of JSON texts (RFC 7464): a control character, so that no JSON text contains it.
_SEPARATOR = "\x1e"


def number_of(revision: str) -> int:
    """The number of which a store made the text; 0 for "", "not stored yet"."""
    if not revision:
        return 0
    number = int(revision) if revision.isdecimal() else 0
    return min(number or _NEVER, _NEVER)


def fields_of(lease: Lease) -> dict[str, Any]:
    """A row as JSON, for stores that keep documents."""
    fields: dict[str, Any] = {"owner": lease.owner, "continuation": lease.continuation}
    return fields | {"properties": dict(lease.properties)} if lease.properties else fields


def lease_of(name: str, fields: Mapping[str, Any], revision: str) -> Lease:
    """What `fields_of` was given; raises KeyError for what is no lease."""
    properties = fields.get("properties")
    return Lease(
        name=name,
        owner=str(fields["owner"]),
        continuation=str(fields["continuation"]),
        properties=properties if isinstance(properties, dict) else {},
        revision=revision,
    )


def text_of(properties: Mapping[str, Any]) -> str:
    """JSON; "" for none."""
    return orjson.dumps(dict(properties)).decode() if properties else ""


def properties_of(text: str) -> dict[str, Any]:
    """Of JSON; empty for what is no object: something else wrote it, or an earlier version."""
    try:
        found = orjson.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def packed(continuation: str, properties: Mapping[str, Any]) -> str:
    """Both in one text: the continuation alone, if there are no properties."""
    return f"{continuation}{_SEPARATOR}{text_of(properties)}" if properties else continuation


def unpacked(text: str) -> tuple[str, dict[str, Any]]:
    """What `packed` was given."""
    continuation, _, properties = text.partition(_SEPARATOR)
    return continuation, properties_of(properties)
