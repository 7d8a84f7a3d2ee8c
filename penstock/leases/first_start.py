"""The first start of several hosts that share a feed: its partitions get their rows once.

One host asks the source where to begin, under a lease that expires, and stores the answer before it
makes any row. So a host that goes on after another's failure begins where that one would have, and
no partition has two beginnings.
"""

import json
import time
from collections.abc import Callable
from dataclasses import replace

from penstock.leases import Lease, LeaseStore
from penstock.leases.holder import LeaseHolder
from penstock.leases.owned import OwnedRows
from penstock.model.errors import Malformed
from penstock.model.position import Bookmarks, bookmarks_from_json, bookmarks_to_json
from penstock.process.backoff import Clock

# Seconds. A host that was frozen for so long may ask the source again: the first answer counts.
TERM = 60.0


class FirstStart:
    """Of the rows under `prefix`. `attempt` until it is true, `every` seconds apart at most.

    Its own row is `start:PREFIX`: the owner is the host that begins, the continuation is where, as
    long as rows may be missing. `begin` asks the source; `make` makes the rows that are not there.
    Both may be called again, also on another host.
    """

    def __init__(
        self,
        store: LeaseStore,
        prefix: str,
        host: str,
        *,
        begin: Callable[[], Bookmarks],
        make: Callable[[Bookmarks], object],
        clock: Clock = time.monotonic,
        term: float = TERM,
        every: float = TERM / 4,
    ) -> None:
        self._store = store
        self._prefix = f"{prefix}/"
        # No pipeline's name has a colon: this is no row of positions.
        self._name = f"start:{prefix}"
        self._begin, self._make = begin, make
        self._rows = OwnedRows(store, self._name, host)
        self._holder = LeaseHolder(self._rows, clock=clock, term=term, every=every)

    def attempt(self) -> bool:
        """Whether all rows are there; false while another host begins. Raises what `begin` and
        `make` raise, and what the store does: then nobody has the lease, and any host may try
        again."""
        # In this order: rows that were there before the row of the start had no continuation are
        # all rows, and not the first ones of another host that began in between.
        is_begun = self._is_begun()
        row = self._store.get(self._name) or Lease(name=self._name)
        if is_begun and not row.continuation:
            return True
        if not self._holder.take(self._holder.free([row])):
            return False
        try:
            return self._start(row)
        finally:
            self._holder.release()

    def _start(self, row: Lease) -> bool:
        if row.continuation:
            bookmarks = _read(row)
        elif self._is_begun():  # since we looked
            return True
        else:
            bookmarks = self._begin()
            if not self._write(json.dumps(bookmarks_to_json(bookmarks))):
                return False
        self._make(bookmarks)
        return self._write("")

    def _is_begun(self) -> bool:
        return bool(self._store.list(self._prefix))

    def _write(self, continuation: str) -> bool:
        """False if the lease had expired, and another host has it."""
        return bool(
            self._rows.write([self._name], lambda row: replace(row, continuation=continuation))
        )


def _read(row: Lease) -> Bookmarks:
    try:
        return bookmarks_from_json(json.loads(row.continuation))
    except (ValueError, AttributeError, Malformed) as error:
        raise Malformed(
            f"the row {row.name!r} can't be read",
            "leases",
            hint="did another program write to the positions store? Delete the row",
        ) from error
