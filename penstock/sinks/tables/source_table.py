"""A table of one source, and how its changes become rows of its target."""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Literal, NamedTuple
from zlib import crc32

from penstock.model.errors import PenstockError, Rejected, SettingsError
from penstock.model.position import Place
from penstock.model.table_schema import TableSchema
from penstock.sinks.poison.dead_letter import Letter, row_letter
from penstock.sinks.tables.fitness import (
    made_relation,
    taken,
    unfit,
    unset,
    wrong_expressions,
)
from penstock.sinks.tables.settings import MappedTable
from penstock.tables.database import TableDatabase
from penstock.tables.drift import ColumnChanges, KnownColumns
from penstock.tables.fold import EMPTYING, Clear, Merge, Move
from penstock.tables.history import LAST
from penstock.tables.ledger_rows import LedgerRow
from penstock.tables.lines import (
    NULL,
    UNSENT,
    CatalogColumn,
    LineChange,
    RelationColumn,
    SourceCatalog,
    SourceRelation,
    own_type,
)
from penstock.tables.references import References
from penstock.tables.staged import META, Destination, StagedRows, prefix
from penstock.tables.states import cause_of
from penstock.wire.document_lines import DOCUMENT, OF_DOCUMENTS

# Of tables of which only an operator can say that their target is right.
BY_HAND = "right by hand, then `penstock tables resume FILE"


class Plan(NamedTuple):
    """What changes come to: steps of `staged`, or (`is_lines`) lines that are the target's rows."""

    changes: Sequence[LineChange]
    staged: StagedRows
    steps: Sequence[Any]
    is_lines: bool

    def divided(self) -> tuple[Sequence[Any], "Plan"]:
        """The steps that remove rows, as far as they come first, and the others."""
        removing, rest = [], list(self.steps)
        if rest and isinstance(rest[0], Clear):
            removing.append(rest.pop(0))
        if rest and isinstance(rest[0], Merge):
            removing.append(Merge(gone=rest[0].gone))
            rest[0] = replace(rest[0], gone=())
        return removing, self._replace(steps=rest)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Neighbouring changes of a table, of one relation; `plan`: their steps, if prepared."""

    relation: SourceRelation
    changes: Sequence[LineChange]
    plan: Plan | None = None

    def after(self, row: LedgerRow) -> "Stretch":
        """The changes that are not stored yet."""
        first = bisect_left(
            self.changes, True, key=lambda one: row.is_new(Place(one.cursor, one.ordinal))
        )
        return replace(self, changes=self.changes[first:], plan=None) if first else self

    def parted(self, cursor: str) -> tuple["Stretch", "Stretch"]:
        """The changes before a transaction, and the others."""
        at, changes = bisect_left(self.changes, cursor, key=lambda one: one.cursor), self.changes
        return Stretch(self.relation, changes[:at]), Stretch(self.relation, changes[at:])

    @property
    def last(self) -> Place:
        return Place(self.changes[-1].cursor, self.changes[-1].ordinal)


class BeginAnew(Exception):
    """The rows of a table are of several points, and changes between these cannot be applied."""


@dataclass(frozen=True, slots=True, eq=False)
class SourceTable:
    """A table of the map, of the source `sid`; `id` is its row of the ledger."""

    mapped: MappedTable
    sid: str
    id: int

    @property
    def name(self) -> str:
        """What logs and errors call it."""
        return f"{self.mapped.source} of {self.mapped.backend}/{self.sid}"

    @property
    def target(self) -> str:
        """`schema.table` at the destination."""
        return self.mapped.full_target

    @property
    def occupied(self) -> SettingsError:
        """What is wrong where its target has rows before its first load."""
        return SettingsError(
            f"{self.name}: {self.target} has rows already",
            "tables.target-not-empty",
            hint="set `existing: replace` or `keep` for it in the map, or delete them",
        )

    @property
    def loads(self) -> str:
        """What event ids begin with of rows that a load has set aside."""
        return f"{self.mapped.backend}:{self.sid}/{self.mapped.source}/load:"

    def worker(self, workers: int, references: References) -> int:
        """Which worker has it: all sources of a target have one, so that none waits for another,
        and so have all targets that are tied."""
        return crc32(min(references.tied(self.target)).encode()) % workers

    def staged(
        self, cursor: Any, database: TableDatabase, relation: SourceRelation, number: int, *,
        lines_are: Literal["changes", "rows", "letters"] = "changes",
    ) -> StagedRows:  # fmt: skip
        """How lines of the relation are written. The target follows the source's columns before:
        changes come after those with the columns that the ledger has; all rows of the source come
        as they are now; letters may be of any time. Raises SettingsError, and the driver's
        errors."""
        mapped, ledger = self.mapped, database.ledger(cursor)
        known, name = ledger.columns(self.id), (mapped.target_schema, mapped.target)
        found = database.find(cursor, *name)
        is_made = known.is_made or ledger.is_made(self.target) or bool(found and found.is_made)
        adds = mapped.options.create if found is None else mapped.follows_columns(is_made=is_made)
        there = [*found.columns] if found is not None else [mapped.made_sid]
        for problem in taken(mapped, relation, [*there, *(relation.names if adds else ())]):
            raise SettingsError(f"{self.name}: {problem.message}", problem.code, hint=problem.hint)
        if found is None and mapped.options.create and (lines_are == "rows" or not known.columns):
            try:
                made = made_relation(cursor, database, relation, mapped.options.set)
            except SettingsError as error:
                text = f"{self.name}: {error.message}"
                raise SettingsError(text, error.code, hint=error.hint) from None
            database.create(cursor, made, name, periods=mapped.periods, sid_column=mapped.made_sid)
            known = KnownColumns(is_made=True)
            found = database.find(cursor, *name)
        if found is None:
            anew = f"create it, then `penstock reload FILE {mapped.source}`"
            raise SettingsError(
                f"{self.name}: there is no table {self.target} at the destination",
                "tables.target-missing",
                hint=anew if known.columns else "create it, or set `create: true` in the map",
            )
        if not mapped.options.set:
            if lines_are != "letters":
                now = self._follow(
                    cursor, database, relation, found, known, is_all=lines_are == "rows"
                )
                if now != known:
                    ledger.keep_columns(self.id, now)
                    found = database.find(cursor, *name) or found
                known = now
            relation = known.labelled(relation)
        columns = [each.target for each in known.columns if each.target is not None]
        mapping = mapped.mapping(self.sid, found, columns or None)
        staged = database.staged(relation, found, mapping, number, mapped.periods)
        wrong = wrong_expressions(cursor, database, staged)
        for problem in chain(unset(mapped, found), unfit(staged), wrong):
            raise SettingsError(f"{self.name}: {problem.message}", problem.code, hint=problem.hint)
        return staged

    def _follow(
        self, cursor: Any, database: TableDatabase, relation: SourceRelation, found: Destination,
        known: KnownColumns, *, is_all: bool,
    ) -> KnownColumns:  # fmt: skip
        """Alters the target as the source was, where it may; returns what is known then."""
        mapped, periods, ledger = self.mapped, self.mapped.periods, database.ledger(cursor)
        is_made = known.is_made or found.is_made or ledger.is_made(self.target)
        policy = mapped.options.schema_changes or ("add" if is_made else "ignore")
        known = replace(known, is_made=is_made)
        own = mapped.mapping(self.sid, found).own
        is_shared = bool(own) or periods is not None
        reserved = {*found.generated, *own, *(periods.kinds if periods else ())}
        changes = ColumnChanges(
            relation=relation, known=known, destination=found, policy=policy,
            types={column.name: database.type_at(cursor, column) for column in relation.columns},
            wanted=mapped.options.columns, reserved=reserved,
            is_shared=is_shared or not database.alters_columns,
            is_trusted=is_all or known.is_resumed,
            is_emptied=is_all and not is_shared and mapped.options.type == "clone",
        )  # fmt: skip
        try:
            now = changes.compare()
        except SettingsError as error:
            anew = f"`penstock reload FILE {mapped.source}` loads it anew; or make {self.target}"
            raise SettingsError(
                f"{self.name}: {error.message}",
                error.code,
                hint=f"{anew} {BY_HAND} {mapped.source}`",
            ) from None
        if changes.statements and policy != "add":
            raise SettingsError(
                f"{self.name}: {', '.join(changes.reasons)}",
                "tables",
                hint=" ".join(f"{each.as_string(None)};" for each in changes.statements),
            )
        if changes.statements:
            try:
                database.alter(cursor, self.target, *changes.statements)
            except SettingsError as error:
                raise SettingsError(
                    f"{self.name}: {error.message}", error.code, hint=error.hint
                ) from None
        for names in changes.renames:
            ledger.rename_column(self.target, names)
        only = {**own}
        only |= {periods.end: LAST} if periods is not None else {}
        for name, value in () if is_all else changes.fills.items():
            database.fill(cursor, found, name, value, only)
        return now

    def amends(self, cursor: Any, database: TableDatabase, problem: PenstockError) -> bool:
        """Gives an enum of the target the labels that it lacks, where the target follows the
        source; whether it did."""
        found = database.find(cursor, self.mapped.target_schema, self.mapped.target)
        is_made = database.ledger(cursor).is_made(self.target) or bool(found and found.is_made)
        if problem.code == "tables.label-missing" and self.mapped.follows_columns(is_made=is_made):
            # New labels can be used once they are committed.
            with suppress(database.error), closing(database.connect()) as connection:
                connection.execute(problem.hint)
                return True
        return False

    def plan(self, staged: StagedRows, changes: Sequence[LineChange]) -> "Plan":
        """What changes come to. Pure."""
        keeps, own = self.mapped.options.type == "append", staged.relation.columns[len(META) :]
        full = changes
        if staged.mapping.has_expressions:
            full = [_with_meta(one, own) for one in changes]
        lines = None
        if staged.takes_lines and all(one.operation in ("INSERT", "READ") for one in full):
            lines = [one.after or "" for one in full]
        return Plan(changes, staged, lines or staged.plan(full, keeps=keeps), lines is not None)

    def apply(
        self, cursor: Any, database: TableDatabase, plan: "Plan", *, is_between: bool = False
    ) -> None:
        """Applies changes in the transaction of the cursor; `is_between` the points of its rows,
        some of which may be newer. Raises the driver's errors,
        Rejected, BeginAnew."""
        staged, steps = plan.staged, plan.steps
        if self.mapped.options.partitions and any(
            one.operation in EMPTYING for one in plan.changes
        ):
            self._refuse_emptied()
        if plan.is_lines:
            if database.copies(cursor, staged, steps):
                return
            # Some are there: now they replace the rows with their keys.
            steps = staged.plan(plan.changes)
        if is_between and any(isinstance(step, Move) for step in steps):
            # The row with the old key may be gone, with the values that the change lacks.
            raise BeginAnew
        staged.apply(cursor, steps)

    def _refuse_emptied(self) -> None:
        """One partition was truncated, and the target does not know which rows are of it: they are
        loaded anew. Raises BeginAnew, or Rejected where rows are never deleted."""
        if self.mapped.options.type == "clone":
            raise BeginAnew
        if self.mapped.options.type == "history":
            raise Rejected(
                "a partition was truncated, and versions do not say of which partition they are",
                "tables",
                hint="end its versions by hand, or `penstock reload` the table",
            )

    @property
    def named(self) -> dict[str, str]:
        """What the status page knows it by."""
        return {"backend": self.mapped.backend, "sid": self.sid, "table": self.mapped.source}

    def letter(self, relation: SourceRelation, change: LineChange, error: Rejected) -> Letter:
        """A dead letter of a change that the destination refuses."""
        at = change.committed_at
        cells = change.after.split("\t") if change.has_unsent and change.after else ()
        values = {
            "event_id": change.event_id, "backend": self.mapped.backend, "partition": self.sid,
            "cursor": change.cursor, "ordinal": change.ordinal, "database": None,
            "namespace": self.mapped.schema_name, "collection": self.mapped.table,
            "relation_id": None, "transaction": None, "captured_at": None,
            "committed_at": None if at is None else datetime.fromtimestamp(at / 1e6, UTC),
            "operation": change.operation, "key": change.key, "before": change.before,
            "after": change.after, "delta": relation.to_json(),
            "unchanged": [
                name for name, cell in zip(relation.names, cells, strict=False) if cell == UNSENT
            ],
        }  # fmt: skip
        return row_letter(values, "text", cause_of(error).reason, error.message)


def relation_of(schema: TableSchema) -> SourceRelation:
    """What rows of a table are of, as its source has it now."""
    if schema.is_of_documents:
        key = (RelationColumn(each["name"], "text", True) for each in schema.columns)
        return SourceRelation(
            schema=schema.schema, table=schema.table, version=OF_DOCUMENTS,
            columns=(*key, RelationColumn(DOCUMENT, "text")),
        )  # fmt: skip
    numbers = [CatalogColumn(each.get("number", 0), each["name"]) for each in schema.columns]
    state = schema.state
    return SourceRelation(
        schema=schema.schema, table=schema.table, version=schema.version,
        columns=tuple(
            RelationColumn(
                each["name"], each["data_type"], bool(each["key"]), own_type(each.get("type", 0))
            )
            for each in schema.columns
        ),
        catalog=SourceCatalog(state["last_number"], str(state["file"] or ""), tuple(numbers))
        if state else None,
    )  # fmt: skip


def _with_meta(change: LineChange, own: Collection[object]) -> LineChange:
    """The change with the columns `META` in its lines, before its own."""
    at = change.committed_at
    time = NULL if at is None else datetime.fromtimestamp(at / 1e6, UTC).isoformat()
    nothing, meta = prefix([NULL, NULL], own), prefix([change.operation, time], own)
    return change._replace(
        before=None if change.before is None else nothing + change.before,
        after=None if change.after is None else meta + change.after,
    )
