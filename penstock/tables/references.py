"""Foreign keys between the tables of a destination: which are tied, and in which order. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from penstock.model.errors import Rejected, Unavailable

_Pairs = frozenset[tuple[str, str]]


class Dangling(Rejected):
    """A change refers to a row that is not there, or removes one that others refer to: it may come
    out once other tables are further."""


class TiesChanged(Unavailable):
    """Foreign keys were added to the targets, or dropped, since changes were divided among workers:
    it is done anew."""


@dataclass(frozen=True, slots=True)
class References:
    """Pairs of a table and one that it refers to, by their full names; `cascading`: those of which
    a row goes with the row that it refers to; `deferred`: those that only a COMMIT checks."""

    pairs: _Pairs = frozenset()
    cascading: _Pairs = frozenset()
    deferred: _Pairs = frozenset()

    def among(self, tables: Iterable[str]) -> "References":
        """Those that tie these tables, also across others."""
        own = frozenset[str]().union(*map(self.tied, tables))
        ties = (self.pairs, self.cascading, self.deferred)
        return References(*[frozenset(filter(own.issuperset, each)) for each in ties])

    def tied(self, table: str) -> frozenset[str]:
        """All tables that foreign keys connect with it, and itself."""
        return _reached(table, self.pairs | _turned(self.pairs))

    def children(self, table: str) -> frozenset[str]:
        """Those that depend on it, but itself."""
        return _reached(table, _turned(self.pairs)) - {table}

    def parents(self, table: str) -> frozenset[str]:
        """Those that it depends on, but those that depend on it."""
        return _reached(table, self.pairs) - _reached(table, _turned(self.pairs))

    def circle(self, table: str) -> frozenset[str]:
        """Others that it and they depend on each other."""
        return _reached(table, self.pairs) & self.children(table)

    def rank(self, table: str) -> tuple[int, int, str]:
        """Sorts each table after those that it depends on; in a circle that a deferred key opens
        after that as well, and by name in others."""
        opened = self.pairs - self.deferred
        return len(_reached(table, self.pairs)), len(_reached(table, opened)), table


@lru_cache(4096)
def _reached(table: str, pairs: _Pairs) -> frozenset[str]:
    """The tables that one comes to, and itself."""
    found, rest = {table}, [table]
    while rest:
        at = rest.pop()
        new = {to for of, to in pairs if of == at} - found
        found |= new
        rest += new
    return frozenset(found)


@lru_cache(64)
def _turned(pairs: _Pairs) -> _Pairs:
    return frozenset((parent, child) for child, parent in pairs)
