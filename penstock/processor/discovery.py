"""The first start of hosts that share a feed, and partitions that come later: a row for each.

One host at a time looks regularly: the one that holds the first of all leases. Whoever has read a
partition to its end looks for its children.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property

from penstock.feeds import At
from penstock.leases.first_start import FirstStart
from penstock.leases.kinds import NameCheck
from penstock.model.errors import LeaseLost, PenstockError, SettingsError, Unavailable
from penstock.process.backoff import delays
from penstock.processor.partition import PartitionWork, Taker
from penstock.reading.passed_gaps import BLOCKED
from penstock.reading.roster import LOOKUP, LookUp, Roster

# Seconds between two looks whether another host has begun.
AGAIN = 1.0


class Discovery(Taker):
    """Takes turns as a partition does. `on_found` is called after rows were made."""

    def __init__(self, work: PartitionWork, at: At, on_found: Callable[[], None]) -> None:
        self.begun = False  # there are leases
        self.error = ""  # why nothing is found; "" while it is
        self._work = work
        self._positions = positions = work.leases.positions
        self._at = at  # where the first host of all begins
        name = positions.prefix.partition("/")[0]
        self._name_check = NameCheck(positions.rows.store, name, clock=work.clock)
        self._on_found = on_found
        self._roster = Roster(work.feed, clock=work.clock)
        self._has_ended = False  # a partition of ours, since the last look
        self._waits = delays()  # while the source or the store is away

    def ended(self) -> None:
        """A partition of ours has ended: the next turn looks for its children."""
        self._has_ended = True

    def turn(self, timeout: float) -> float:
        try:
            wait = self._look_up() if self.begun else self._begin()
        except Unavailable as error:
            self.error = str(error)
            return next(self._waits)
        except PenstockError as error:
            self.error = str(error)
            if not self.begun and isinstance(error, SettingsError):
                self._work.faults.on_fatal(error)
            return BLOCKED
        self.error = ""
        self._waits = delays()
        return wait

    @cached_property
    def _start(self) -> FirstStart:
        """Made when it is used: a host may get its name late."""
        work, positions = self._work, self._positions
        return FirstStart(
            positions.rows.store,
            positions.prefix,
            work.leases.host,
            begin=lambda: work.feed.begin(self._at),
            make=positions.plant,
            clock=work.clock,
            term=work.processing.expire,
            every=work.processing.acquire,
        )

    def _begin(self) -> float:
        """The place is pinned and stored before anything is read, once for all hosts. After stored
        positions nothing is made at the source: that would be a silent hole."""
        if not self._name_check.attempt() or not self._start.attempt():
            return AGAIN
        self.begun = True
        self._on_found()
        return 0.0

    def _look_up(self) -> float:
        ended, self._has_ended = self._has_ended, False
        if self._roster.due_in > 0 and not ended:
            return self._roster.due_in
        survey = self._positions.survey()
        live = [name for name, (_, bookmark) in survey.items() if not bookmark.ended]
        owners = [survey[name][0].owner for name in live]
        host = self._work.leases.host
        if next(filter(None, owners), host) != host and not ended:
            return LOOKUP
        try:
            found = self._roster.look_up({name: each for name, (_, each) in survey.items()}, live)
        except PenstockError:
            self._has_ended = ended
            raise
        if found is not None:
            self._take_in(found)
        return self._roster.due_in

    def _take_in(self, found: LookUp) -> None:
        rows = {name: row for name, (row, _) in self._positions.survey().items()}
        if found.ready:
            inherited = self._work.leases.inherited
            properties = {name: inherited(rows, of) for name, of in found.parents.items()}
            self._positions.plant(found.ready, properties)
            self._on_found()
        for name in found.forgotten:
            if name in rows:
                with suppress(LeaseLost):
                    self._positions.rows.store.delete(rows[name])
