"""Which instance of a pipeline runs: a lease in the positions store, renewed every second.

A lease has expired when its row has not changed for its term on our own clock; clocks of two hosts
are never compared. It keeps an instance that waits from disturbing the one that runs, and lets it
take over within seconds. It is not what keeps two from publishing: a process that was frozen
has no notice of a lost lease until it renews. The stream's fence does that
(sinks/jetstream/publishing/atomic.py).
"""

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from penstock.errors import LeaseLost, PenstockError
from penstock.leases import Lease, LeaseStore
from penstock.processes import is_alive

__all__ = ["Owner", "Ownership", "instance_name"]

# Seconds.
RENEW = 1.0
TERM = 4.0


def instance_name() -> str:
    """Host, process and a random part: no two instances ever share it."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Who has the lease, or had it. `readers`: backend -> its reader's name at the source.
    `machine` and `pid`: the process; see `_machine`."""

    instance: str
    since: str = ""
    machine: str = ""
    pid: int = 0
    readers: Mapping[str, str]

    @property
    def text(self) -> str:
        """For people: the instance, and what of the source it holds."""
        held = "".join(f", as process {pid} of the server" for pid in self.readers.values())
        return f"{self.instance}{held}"


class Ownership:
    """This instance's part in the lease of one pipeline.

    `attempt` until it returns None; then a thread renews, until `release`. `lost` is set when
    another instance took over. `clock` is monotonic seconds.
    """

    def __init__(
        self,
        store: LeaseStore,
        pipeline: str,
        *,
        instance: str,
        clock: Callable[[], float] = time.monotonic,
        readers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self.instance = instance
        self.lost = threading.Event()
        # Whose lease had expired when we took it: it may still hold on to the source.
        self.predecessor: Owner | None = None
        self._store = store
        # No pipeline's name has a colon: this is no row of positions.
        self._name = f"owner:{pipeline}"
        self._clock = clock
        self._readers = readers
        self._machine = _machine()
        self._since = ""
        self._lease: Lease | None = None
        # A rival's revision, for how long it was seen to be the same, and when we looked last.
        self._seen: tuple[int, float, float] | None = None
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def held(self) -> bool:
        """Whether we took the lease and did not lose it since."""
        return self._lease is not None and not self.lost.is_set()

    def attempt(self) -> Owner | None:
        """Takes the lease if it is free or has expired; else returns who has it. Call it a few
        times a second. Raises Unavailable, SettingsError."""
        if self.held:
            return None
        lease = self._store.get(self._name) or Lease(name=self._name)
        rival = _owner(lease)
        if rival is not None and not self._gone(rival) and not self._expired(lease):
            return rival
        self._since = datetime.now(UTC).isoformat(timespec="seconds")
        try:
            self._lease = self._store.put(self._ours(lease))
        except LeaseLost:
            return rival or Owner(instance="another instance", readers={})
        self.predecessor, self._seen = rival, None
        self.lost.clear()
        self._start()
        return None

    def _gone(self, rival: Owner) -> bool:
        """Whether it is ourselves, or a process of this machine that has ended."""
        if rival.instance == self.instance:
            return True
        return bool(self._machine) and rival.machine == self._machine and not is_alive(rival.pid)

    def _expired(self, lease: Lease) -> bool:
        now = self._clock()
        if self._seen is None or self._seen[0] != lease.revision:
            self._seen = lease.revision, 0.0, now
        _, seen, looked = self._seen
        # While we did not look, we and the rival may have been frozen together: a machine's pause.
        seen += min(now - looked, RENEW)
        self._seen = lease.revision, seen, now
        return seen >= TERM

    def renew(self) -> None:
        """Once; sets `lost` if the lease is another's. Raises Unavailable, SettingsError."""
        if self._lease is None:
            return
        try:
            self._lease = self._store.put(self._ours(self._lease))
        except LeaseLost:
            now = self._store.get(self._name)
            if now is None or now.owner != self.instance:
                self.lost.set()
            else:  # a renewal of ours, whose answer did not come
                self._lease = now

    def _ours(self, lease: Lease) -> Lease:
        document = {
            "since": self._since,
            "machine": self._machine,
            "pid": os.getpid(),
            "readers": dict(self._readers()),
        }
        return replace(lease, owner=self.instance, continuation=json.dumps(document))

    def _start(self) -> None:
        self._done = threading.Event()
        self._thread = threading.Thread(
            target=self._keep, args=(self._done,), name="lease", daemon=True
        )
        self._thread.start()

    def _keep(self, done: threading.Event) -> None:
        while not done.wait(RENEW) and not self.lost.is_set():
            try:
                self.renew()
            except PenstockError:
                continue  # the store is away: an instance that reaches it decides

    def release(self) -> None:
        """Gives the lease back, so that another instance need not wait for it to expire."""
        self._done.set()
        if self._thread is not None:
            self._thread.join(RENEW)
        lease, self._lease = self._lease, None
        if lease is None or self.lost.is_set():
            return
        with suppress(PenstockError):  # it expires, or is another's already
            self._store.put(replace(lease, owner="", continuation=""))


def _owner(lease: Lease) -> Owner | None:
    if not lease.owner:
        return None
    try:
        document: dict[str, Any] = json.loads(lease.continuation)
        return Owner(
            instance=lease.owner,
            since=str(document.get("since", "")),
            machine=str(document.get("machine", "")),
            pid=int(document.get("pid", 0)),
            readers={str(key): str(value) for key, value in document["readers"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return Owner(instance=lease.owner, readers={})


def _machine() -> str:
    """This boot of this machine, and this namespace of process ids; "" where that is unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
