"""A processor's store, which is closed with it for good."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.leases import Lease, LeaseStore
from penstock.model.errors import LeaseLost, Unavailable

Answer = TypeVar("Answer")


class ClosableStore:
    """A `LeaseStore` that does not open again after `close`: a thread that hangs in a read, or in
    an observer, may come back later than that."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self._is_closed = False

    def get(self, name: str) -> Lease | None:
        """See `LeaseStore`."""
        return self._call(lambda: self._store.get(name))

    def list(self, prefix: str) -> Sequence[Lease]:
        """See `LeaseStore`."""
        return self._call(lambda: self._store.list(prefix))

    def put(self, lease: Lease) -> Lease:
        """See `LeaseStore`."""
        return self._call(lambda: self._store.put(lease))

    def put_all(self, leases: Sequence[Lease]) -> Sequence[Lease | LeaseLost]:
        """See `LeaseStore`."""
        return self._call(lambda: self._store.put_all(leases))

    def delete(self, lease: Lease) -> None:
        """See `LeaseStore`."""
        self._call(lambda: self._store.delete(lease))

    def close(self) -> None:
        """Closes the store for good."""
        self._is_closed = True
        self._store.close()

    def _call(self, call: Callable[[], Answer]) -> Answer:
        if self._is_closed:
            raise Unavailable("the processor has ended: its store is closed")
        try:
            return call()
        finally:
            if self._is_closed:  # meanwhile: the call may have opened it again
                self._store.close()
