"""What a ledger says of a source's table."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from penstock.model.errors import PenstockError, Unavailable
from penstock.model.position import Place
from penstock.tables.drift import KnownColumns
from penstock.tables.lines import LineChange
from penstock.tables.states import (
    BY_HAND,
    TRANSITIONS,
    WAITING,
    WAITS,
    TableEvent,
    TableState,
    cause_of,
)


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """How far a table of a source is. Changes before `point` are in the rows that were loaded; of
    those between it and `last_point` some are: the parts were read at several points. Without a
    `point`, `last_point` is the last change that was forgotten: rows have to be later. `resumes`:
    the state after one that waits. `is_ours`: rows of the source that are there were loaded or
    applied, so that a load may replace them. `is_again`: a load is not the first, and all rows of
    before are there. `columns`: `KnownColumns` as text. `losses`: of the source, after which it was
    loaded last. `reason` and `detail`: why it waits. `commits` only grows, but in a destination
    that went back."""

    id: int
    state: TableState
    place: Place | None
    point: str
    last_point: str
    resumes: TableState | None
    is_ours: bool
    is_again: bool
    columns: str
    losses: str
    reason: str
    detail: str
    commits: int = 0

    @classmethod
    def of(cls, id: int, state: str, place: str, *rest: Any) -> "LedgerRow":
        """The row with the values of the columns `ROW`."""
        row = cls(id, TableState.LEFT, as_place(place), *rest)
        now = WAITS[row.reason] if state == "waiting" else TableState(state)
        return replace(row, state=now, resumes=TableState(row.resumes) if row.resumes else None)

    @property
    def stored(self) -> Mapping[str, Any]:
        """The values of its columns."""
        state = "waiting" if self.state in WAITING else self.state.value
        place, resumes = str(self.place or ""), self.resumes.value if self.resumes else ""
        return asdict(self) | {"state": state, "place": place, "resumes": resumes}

    def is_new(self, place: Place) -> bool:
        """Whether a change is not in the target yet."""
        return (self.place is None or place > self.place) and place.cursor >= self.point

    @property
    def is_live(self) -> bool:
        return self.state is TableState.LIVE

    @property
    def is_followed(self) -> bool:
        return self.state is not TableState.LEFT

    @property
    def has_rows(self) -> bool:
        """Whether its rows were loaded, or are not to be."""
        return TableState.LOADING not in (self.state, self.resumes)

    def become(self, event: TableEvent, error: PenstockError | None = None) -> "LedgerRow":
        """The row after an event. Raises Unavailable where it cannot be, as somebody else has
        changed the row."""
        try:
            state = TRANSITIONS[self.state, event] or self.resumes
        except KeyError:
            raise Unavailable(
                f"a table is {self.state} meanwhile, and not {event}", code="tables.other-state"
            ) from None
        assert state is not None
        if state is self.state and error is None:
            return self
        resumes = None
        if state in WAITING:
            before = self.resumes if self.state in WAITING else self.state
            resumes = TableState.LOADED if before is TableState.LIVE else before
        return replace(
            self, state=state, resumes=resumes, reason=cause_of(error).reason if error else "",
            detail=str(error or ""),
        )  # fmt: skip

    def wait(self, error: PenstockError) -> "LedgerRow":
        """The row of a table that waits because of an error, and goes on where it was."""
        return self.become(cause_of(error).event, error)

    def begun_anew(self, event: TableEvent = TableEvent.ANEW) -> "LedgerRow":
        """The row of a table that is to be loaded instead of the rows that are there: their place,
        which may be of another server's log, decides nothing."""
        row = replace(self.become(event), is_again=self.is_again or self.has_rows)
        return replace(row, place=None, point="", last_point="")

    def at_points(self, point: str, last_point: str = "", *, is_ours: bool = True) -> "LedgerRow":
        """Rows of the table are of these points."""
        row = self.become(TableEvent.PLANNED)
        return replace(row, point=point, last_point=last_point, is_ours=self.is_ours or is_ours)


ROW = ", ".join(LedgerRow.__slots__)  # columns
# What status pages call states.
_SHOWN = {
    TableState.LOADED: "loading", TableState.UNFIT: "waiting", TableState.STOPPED: "waiting",
    TableState.REFUSED: "suspended",
}  # fmt: skip


class SourceRecord(NamedTuple):
    """How far a source's changes were reported as stored, and the mark of the last."""

    place: Place | None = None
    mark: str = ""


def as_place(text: str) -> Place | None:
    return Place.parse(text) if text else None


class LoadPart(NamedTuple):
    """Ranges (JSON) of a table `source` that are loaded in one transaction; `identity` is that of
    the plan that they are of, "" where its rows are there already, and are not loaded. `rows`: how
    many the source had in them."""

    source: str
    number: int
    ranges: str
    identity: str
    is_done: bool = False
    rows: int = 0


class TableRecord(NamedTuple):
    """All that the ledger says of a table (`schema.table`) of a source, with its `row`: since when
    it is in its state, how many changes are held, and of which transactions; see
    `TargetLedger.sizes`."""

    row: LedgerRow
    backend: str
    sid: str
    table: str
    target: str
    since: datetime
    held: int
    first: str | None
    ordinal: int | None  # of the first held change
    last: str | None
    size: tuple[tuple[str, Any], ...] = ()

    def is_before(self, change: LineChange) -> bool:
        """Whether it lacks what was there before a change."""
        if self.first is None or self.ordinal is None:
            return not self.row.has_rows
        held = self.first, self.ordinal
        return not self.row.has_rows or held < (change.cursor, change.ordinal)

    def described(self) -> dict[str, Any]:
        """As the status page shows it; plain JSON."""
        row = self.row
        state = "suspended" if row.reason == BY_HAND else _SHOWN.get(row.state, row.state.value)
        return {
            "backend": self.backend, "sid": self.sid, "table": self.table, "target": self.target,
            "state": state, "reason": row.reason,
            "error": row.detail, "since": self.since.astimezone(UTC).isoformat(),
            "place": row.place and str(row.place), "held": self.held, "first_skipped": self.first,
            "last_skipped": self.last, "ignored": KnownColumns.parse(row.columns).ignored,
            **dict(self.size),
        }  # fmt: skip
