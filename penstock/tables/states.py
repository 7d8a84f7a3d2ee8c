"""The states of a source's table at a destination, and what leads from one to another. Pure."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from penstock.model.errors import PenstockError, Rejected, SettingsError
from penstock.tables.staged import UnsentValue


class TableState(StrEnum):
    """What becomes of the changes of a table: they are applied while it is live, and held else."""

    LIVE = "live"
    LOADING = "loading"  # its rows are loaded
    LOADED = "loaded"  # all rows are there, and held changes are to be applied
    UNFIT = "unfit"  # the loader tries again what failed because of the table or its target
    REFUSED = "refused"  # the same, where one of its changes or rows was refused
    STOPPED = "stopped"  # nothing is tried until an operator resumes it, or has it loaded anew
    LEFT = "left"  # it is not followed, and what is in the target is old


class TableEvent(StrEnum):
    """What happens to a table, and who says so."""

    FOLLOWED = "followed"  # map: it is new, or comes back, and has its rows
    AWAITED = "awaited"  # map: the same, and its rows are to be loaded
    LEFT = "left"  # map: it, or its source, is gone
    PLANNED = "planned"  # loader: ranges of its rows are to be read
    FILLED = "filled"  # loader: all of them were
    SETTLED = "settled"  # loader: all held changes were applied
    EARLY = "early"  # worker, map: a change depends on what others lack, which are held, too
    FAILED = "failed"  # worker, loader: see `CAUSES`
    REFUSED = "refused"
    STOPPED = "stopped"  # operator; catalogue: rows may be wrong, and are not to be replaced
    RESUMED = "resumed"  # operator
    JOINED = "joined"  # catalogue: a partition came with rows, which are loaded into the others
    ANEW = "anew"  # operator, catalogue, gaps, another history, loads that cannot go on


_S, _E = TableState, TableEvent
# States that wait; `LedgerRow.resumes` is the one before them.
WAITING = frozenset({_S.UNFIT, _S.REFUSED, _S.STOPPED})
_ANY = frozenset(_S) - {_S.LEFT}


def _each(
    states: Iterable[TableState], event: TableEvent, to: TableState | None
) -> dict[tuple[TableState, TableEvent], TableState | None]:
    return {(state, event): to for state in states}


# (state, event) -> state, None for the one before it waited; what is not here cannot happen.
TRANSITIONS: Mapping[tuple[TableState, TableEvent], TableState | None] = {
    (_S.LEFT, _E.FOLLOWED): _S.LIVE,
    (_S.LEFT, _E.AWAITED): _S.LOADING,
    (_S.LEFT, _E.EARLY): _S.LOADED,
    **_each(_ANY, _E.LEFT, _S.LEFT),
    # Another instance may have ended the load of before.
    **_each(_ANY, _E.PLANNED, _S.LOADING),
    # Its row may be refused again: it waits until all rows are there.
    (_S.REFUSED, _E.PLANNED): _S.REFUSED,
    (_S.STOPPED, _E.PLANNED): _S.STOPPED,
    **_each((_S.LOADING, _S.UNFIT, _S.REFUSED), _E.FILLED, _S.LOADED),
    **_each((_S.LOADED, _S.UNFIT, _S.REFUSED), _E.SETTLED, _S.LIVE),
    (_S.LIVE, _E.EARLY): _S.LOADED,
    **_each(_ANY - {_S.STOPPED}, _E.FAILED, _S.UNFIT),
    **_each(_ANY - {_S.STOPPED}, _E.REFUSED, _S.REFUSED),
    **_each(_ANY, _E.STOPPED, _S.STOPPED),
    **_each(WAITING, _E.RESUMED, None),
    **_each((_S.LIVE, _S.LOADED, _S.UNFIT), _E.JOINED, _S.LOADING),
    **_each(_ANY, _E.ANEW, _S.LOADING),
}


class RowsChanged(SettingsError):
    """Rows of a table changed without its log, and may not be replaced."""


class SuspendedByHand(Rejected):
    """An operator has suspended a table, and resumes it."""


class Cause(NamedTuple):
    """Why a table waits, or a change is set aside: an error of this kind."""

    kind: type[PenstockError]
    reason: str
    event: TableEvent


BY_HAND = "by-hand"
# The first that fits.
CAUSES = (
    Cause(RowsChanged, "changed", _E.STOPPED),
    Cause(SuspendedByHand, BY_HAND, _E.STOPPED),
    Cause(UnsentValue, "unsent-value", _E.REFUSED),
    Cause(Rejected, "refused", _E.REFUSED),
    Cause(PenstockError, "unfit", _E.FAILED),
)


def cause_of(error: PenstockError) -> Cause:
    return next(each for each in CAUSES if isinstance(error, each.kind))


# The state of a row that is stored as `waiting`, by its reason.
WAITS = {
    each.reason: state for each in CAUSES if (state := TRANSITIONS[_S.LIVE, each.event])
}  # fmt: skip
