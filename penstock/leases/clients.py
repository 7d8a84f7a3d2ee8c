"""What stores share that reach their rows through one client, made when it is first used."""

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from threading import RLock
from typing import Any, Generic, Protocol, TypeVar

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
