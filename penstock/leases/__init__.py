"""Leases: who owns a partition, and how far it is done. The contract is here.

A checkpoint store and a lease store are the same thing: a compare-and-swap store of leases. The
positions of a pipeline are leases whose continuation is a place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from penstock.model.errors import LeaseLost, SettingsError
from penstock.process.plugins import known, plugin

__all__ = ["Lease", "LeaseStore", "changed", "open_store", "replace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A row of the store. `revision` is the store's, text to be compared for equality only; "" is
    "not stored yet".

    `name` is a path such as `shop/default/slot`. `continuation` is the feed's: JSON text.
    `properties` is JSON: what the owner states of itself (leases/holder.py), and what is the
    user's own. Rows of earlier versions have none.
    """

    name: str
    owner: str = ""
    continuation: str = ""
    properties: Mapping[str, Any] = field(default_factory=dict, hash=False)
    revision: str = ""


def changed(name: str) -> LeaseLost:
    """What a store raises, or gives, for a row that has another revision than was expected."""
    return LeaseLost(f"lease {name!r} was changed by another owner", "leases")


class LeaseStore(Protocol):
    """Compare-and-swap rows. Constructing one does no I/O. Raises Unavailable, SettingsError."""

    def get(self, name: str) -> Lease | None:
        """The row as it is now, or None."""

    def list(self, prefix: str) -> Sequence[Lease]:
        """All rows whose name starts with `prefix`, by name."""

    def put(self, lease: Lease) -> Lease:
        """Writes the row if it still has `lease.revision` ("": if it does not exist) and returns
        it with its new revision; raises LeaseLost otherwise. Durable when it returns."""

    def put_all(self, leases: Sequence[Lease]) -> Sequence[Lease | LeaseLost]:
        """Writes many rows in one durable write, each as `put` does.

        Returns, in the order of `leases`, the row with its new revision, or the LeaseLost of a row
        that another owner changed: the other rows are written all the same. Writes nothing when
        it raises; after Unavailable it may have written all.
        """

    def delete(self, lease: Lease) -> None:
        """Removes the row if it still has `lease.revision`; raises LeaseLost otherwise."""

    def close(self) -> None:
        """Lets go of the store; a store that was closed opens again when used."""


def open_store(url: str) -> LeaseStore:
    """The store that `url` names; does no I/O. Raises SettingsError, without the URL's password.
    The URL's scheme is the name of an entry point of the group `penstock.stores`, whose value makes
    a store of a URL. Each call with `memory:` gives a new, empty store."""
    scheme, colon, _ = url.partition(":")
    if not colon:
        raise SettingsError(
            "`positions` is no URL",
            "leases.url-invalid",
            hint=f"known: {', '.join(known('stores'))}",
        )
    made: LeaseStore = plugin("stores", scheme)(url)
    return made
