"""A worker: two threads and a connection that apply the changes of some tables, a commit at a time.

A commit takes whole transactions of the sources. It locks the ledger rows of its tables, leaves out
what is stored already, and writes rows and ledger together. So a commit whose answer was lost, or
an instance that was thought dead, repeats nothing. What needs no connection is done before, while
the commit before is written.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from penstock.model.errors import PenstockError, Unavailable
from penstock.process.backoff import delays
from penstock.sinks import went_back
from penstock.sinks.tables.apply import Applier, Isolates
from penstock.sinks.tables.commits import Chunk, Commits, PreparedCommit
from penstock.sinks.tables.settings import TableSinkSettings
from penstock.sinks.tables.source_table import SourceTable, Stretch
from penstock.sinks.tables.writing import TableWork, Writing
from penstock.tables.lines import LineChange, SourceRelation, changes_of
from penstock.tables.references import References, TiesChanged
from penstock.tables.sqlstates import TRIES, Recurring


class _RefusedWhole(Exception):
    """A transaction is refused at its COMMIT."""

    def __init__(self, error: PenstockError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(slots=True)
class WorkerReport:
    """What a worker did since it was asked last."""

    stored: int = 0  # changes that were applied, or are held in the ledger
    known: int = 0  # those that were stored already
    commits: int = 0
    seconds: float = 0.0  # that commits took
    error: str = ""  # why it cannot commit now
    tables: dict[SourceTable, TableWork] = field(default_factory=dict)

    def add(self, later: "WorkerReport") -> None:
        self.stored += later.stored
        self.known += later.known
        self.commits += later.commits
        self.seconds += later.seconds
        for table, report in later.tables.items():
            if (known := self.tables.setdefault(table, report)) is not report:
                known.add(report)


class Worker:
    """Prepares and writes the work that is added to its `commits`, in two threads, which end with
    these; `take_report` says what was done."""

    def __init__(self, settings: TableSinkSettings, number: int) -> None:
        self.commits = Commits(settings.commit, number)
        self._database, self._settings = settings.database(), settings
        self._report, self._reporting = WorkerReport(), threading.Lock()
        self._applier = Applier(self._database, settings.on_error)
        self.references = References()  # of the targets; another while nothing is pending
        self._commits: dict[int, int] = {}  # how many each table had, after the last one here
        self._counted: dict[int, int] = {}  # of these, what nobody has taken
        for name, run in (("prepare", self._prepare), ("apply", self._apply_all)):
            threading.Thread(
                target=self._guarded, args=[run], name=f"penstock-{name}-{number}", daemon=True
            ).start()

    @property
    def has_report(self) -> bool:
        """Whether something was committed since the last report."""
        return bool(self._report.commits)

    def take_report(self) -> WorkerReport:
        """What was done since the last call."""
        with self._reporting:
            found, self._report = self._report, WorkerReport(error=self._report.error)
            return found

    def take_commits(self) -> Mapping[int, int]:
        """How many commits the ledger has of each table, as far as that is new."""
        with self._reporting:
            found, self._counted = self._counted, {}
            return found

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:
            self.commits.fail(error)

    def _prepare(self) -> None:
        while (works := self.commits.due()) is not None:
            chunks: dict[SourceTable, list[Chunk]] = {}
            for chunk in (chunk for work in works for chunk in work.chunks):
                chunks.setdefault(chunk.table, []).append(chunk)
            tables = {
                table: [self._stretch(table, *each) for each in _joined(same)]
                for table, same in chunks.items()
            }
            self.commits.put(PreparedCommit(works, tables, {w.partition: w.goes_on for w in works}))

    def _stretch(
        self, table: SourceTable, relation: SourceRelation, changes: Sequence[LineChange]
    ) -> Stretch:
        staged = self._applier.known(table, relation)
        return Stretch(relation, changes, None if staged is None else table.plan(staged, changes))

    def _apply_all(self) -> None:
        try:
            while (commit := self.commits.take()) is not None:
                waits, recurred = delays(first=0.2), 0
                while True:
                    try:
                        self._write_whole(commit, divides=recurred >= TRIES)
                    except TiesChanged:
                        raise
                    except Unavailable as error:
                        recurred += isinstance(error, Recurring)
                        self._note(error.message)
                        if not self.commits.pause(next(waits)):
                            return
                    else:
                        break
                self._note("")
                self.commits.done(commit)
        finally:
            self._applier.close()

    def _note(self, error: str) -> None:
        with self._reporting:
            self._report.error = error

    def _write_whole(self, commit: PreparedCommit, *, divides: bool) -> None:
        """Writes it in one transaction; what the destination refuses as a whole (and if it
        `divides`, what it fails at again and again) in smaller ones. In the smallest, of one
        transaction of a source, changes are isolated; or all of its tables wait."""
        try:
            self._write(commit)
        except (_RefusedWhole, Recurring) as error:
            if isinstance(error, Recurring) and not divides:
                raise
            if len(halves := commit.halves()) > 1:
                for half in halves:
                    self._write_whole(half, divides=divides)
                return
            try:
                self._write(commit, isolates="all")
            except _RefusedWhole as refused:
                self._write(commit, refused=refused.error)

    @contextmanager
    def _committing(self) -> Iterator[Any]:
        """The cursor of a transaction. Raises _RefusedWhole for what is refused at its end."""
        is_done = False
        try:
            with self._applier.transaction("writing") as cursor:
                yield cursor
                is_done = True
        except PenstockError as error:
            if is_done and not isinstance(error, Unavailable):
                raise _RefusedWhole(error) from error
            raise

    def _write(
        self, commit: PreparedCommit, *, isolates: Isolates = "",
        refused: PenstockError | None = None,
    ) -> None:  # fmt: skip
        begun, counted = time.monotonic(), WorkerReport(commits=1)
        with self._committing() as cursor:
            ledger = self._database.ledger(cursor)
            rows = ledger.lock({table.id for table in commit.tables})
            writing = Writing(
                applier=self._applier, database=self._database, cursor=cursor, ledger=ledger,
                references=self.references, isolates=isolates, refused=refused,
                open=commit.open, works={},
            )  # fmt: skip
            new: dict[SourceTable, Sequence[Stretch]] = {}
            tied: dict[object, dict[SourceTable, Sequence[Stretch]]] = {}
            for table, stretches in commit.tables.items():
                row = rows.get(table.id)
                if row is None or row.commits < self._commits.get(table.id, 0):
                    raise went_back(f"the ledger had commits of {table.name} that it lacks")
                writing.works[table] = TableWork(row, stretches[-1].last, row.is_live)
                some = [each for whole in stretches if (each := whole.after(row)).changes]
                fresh = sum(len(each.changes) for each in some)
                counted.known += sum(len(each.changes) for each in stretches) - fresh
                counted.stored += fresh
                if some:
                    new[table] = some
            if not isolates and refused is None:
                new = {**self._applier.apply_early(cursor, new, rows)}
            for table, unstored in new.items():
                group = self.references.tied(table.target)
                tied.setdefault(group if len(group) > 1 else table, {})[table] = unstored
            for parts in tied.values():
                writing.apply(parts)
            counted.tables = {
                table: work for table, work in writing.works.items()
                if work.row.is_new(work.place)
            }  # fmt: skip
            if counted.tables:
                ledger.advance({table.id: one.place for table, one in counted.tables.items()})
            sizes = ledger.sizes(*{table.target for table in commit.tables})
            for table, one in counted.tables.items():
                one.size = sizes.get(table.target, {})
                counted.stored -= one.letters.total()
        commits = {table.id: rows[table.id].commits + 1 for table in counted.tables}
        self._commits |= commits
        counted.seconds = time.monotonic() - begun
        with self._reporting:
            self._counted |= commits
            self._report.add(counted)


def _joined(chunks: Sequence[Chunk]) -> Iterator[tuple[SourceRelation, Sequence[LineChange]]]:
    """A table's changes, together for each relation in their order."""
    for relation, same in groupby(chunks, key=lambda chunk: chunk.relation):
        yield relation, [change for chunk in same for change in changes_of(chunk.batch)]
