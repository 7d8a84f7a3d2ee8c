"""Writes what a sink can store, and sets the rest aside: in which order things are made durable.

Before anything that was made of a batch leaves here, its dead letters are stored, its tables are
suspended, and what is skipped is counted, each acknowledged by the server. So the position passes
a bad change only when it is safe elsewhere, and while it cannot be, nothing goes on.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from penstock.model.change import OnError, images_of, unreadable
from penstock.model.errors import Rejected
from penstock.model.position import PartitionId, Place
from penstock.sinks import Notify
from penstock.sinks.poison import faults
from penstock.sinks.poison.dead_letter import Letter, error_letter, row_letter
from penstock.sinks.poison.faults import Fault
from penstock.sinks.poison.suspension import Event, Suspension, SuspensionState, Table
from penstock.sinks.rows.part import Part, place_of
from penstock.sinks.settings import SinkSettings
from penstock.tables.sift import sift

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# Seconds that a record is believed before it is read again: who suspends a table waits as long.
FRESH = 1.0


class PartWriter(Protocol[T_co]):
    """How a connected sink stores or encodes changes. `limit`: bytes that a change may have."""

    @property
    def limit(self) -> int: ...

    def write(self, part: Part) -> Sequence[T_co]:
        """What was made of all changes of a part. Raises Rejected when the sink refuses one of
        them, and then has made nothing of any."""

    def reason(self, row: Part) -> str:
        """Why `write` refused the change of a part of one: too-large, not-encodable or other."""


class LetterStore(Protocol):
    """Where a sink keeps dead letters."""

    def store(self, letter: Letter) -> bool:
        """Makes a letter durable, once; False if it was. Raises Unavailable, SettingsError."""


class RecordStore(Protocol):
    """Where a sink keeps what it knows of suspended tables. Everything raises Unavailable."""

    def all(self, *, within: float | None = None) -> Mapping[Table, Suspension]:
        """Every record, as known here; with what others stored until so many seconds ago."""

    def change(self, table: Table, step: Callable[[Suspension], Suspension]) -> Suspension:
        """Stores what `step` makes of a table's record; `step` may run again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoisonSession(Generic[T]):
    """What a `Quarantine` needs of its sink, while that is connected: how it writes changes, and
    where the rest goes. `streaks`: changes in a row that were too large, by table."""

    writer: PartWriter[T]
    letters: LetterStore
    suspensions: RecordStore
    streaks: dict[Table, int]


class _Suspend(NamedTuple):
    """A table that is suspended from `row` on."""

    row: int
    table: Table
    letter: Letter


class Quarantine(Generic[T]):
    """Of one write. `passed` are the last places that were seen to, by partition: durable when
    everything that `write` returned is, or safe elsewhere. Changes with an operation of `omitted`
    are left out."""

    def __init__(
        self, settings: SinkSettings, notify: Notify, omitted: tuple[str, ...] = ()
    ) -> None:
        self.passed: dict[PartitionId, Place] = {}
        self._session: PoisonSession[T]  # of the last call of `write`
        self._notify = notify
        self._policy: OnError = settings.on_error
        self._suspend_after = settings.suspend_after
        self._omitted = omitted
        self._refreshed = False

    def write(self, part: Part, session: PoisonSession[T]) -> Sequence[T]:
        """What the sink made of all changes that it takes; the rest is seen to.

        May be called again with the same part when it raised Unavailable. Raises Rejected where
        the policy is `stop`, SettingsError.
        """
        self._session = session
        session.suspensions.all(within=FRESH if self._refreshed else 0)
        self._refreshed = True
        if self._is_usual(part):
            try:
                return session.writer.write(part)
            except Rejected:
                pass  # raised again for the run that has the change
        if len(part.runs) == 1:
            return self._written_run(part)
        return [written for run in part.split() for written in self._written_run(run)]

    def _is_usual(self, part: Part) -> bool:
        """Whether nothing is known to be wrong with any row, as far as the batch shows."""
        if not part.is_keyed or any(self._session.streaks.values()):
            return False
        if not (known := self._session.suspensions.all()):
            return True
        first = min(run.first for run in part.runs)
        return not any(_concerns(one, first) for one in known.values())

    def _written_run(self, part: Part) -> Sequence[T]:
        """The same for changes of one origin."""
        batch, (run,) = part.batch, part.runs
        while True:
            hidden, marks = self._hidden_rows(batch)
            hidden |= faults.of_operations(batch, self._omitted)
            bad = [fault for fault in self._faults(batch) if fault.row not in hidden]
            if bad or hidden:
                gone = {fault.row for fault in bad} | (hidden - marks.keys())
                rows = (row for row in range(len(batch)) if row not in gone)
                kept = faults.marked(batch, rows, marks)
                written, unfit = self._written(Part.of(kept), batch) if len(kept) else ([], [])
            else:
                written, unfit = self._written(part, batch)
            if not (bad or hidden or unfit or any(self._session.streaks.values())):
                return written
            letters = self._letters(batch, sorted([*bad, *unfit]))
            verdict, streaks = self._first_suspension(batch, letters, hidden)
            if verdict is not None:
                self._store(letter for row, letter in letters if row <= verdict.row)
                self._suspend(batch, verdict)
                continue
            self._store(letter for _, letter in letters)
            self._session.streaks.update(streaks)
            if letters or hidden:
                self.passed[run.origin.partition] = run.last
            return written

    def _faults(self, batch: pa.RecordBatch) -> list[Fault]:
        """What is known to be bad without writing it."""
        if not batch.column("key").null_count:  # then it has neither
            return []
        found = [*faults.keyless(batch), *(Fault(row, "", "") for row in unreadable(batch))]
        if found and self._policy == "stop":
            row = min(found).row
            (values,) = batch.slice(row, 1).to_pylist()
            place = place_of(batch, row)
            what = min(found).error or error_letter(values, images_of(batch.schema)).error
            raise Rejected(
                f"the change at {place} of {values['partition']} cannot be published: {what}",
                "poison.poison",
                hint="on_error: dead-letter or suspend sets such a change aside",
            )
        return found

    def _written(self, part: Part, whole: pa.RecordBatch) -> tuple[Sequence[T], list[Fault]]:
        """What was made of all rows that the sink takes, and the others as rows of `whole`."""
        writer = self._session.writer
        if self._policy == "stop":
            return writer.write(part), []
        written, refused = sift(part, writer.write)
        ids = whole.column("event_id").to_pylist() if refused else []
        return written, [
            Fault(ids.index(row.batch["event_id"][0].as_py()), writer.reason(row), str(error))
            for row, error in refused
        ]

    def _letters(self, batch: pa.RecordBatch, found: Iterable[Fault]) -> list[tuple[int, Letter]]:
        letters, images = [], images_of(batch.schema)
        for row, reason, error in found:
            (values,) = batch.slice(row, 1).to_pylist()
            known = row_letter(values, images, reason, error) if reason else None
            letters.append((row, known or error_letter(values, images)))
        return letters

    def _store(self, letters: Iterable[Letter]) -> None:
        counts = Counter(letter.reason for letter in letters if self._session.letters.store(letter))
        if counts:
            self._notify({"dead_letters": dict(counts)})

    # Tables.

    def _first_suspension(
        self, batch: pa.RecordBatch, letters: list[tuple[int, Letter]], hidden: set[int]
    ) -> tuple[_Suspend | None, dict[Table, int]]:
        """The first table to be suspended, if any; how many of its changes in a row were too
        large, for each table that had one."""
        streaks: dict[Table, int] = {}
        known, limit = self._session.streaks, self._suspend_after
        by_row = dict(letters)
        if not by_row and not any(known.values()):
            return None, streaks
        names = batch.select(["backend", "namespace", "collection"]).to_pylist()
        concerned = {faults.table_of(names[row]) for row in by_row}
        concerned |= {table for table, count in known.items() if count}
        for row, values in enumerate(names):
            table = faults.table_of(values)
            if table not in concerned or row in hidden or not table.collection:
                continue
            letter = by_row.get(row)
            large = letter is not None and letter.reason == faults.TOO_LARGE
            streaks[table] = streaks.get(table, known.get(table, 0)) + 1 if large else 0
            if letter is not None and (
                self._policy == "suspend"
                or letter.reason in faults.IMMEDIATE
                or streaks[table] >= limit
            ):
                return _Suspend(row, table, letter), streaks
        return None, streaks

    def _suspend(self, batch: pa.RecordBatch, verdict: _Suspend) -> None:
        row, table, letter = verdict
        (values,) = batch.slice(row, 1).to_pylist()

        def step(record: Suspension) -> Suspension:
            if record.state is not SuspensionState.FOLLOWING:
                return record
            suspended = record.after(
                Event.POISONED,
                now(),
                relation_id=letter.relation_id,
                reason=letter.reason,
                error=letter.error,
                columns=faults.columns_of(values),
                limit=self._session.writer.limit,
            )
            return suspended.skip(letter.partition, [letter.place])

        self._session.streaks[table] = 0
        self._report_table(self._session.suspensions.change(table, step))

    def _hidden_rows(self, batch: pa.RecordBatch) -> tuple[set[int], dict[int, Suspension]]:
        """The rows that are not published because their table is suspended; those of them that a
        marker stands for. Counts them, and lets tables resume."""
        hidden: set[int] = set()
        marks: dict[int, Suspension] = {}
        suspensions = self._session.suspensions
        if not (known := suspensions.all()):
            return hidden, marks
        first = place_of(batch, 0)
        for table, record in known.items():
            if rows := faults.rows_of(batch, record) if _concerns(record, first) else []:
                fresh = suspensions.all(within=FRESH).get(table, Suspension.of(table))
                found = self._count_hidden(batch, rows, fresh)
                hidden |= found.keys()
                marks |= {row: mark for row, mark in found.items() if mark is not None}
        return hidden, marks

    def _count_hidden(
        self, batch: pa.RecordBatch, rows: list[int], record: Suspension
    ) -> dict[int, Suspension | None]:
        """What of these rows of a table is hidden, each with the record if it begins a hole."""
        partition = batch.column("partition")[0].as_py()
        places = {row: place_of(batch, row) for row in rows}
        fresh = [
            row
            for row, place in places.items()
            if record.hides(partition, place) and not record.skipped_before(partition, place)
        ]
        resumes = next((row for row in fresh if self._resumes(batch, row, record)), None)
        skipped = [places[row] for row in fresh if resumes is None or row < resumes]
        if fresh:

            def step(known: Suspension) -> Suspension:
                if known.state is SuspensionState.FOLLOWING:
                    return known
                counted = known.skip(partition, skipped)
                if resumes is None:
                    return counted
                asked = known.state is SuspensionState.RESUMING
                return counted.after(Event.CHANGE if asked else Event.MENDED, now())

            record = self._session.suspensions.change(record.table, step)
            self._report_table(record)
        return {
            row: record if record.begins(partition, place) else None
            for row, place in places.items()
            if record.hides(partition, place)
        }

    def _resumes(self, batch: pa.RecordBatch, row: int, record: Suspension) -> bool:
        """Whether a suspended table is followed again with this row."""
        if record.state is not SuspensionState.SUSPENDED:
            return record.state is SuspensionState.RESUMING
        (values,) = batch.slice(row, 1).to_pylist()
        return faults.is_mended(record, values, self._session.writer.limit)

    def _report_table(self, record: Suspension) -> None:
        self._notify({"tables": [summary(record)]})


def _concerns(record: Suspension, first: Place) -> bool:
    """Whether changes from `first` on may be hidden."""
    return record.state is not SuspensionState.FOLLOWING or any(
        Place.parse(hole.last) >= first for hole in record.holes
    )


def now() -> str:
    """This moment as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def summary(record: Suspension) -> dict[str, Any]:
    """A record as the status page shows it; plain JSON."""
    holes = record.holes
    return {
        "backend": record.backend,
        "table": str(record.table),
        "state": record.state.value,
        "reason": record.reason,
        "error": record.error,
        "since": record.since,
        "skipped": record.skipped,
        "first_skipped": holes[-1].first if holes else None,
        "last_skipped": holes[-1].last if holes else None,
    }
