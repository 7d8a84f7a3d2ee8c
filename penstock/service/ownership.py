"""Which instance of a pipeline runs: a lease in the positions store, renewed every second.

It keeps an instance that waits from disturbing the one that runs, and lets it take over within
seconds. It is not what keeps two from publishing: a process that was frozen has no notice of a lost
lease until it renews. The stream's fence does that (sinks/jetstream/publishing/atomic.py).
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from penstock.config import Pipeline
from penstock.leases import Lease, LeaseStore
from penstock.leases.holder import KIND, LeaseHolder, terms
from penstock.leases.kinds import Kind
from penstock.leases.owned import OwnedRows
from penstock.reading.positions import Positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who has the lease, or had it. `readers`: backend -> its reader's name at the source."""

    instance: str
    readers: Mapping[str, str]

    @property
    def text(self) -> str:
        """For people: the instance, and what of the source it holds."""
        held = "".join(f", as process {pid} of the server" for pid in self.readers.values())
        return f"{self.instance}{held}"


class Ownership:
    """This instance's part in the lease of one pipeline, or of who changes a processor's rows by
    hand (`kind`). `attempt` until it returns None; then a thread renews, until `release`. `lost` is
    true when another instance took over. `clock` is monotonic seconds."""

    def __init__(
        self,
        store: LeaseStore,
        pipeline: str,
        *,
        instance: str,
        clock: Callable[[], float] = time.monotonic,
        readers: Callable[[], Mapping[str, str]] = dict,
        kind: Kind = "pipeline",
    ) -> None:
        self.instance = instance
        # Whose lease had expired when we took it: it may still hold on to the source.
        self.predecessor: Owner | None = None
        self._store = store
        # No pipeline's name has a colon: this is no row of positions.
        self._name = f"owner:{pipeline}"
        self._holder = LeaseHolder(
            OwnedRows(store, self._name, instance, stated={KIND: kind}),
            clock=clock,
            properties=lambda: {"readers": dict(readers())},
        )

    @property
    def held(self) -> bool:
        """Whether we took the lease and did not lose it since."""
        return bool(self._holder.held)

    @property
    def lost(self) -> bool:
        return bool(self._holder.lost)

    def attempt(self) -> Owner | None:
        """Takes the lease if it is free or has expired; else returns who has it. Call it a few
        times a second. Raises Unavailable, SettingsError."""
        if self.held:
            return None
        lease = self._store.get(self._name) or Lease(name=self._name)
        rival = _owner(lease)
        if not self._holder.take(self._holder.free([lease])):
            return rival or Owner(instance="another instance", readers={})
        self.predecessor = rival
        self._holder.start()
        return None

    def release(self) -> None:
        """Gives the lease back, so that another instance need not wait for it to expire."""
        self._holder.stop()
        self._holder.release()


def _owner(lease: Lease) -> Owner | None:
    if not lease.owner:
        return None
    readers = terms(lease).get("readers")
    found = readers.items() if isinstance(readers, dict) else ()
    return Owner(
        instance=lease.owner, readers={str(backend): str(reader) for backend, reader in found}
    )


def positions_of(pipeline: Pipeline, backend: str, instance: str) -> Positions:
    """The positions of a backend, as this instance's; does no I/O."""
    url, checkpoint = pipeline.positions, pipeline.checkpoint
    return Positions.of(url, pipeline.name, backend, checkpoint, owner=instance)
