"""Changes of a table -> its target, by one connection: what is refused is isolated."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from operator import attrgetter, itemgetter
from typing import Any, Literal

from penstock.model.change import OnError
from penstock.model.errors import PenstockError, Rejected, SettingsError
from penstock.model.position import Place
from penstock.sinks.tables.fitness import outgrown
from penstock.sinks.tables.set_aside import keep_letters
from penstock.sinks.tables.source_table import BeginAnew, Plan, SourceTable, Stretch
from penstock.sinks.tables.tied import Parts, may_take_along
from penstock.tables.database import HeldConnection, TableDatabase
from penstock.tables.fold import EMPTYING
from penstock.tables.ledger_rows import LedgerRow
from penstock.tables.lines import LineChange, SourceRelation
from penstock.tables.references import Dangling, References
from penstock.tables.sift import sift
from penstock.tables.sqlstates import Recurring
from penstock.tables.staged import StagedRows


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of changes: how many were applied, by operation, and set aside, by reason; the
    table waits, because of an error, with the `rest`. Without one the first of these depends on
    what may come."""

    applied: Counter[str] = field(default_factory=Counter)
    letters: Counter[str] = field(default_factory=Counter)
    rest: Sequence[LineChange] = ()
    error: PenstockError | None = None


# What is isolated besides changes that are refused in their statement: what would be at COMMIT; and
# what the server fails at again and again.
Isolates = Literal["", "deferred", "all"]

# Whether what a change depends on may be there later.
MayCome = Callable[[LineChange], bool]
Refused = Sequence[tuple[Sequence[LineChange], Rejected]]

_NONE: dict[tuple[SourceRelation, str], StagedRows] = {}


class Applier(HeldConnection):
    """Used in its transactions. `_staged`: temporary tables of its session: by table, those by
    relation and what the ledger has of its columns."""

    def __init__(self, database: TableDatabase, on_error: OnError) -> None:
        super().__init__(database)
        self._on_error = on_error
        self._staged: dict[int, dict[tuple[SourceRelation, str], StagedRows]] = {}
        self._made = 0  # of these, ever
        self._refused: dict[int, set[str]] = {}  # by table: its keys that have dead letters

    def close(self) -> None:
        super().close()
        self._staged, self._refused = {}, {}

    def apply_early(self, cursor: Any, parts: Parts, rows: Mapping[int, LedgerRow]) -> Parts:
        """Writes the first changes of several targets side by side, as far as that is not in the
        transaction (see `StagedRows.early`). Returns the parts with the plans that are written:
        `apply` of these stores their results. The transaction goes on meanwhile, and no thread
        outlives this call: so the transaction still keeps other writers away, and its savepoints
        have one thread. What is not stored, as the transaction fails, is as after a kill."""
        if self._database.side_by_side < 2 or len({table.target for table in parts}) < 2:
            return parts
        found, runs = {**parts}, dict[str, list[Callable[[], None]]]()
        for table, (first, *rest) in parts.items():
            row = rows[table.id]
            if not row.is_live or first.changes[0].cursor < row.last_point:
                continue
            try:
                with self._database.translated("writing"), cursor.connection.transaction():
                    staged = self._stage(cursor, table, row, first.relation)
                    if self._staged[table.id].get((first.relation, row.columns)) is not staged:
                        continue  # its columns have changed
                    plan = self._plan(cursor, table, row, first)
                    run = staged.early(cursor, plan.steps)
            except PenstockError:  # `apply` meets it again, and handles it
                self._staged.pop(table.id, None)
                continue
            found[table] = [replace(first, plan=plan), *rest]
            if run is not None:
                runs.setdefault(table.target, []).append(run)
        if len(runs) > 1:
            with ThreadPoolExecutor(self._database.side_by_side, "penstock-table") as pool:
                for some in runs.values():
                    pool.submit(_one_after_the_other, some)
        return found

    def apply(
        self, cursor: Any, table: SourceTable, row: LedgerRow, stretch: Stretch,
        may_come: MayCome, *, isolates: Isolates = "",
    ) -> Applied:  # fmt: skip
        """Applies what can be applied. A change that is refused alone is set aside, or the table
        waits; it waits as well where changes do not fit the target. Raises Unavailable,
        Rejected (to stop), BeginAnew."""
        refused: Refused = ()
        is_again = False
        while True:
            is_staged = table.id in self._staged
            try:
                with (
                    self._database.translated(f"writing to {table.target}"),
                    cursor.connection.transaction(),
                ):
                    plan = self._plan(cursor, table, row, stretch)
                    return self._sifted(
                        cursor, table, plan, stretch.relation, cache(may_come), known=refused,
                        is_between=plan.changes[0].cursor < row.last_point, isolates=isolates,
                        is_again=is_again,
                    )  # fmt: skip
            except _Altered:
                self._staged.pop(table.id, None)
                is_again = True
            except _Divided as error:
                self._staged.pop(table.id, None)
                refused = error.refused
            except (SettingsError, BeginAnew, Recurring) as error:
                # Its temporary tables may be gone with the savepoint.
                self._staged.pop(table.id, None)
                if isinstance(error, BeginAnew) or (
                    isinstance(error, Recurring) and isolates != "all"
                ):
                    raise
                # Else the target may have been altered meanwhile.
                if not is_staged and not table.amends(cursor, self._database, error):
                    return Applied(rest=stretch.changes, error=error)

    def apply_together(
        self, cursor: Any, parts: Parts, rows: Mapping[SourceTable, LedgerRow],
        references: References, *, isolates: Isolates = "",
    ) -> bool:  # fmt: skip
        """Applies changes of tables that are tied, all of them; or none, where that is refused, or
        does not fit the targets."""
        if may_take_along(parts, references) or any(
            len(some) > 1 or some[0].changes[0].cursor < rows[table].last_point
            for table, some in parts.items()
        ):
            return False
        try:
            with self._database.translated("writing"), cursor.connection.transaction():
                plans = {
                    table: self._plan(cursor, table, rows[table], stretch)
                    for table, (stretch,) in parts.items()
                }
                with suppress(Rejected, BeginAnew):
                    self._write(cursor, plans, references, isolates=isolates)
                    for table, (stretch,) in parts.items():
                        self._note_keys(cursor, table, stretch.relation, stretch.changes)
                    return True
        except SettingsError:
            for table in parts:
                self._staged.pop(table.id, None)
        return False

    def _write(
        self, cursor: Any, plans: Mapping[SourceTable, Plan], references: References, *,
        is_between: bool = False, isolates: Isolates,
    ) -> None:  # fmt: skip
        """Applies all of these changes, or none: rows after those that they refer to, and away
        before these. Raises Rejected, SettingsError, Unavailable, BeginAnew."""
        tables, rest = sorted(plans, key=lambda table: references.rank(table.target)), {**plans}
        try:
            with cursor.connection.transaction():
                for table in reversed(tables) if len(tables) > 1 else ():
                    removing, rest[table] = plans[table].divided()
                    plans[table].staged.apply(cursor, removing)
                for table in tables:
                    table.apply(cursor, self._database, rest[table], is_between=is_between)
                if isolates:
                    self._database.check_deferred(cursor)
        except self._database.error as error:
            found = self._database.translation(
                error, "writing to " + ", ".join(dict.fromkeys(each.target for each in tables))
            )
            if isolates == "all" and isinstance(found, Recurring):
                found = found.of_changes
            is_alone = not self._database.is_ambiguous(error)
            is_of_row = isinstance(found, Rejected) and not isinstance(found, Dangling)
            if is_between and is_alone and is_of_row:
                raise BeginAnew from error  # a newer row may be in the way
            raise found from error

    def known(self, table: SourceTable, relation: SourceRelation) -> StagedRows | None:
        """The temporary tables that there are for a relation; for any thread."""
        latest = reversed(self._staged.get(table.id, _NONE).items())
        return next((one for (of, _), one in latest if of == relation), None)

    def _plan(self, cursor: Any, table: SourceTable, row: LedgerRow, stretch: Stretch) -> Plan:
        """What changes come to: as it is prepared, unless for other temporary tables."""
        staged, plan = self._stage(cursor, table, row, stretch.relation), stretch.plan
        if plan is None or plan.staged is not staged:
            plan = table.plan(staged, stretch.changes)
        return plan

    def _stage(
        self, cursor: Any, table: SourceTable, row: LedgerRow, relation: SourceRelation
    ) -> StagedRows:
        found = self._staged.get(table.id, _NONE).get((relation, row.columns))
        if found is None:
            self._made += 1
            found = table.staged(cursor, self._database, relation, self._made)
            now = self._database.ledger(cursor).lock([table.id])[table.id].columns
            if now != row.columns:  # the target may have been altered, for other tables as well
                self._staged.clear()
            found.make(cursor)  # outside of the savepoints
            # A new map: another thread may look through the one that is there.
            self._staged[table.id] = {**self._staged.get(table.id, _NONE), (relation, now): found}
        return found

    def _sifted(
        self,
        cursor: Any,
        table: SourceTable,
        plan: Plan,
        relation: SourceRelation,
        may_come: MayCome,
        *,
        is_between: bool,
        isolates: Isolates,
        known: Refused,
        is_again: bool,
    ) -> Applied:
        policy, changes = self._on_error, plan.changes

        def write(some: Sequence[LineChange]) -> tuple[()]:
            own = plan if some is changes else table.plan(plan.staged, some)
            self._write(
                cursor, {table: own}, References(), is_between=is_between, isolates=isolates
            )
            return ()

        def waits(some: Sequence[LineChange], error: Rejected) -> bool:
            return isinstance(error, Dangling) and may_come(some[0])

        def stops(some: Sequence[LineChange], error: Rejected) -> bool:
            return policy != "dead-letter" or waits(some, error)

        apart = {_place(one) for (one,), _ in known}
        rest = [one for one in changes if _place(one) not in apart] if known else changes
        _, found = sift(rest, write, _middle, stops=stops)
        self._refuse_outgrown(cursor, table, plan, found)
        of_types = (some for some, error in found if self._database.is_of_type(error.__cause__))
        if not is_again and (some := next(of_types, None)):
            with suppress(Rejected):
                write(some)
                raise _Altered
        refused = sorted([*known, *found], key=lambda one: _place(one[0][0]))
        if len(refused) == len(changes) and (error := refused[0][1]).code == "tables.recurring":
            return Applied(rest=changes, error=error)  # no change came through: it is of none
        own = [one for one in found if not self._is_of_others(one[1])]
        if not known and policy == "dead-letter" and 0 < len(own) < len(found):
            raise _Divided(own)
        letters: Counter[str] = Counter()
        skipped, lettered = Counter[str](), list[LineChange]()
        for (change,), error in refused:
            is_early = waits([change], error)
            if is_early or policy == "suspend":
                at = changes.index(change)
                done = operations(changes[:at]) - skipped
                self._note_keys(cursor, table, relation, changes[:at], lettered)
                return Applied(done, letters, changes[at:], None if is_early else error)
            if is_between and isinstance(error, Dangling):
                raise BeginAnew from error
            if policy == "stop":
                raise error
            letter = table.letter(relation, change, error)
            keep_letters(self._database.ledger(cursor), [letter])
            letters[letter.reason] += 1
            lettered.append(change)
            skipped[change.operation] += 1
        self._note_keys(cursor, table, relation, changes, lettered)
        return Applied(operations(changes) - skipped, letters)

    def _refuse_outgrown(
        self, cursor: Any, table: SourceTable, plan: Plan, refused: Refused
    ) -> None:
        """Raises SettingsError where the target is what has to change."""
        if refused:
            narrow = self._database.ledger(cursor).columns(table.id).narrow
            for problem in outgrown(
                cursor, self._database, plan.staged, plan.changes, narrow=narrow,
                causes=[error.__cause__ for _, error in refused],
            ):  # fmt: skip
                raise problem

    def forget_keys(self, table: SourceTable) -> None:
        """Others may set changes of a table aside."""
        self._refused.pop(table.id, None)

    def _note_keys(
        self, cursor: Any, table: SourceTable, relation: SourceRelation,
        changes: Sequence[LineChange], refused: Sequence[LineChange] = (),
    ) -> None:  # fmt: skip
        """Keeps, of keys that have dead letters, how far they are: a letter that is replayed must
        not undo what came after it."""
        letters = self._database.ledger(cursor).letters
        if (keys := self._refused.get(table.id)) is None:
            keys = self._refused[table.id] = letters.keys(table.id)
        new = {key for one in refused for key in one.keys(relation.key)}
        places = set(map(_place, refused))
        letters.refuse(table.id, new)
        keys |= new
        last: dict[str, Place] = {}
        for one in changes if keys else ():
            if _place(one) not in places:
                passed = keys if one.operation in EMPTYING else keys & one.keys(relation.key)
                last |= dict.fromkeys(passed, Place(one.cursor, one.ordinal))
        letters.advance(table.id, last)

    def _is_of_others(self, error: Rejected) -> bool:
        """Whether other rows are in the way of a change, or it lacks one."""
        cause = error.__cause__
        is_theirs = isinstance(cause, Exception) and self._database.is_conflict(cause)
        return is_theirs or isinstance(error, Dangling)


class _Altered(Exception):
    """The target holds a value that it had refused a moment before."""


class _Divided(Exception):
    """Some changes are `refused` for themselves, and others because they were divided, as values
    that go from row to row: together, without the former, these may come out."""

    def __init__(self, refused: Refused) -> None:
        super().__init__()
        self.refused = refused


_place = attrgetter("cursor", "ordinal")


def _one_after_the_other(runs: Iterable[Callable[[], None]]) -> None:
    for run in runs:
        run()


def operations(changes: Sequence[LineChange]) -> Counter[str]:
    """How many there are of each operation; 30 ns a change."""
    return Counter(map(itemgetter(0), changes))


def _middle(changes: Sequence[LineChange]) -> int:
    """Where to halve them: between two transactions, if there are several."""
    edges = [
        number for number in range(1, len(changes))
        if changes[number].cursor != changes[number - 1].cursor
    ]  # fmt: skip
    middle = len(changes) // 2
    return min(edges, key=lambda edge: abs(edge - middle), default=middle)
