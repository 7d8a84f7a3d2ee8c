"""Who holds a lease: taken when it is free, renewed, handed over; one of them or a thousand.

A lease has expired when its row has not changed for its term on the clock of the one who looks;
clocks of two hosts are never compared. A holder that is cut off from the store loses its leases by
the same rule: `holds` is false one term after the last renewal, before any other can have them.
"""

import math
import os
import secrets
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from penstock.leases import Lease
from penstock.leases.encoding import properties_of
from penstock.leases.owned import NONCE, OwnedRows
from penstock.model.errors import PenstockError
from penstock.process.backoff import Clock
from penstock.process.processes import Machine, elapsed
from penstock.process.repeated import Repeated

# Seconds.
RENEW = 1.0
TERM = 4.0

_Document = dict[str, Any]
# Of `terms`: what is true of one owner only.
_OWNERS = frozenset({"since", "machine", "pid", "term", "asked_by", NONCE})
# The property with the time of the last checkpoint; and with the kind of all owners (kinds.py).
SAVED, KIND = "saved", "kind"


def instance_name() -> str:
    """Host, process and a random part: no two instances ever share it."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def now_text() -> str:
    """The time, for people: it is compared with nothing."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def terms(lease: Lease) -> _Document:
    """The lease's properties: what its owner wrote of itself, `since`, `machine`, `pid`, `term`
    (seconds) and more; `asked_by`, who wants it; and what is the user's own."""
    return _earlier(lease) or dict(lease.properties)


def users_own(lease: Lease) -> _Document:
    """The properties without ours: the user's, for a partition's children too."""
    return {name: value for name, value in _unowned(lease).items() if name not in (SAVED, KIND)}


def released(lease: Lease) -> Lease:
    """The row as it is when nobody holds it: with its continuation, and no owner's terms."""
    return _with(lease, "", _unowned(lease))


def owner_has_ended(lease: Lease, machine: Machine) -> bool:
    """Whether the owner was a process of this machine, and has ended."""
    document = terms(lease)
    pid = document.get("pid")
    is_here = bool(machine.name) and document.get("machine") == machine.name
    return is_here and isinstance(pid, int) and not machine.runs(pid)


def _unowned(lease: Lease) -> _Document:
    return {name: value for name, value in terms(lease).items() if name not in _OWNERS}


def _earlier(lease: Lease) -> _Document:
    """What an owner of an earlier version wrote: in the continuation. It goes first: such an
    owner leaves another's properties as they are, in some stores."""
    found = properties_of(lease.continuation)
    return found if "since" in found else {}


def _with(lease: Lease, owner: str, document: Mapping[str, Any]) -> Lease:
    continuation = "" if _earlier(lease) else lease.continuation
    return replace(lease, owner=owner, continuation=continuation, properties=dict(document))


class _Seen(NamedTuple):
    """Of another's lease: for how many seconds it was seen to be of one revision."""

    revision: str
    seconds: float
    looked_at: float


class LeaseHolder:
    """The leases that one owner holds among rows of which it writes the owner and the properties.

    `free` and `take` until they are ours; `renew` every `every` seconds (`start`: in a thread), one
    write for all of them; `release`, or lose them. `term` is ours: another's lease states its own.
    `properties` is asked at each write.
    """

    def __init__(
        self,
        rows: OwnedRows,
        *,
        clock: Clock = elapsed,
        every: float = RENEW,
        term: float = TERM,
        properties: Callable[[], Mapping[str, Any]] = dict,
        machine: Machine | None = None,
    ) -> None:
        self._rows, self._clock, self._every = rows, clock, every
        self._term, self._properties = term, properties
        self._machine = machine or Machine()
        # Drawn by the first `take`, after forks: no other process takes a row with it.
        self._nonce = ""
        # What we took -> when the last write began that renewed it. Changed with the rows' lock.
        self._renewed: dict[str, float] = {}
        # What others held when we looked last. Used by the one thread that looks.
        self._seen: dict[str, _Seen] = {}
        # The thread that renews, and what ends it.
        self._renewing: Repeated | None = None

    @property
    def lost(self) -> set[str]:
        """What another owner has taken from us; one that we take again is not lost any more."""
        return self._rows.lost

    @property
    def held(self) -> list[str]:
        """What we took, and neither released nor found lost."""
        with self._rows.lock:
            return [name for name in self._renewed if name not in self._rows.lost]

    def holds(self, name: str) -> bool:
        """Whether it certainly is ours alone: it was renewed within its term."""
        renewed = self._renewed.get(name, -math.inf)
        return name not in self._rows.lost and self._clock() - renewed < self._term

    def has(self, name: str) -> bool:
        return name in self._renewed and name not in self._rows.lost

    def forget(self, names: Collection[str]) -> None:
        """These are not ours any more, lost or not; writes nothing."""
        with self._rows.lock:
            for name in names:
                self._renewed.pop(name, None)
            self._rows.drop(names)
            self._rows.lost.difference_update(names)

    def free(self, rows: Iterable[Lease]) -> list[Lease]:
        """Which may be taken of all the rows that there are: nobody's, what this holder took and
        does not hold, those of a process of this machine that has ended, and expired ones. A row of
        another process with our name is another's. Call it a few times in a term."""
        now, seen, found = self._clock(), {}, []
        held = set(self.held)
        for row in rows:
            if row.name in held:
                continue
            seen[row.name] = each = self._watched(row, now)
            if not row.owner or self._took(row) or self._is_over(row, each.seconds):
                found.append(row)
        self._seen = seen
        return found

    def take(self, rows: Collection[Lease]) -> list[str]:
        """Takes leases that `free` returned; which of them are ours now, in one write. The others
        changed meanwhile. After Unavailable, `free` returns those that were written."""
        now = self._clock()
        self._nonce = self._nonce or secrets.token_hex(8)
        fresh = {
            NONCE: self._nonce,
            "since": now_text(),
            "machine": self._machine.name,
            "pid": os.getpid(),
            "term": self._term,
            **self._properties(),
            **self._rows.stated,
        }
        store, owner = self._rows.store, self._rows.owner
        written = [_with(row, owner, _unowned(row) | fresh) for row in rows]
        answers = store.put_all(written) if written else []
        taken = [each for each in answers if isinstance(each, Lease)]
        with self._rows.lock:
            self._rows.adopt(taken)
            self._renewed |= dict.fromkeys((each.name for each in taken), now)
        return [each.name for each in taken]

    def renew(self) -> None:
        """Renews all, in one write. One that another has taken is `lost`."""
        with self._rows.lock:
            now, properties = self._clock(), dict(self._properties())
            written = self._rows.write(
                self.held, lambda row: _with(row, self._rows.owner, terms(row) | properties)
            )
            self._renewed |= dict.fromkeys(written, now)

    def ask(self, rows: Iterable[Lease]) -> None:
        """Asks their owners for leases, in one write. An owner knows by its next renewal; one that
        was asked already is not asked again: each write puts off the end of a dead owner's term."""
        asking = {"asked_by": self._rows.owner}
        asked = [
            _with(row, row.owner, terms(row) | asking)
            for row in rows
            if row.owner not in ("", self._rows.owner) and "asked_by" not in terms(row)
        ]
        if asked:
            self._rows.store.put_all(asked)

    @property
    def asked(self) -> dict[str, str]:
        """What we hold, and another has asked for -> who. Finish what is begun, and release it."""
        rows = {row.name: terms(row).get("asked_by") for row in self._rows.known(self.held)}
        return {name: str(owner) for name, owner in rows.items() if owner}

    def release(self, names: Collection[str] | None = None) -> None:
        """Gives leases (all of them) back, so that nobody need wait for them to expire; who asked
        for one stays in it. A store that is away is no error: they expire."""
        with self._rows.lock:
            names = [name for name in self.held if names is None or name in names]
            for name in names:
                del self._renewed[name]  # first: another may hold it before we have the answer
            with suppress(PenstockError):
                self._rows.write(names, lambda row: _with(row, "", self._left(row)))
            self._rows.drop(names)

    def start(self) -> None:
        """Renews in a thread, until `stop`. A store that is away costs no lease."""
        if self._renewing is None:
            self._renewing = Repeated(self._renew, interval=self._every, name="leases").start()

    def stop(self) -> None:
        """Ends the thread; what is held is held until it expires."""
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            renewing.close(self._every)

    def _renew(self) -> None:
        with suppress(PenstockError):
            self.renew()

    def _left(self, row: Lease) -> _Document:
        asked_by = terms(row).get("asked_by")
        return self._unowned(row) | ({"asked_by": asked_by} if asked_by else {})

    def _unowned(self, row: Lease) -> _Document:
        ours = self._properties()
        return {name: value for name, value in _unowned(row).items() if name not in ours}

    def _took(self, row: Lease) -> bool:
        return row.owner == self._rows.owner and row.properties.get(NONCE) == (self._nonce or "-")

    def _watched(self, row: Lease, now: float) -> _Seen:
        before = self._seen.get(row.name)
        if before is None or before.revision != row.revision:
            return _Seen(row.revision, 0.0, now)
        # While we did not look, we and the owner may have been frozen together: a machine's pause.
        more = min(now - before.looked_at, self._every)
        return _Seen(row.revision, before.seconds + more, now)

    def _is_over(self, row: Lease, seconds: float) -> bool:
        """Whether the owner has ended on this machine, or has not renewed for its term."""
        term = terms(row).get("term", self._term)
        if seconds >= (term if isinstance(term, int | float) else self._term):
            return True
        return owner_has_ended(row, self._machine)
