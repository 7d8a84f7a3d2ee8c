"""Changes of a source's table -> rows of its Delta table; nothing is staged anywhere."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from penstock.model.errors import Rejected, SettingsError
from penstock.model.position import ROWS, Place
from penstock.sinks.delta import expressions, lake
from penstock.sinks.delta.commits import KnownCommit, LedgerTable, TableCommits, app_of
from penstock.sinks.delta.kinds import OnMisfit, is_box_array, kind_of
from penstock.sinks.delta.lake import DeltaCommit, DeltaLayout
from penstock.sinks.delta.rows import (
    GONE,
    FoldedRows,
    ReadRows,
    SpooledRows,
    log_rows,
    read_rows,
    tuples,
)
from penstock.tables.fold import LINES, Move
from penstock.tables.lines import LineChange, RelationColumn, SourceRelation
from penstock.tables.staged import (
    META,
    OWN_SID,
    SENDS_ALL,
    Destination,
    RowMapping,
    StagedRows,
    UnsentValue,
    mentions,
)
from penstock.typed.columns import COLUMNS
from penstock.typed.lines import arrow_type, read_lines

compute: Any = pc
BUCKET, DAY = "_bucket", "_day"
# Columns of a log besides the source's.
OF_LOG = ("_operation", "_sequence", "_committed_at", "_unsent", "_key_before")


class FoldedChanges(NamedTuple):
    """Changes, and the rows that they come to; or the error that a value of them is refused by."""

    changes: Sequence[LineChange]
    keeps: bool
    folded: Any
    rows: pa.Table | None
    error: Rejected | None = None


class DeltaStagedRows(StagedRows):
    """See `StagedRows`: what needs no table is done in `plan`."""

    _place = _temporary = _made = _point = ""

    def __init__(
        self, relation: SourceRelation, destination: Destination, mapping: RowMapping, number: int,
        *, layout: DeltaLayout, ledger: Any, spool: Path, on_misfit: OnMisfit = "refuse",
    ) -> None:  # fmt: skip
        super().__init__(relation, destination, mapping, number)
        self.layout, self._ledger, self._on_misfit = layout, ledger, on_misfit
        self._spool = spool
        self._source, self._source_key = relation, [relation.names[each] for each in relation.key]
        # A table has no key of its own: `set` has the source's.
        self.key = tuple(self.kept.get(name, name) for name in self._source_key)
        self._nulled: frozenset[str] = frozenset()  # columns that are, for values that do not fit
        # A table has no unique index: rows are found by any key.
        self.destination = replace(destination, keys=frozenset([frozenset(self.unique)]))
        self._loaded: SpooledRows  # within `loading`
        self._early: tuple[FoldedChanges, Future[LedgerTable]] | None = None

    @cached_property
    def _commits(self) -> TableCommits:
        app = app_of(self.mapping.backend, self.mapping.source, self._name)
        target = f"{self.destination.schema}.{self.destination.table}"
        return TableCommits(app, target, self.layout, self._ledger)

    @property
    def takes_lines(self) -> bool:
        return False

    @property
    def finds_rows(self) -> bool:
        return not self._is_log

    @property
    def _is_log(self) -> bool:
        return self.layout.kind == "log"

    def problems(self) -> Iterator[SettingsError]:
        name = f"{self.destination.schema}.{self.destination.table}"
        if self.relation.columns and not (self.relation.key or self._is_log):
            yield SettingsError(
                f"{name}: its source has no key, by which rows are found", "delta.key-missing",
                hint="give the source's table a primary key; or `type: log` for it in the map",
            )  # fmt: skip
        lacking = [
            each for each in self._source_key
            if self.kept.get(each) not in ([each] if self._is_log else self.key)
        ]  # fmt: skip
        if self.mapping.computed and lacking:
            yield SettingsError(
                f"{name}: `set` must have the key as it is at the source: {', '.join(lacking)}",
                "delta.key-computed",
                hint="write `COLUMN: COLUMN` in `set`; `OTHER: COLUMN` is for other types than log",
            )  # fmt: skip
        for names in (self._source.names, [*self.mapping.computed]):
            more = (GONE,) if self.mapping.has_expressions else ()
            yield from wrong_names(self._source.table, names, self.layout, more)

    def make(self, cursor: Any) -> None:
        pass

    def plan(self, changes: Iterable[LineChange], *, keeps: bool = False) -> Sequence[Any]:
        """See `StagedRows`. A `Move` after the rows says that some may need what is there."""
        some = list(changes)
        folded = self._folded(some, keeps=keeps)
        try:
            rows, error = self._made_rows(some, folded), None
        except Rejected as refused:
            rows, error = None, refused
        moves = [Move(one.old, one.after) for one in folded.moved]
        return [FoldedChanges(some, keeps, folded, rows, error), *moves]

    def _folded(self, changes: Sequence[LineChange], *, keeps: bool) -> Any:
        if self._is_log:
            return FoldedRows()
        return FoldedRows.of(changes, self.relation.key, keeps=keeps)

    def early(self, cursor: Any, steps: Sequence[Any]) -> Callable[[], None] | None:
        """See `StagedRows`. The ledger is read before, and written by `apply`; a commit that it
        does not learn of is found by its counter, as after a kill."""
        step: FoldedChanges = steps[0]
        if step.error is not None:
            return None
        before = self._commits.before(cursor)

        def run() -> None:
            found: Future[LedgerTable] = Future()
            try:
                found.set_result(self._committed(step, before))
            except BaseException as error:
                found.set_exception(error)
            self._early = step, found

        return run

    def apply(self, cursor: Any, steps: Sequence[Any]) -> None:
        step: FoldedChanges = steps[0]
        if step.error is not None:
            raise step.error
        early, self._early = self._early, None
        if early is not None and early[0] is step:
            found = early[1].result()
        else:
            found = self._committed(step, self._commits.before(cursor))
        self._commits.keep(cursor, found, self._nulled)

    def _committed(self, step: FoldedChanges, before: LedgerTable) -> LedgerTable:
        """Commits changes to the table. Uses no ledger."""
        table, known = self._commits.opened(before)
        last = step.changes[-1]
        with lake.translated("writing to", self.layout.uri):
            if known.place:
                step = self._after(step, Place.parse(known.place))
            if step.rows is None or not (len(step.rows) or step.folded.is_cleared):
                return LedgerTable(known)
            commit = self._commits.next(known, place=str(Place(last.cursor, last.ordinal)))
            self._write(table, step.folded, step.rows, commit)
            return self._commits.after(table, known, commit)

    def _after(self, step: FoldedChanges, place: Place) -> FoldedChanges:
        """Without the changes that the table has, up to a place: there may be more of them than in
        one step."""
        first = step.changes[0]
        if Place(first.cursor, first.ordinal) > place:
            return step
        new = [one for one in step.changes if Place(one.cursor, one.ordinal) > place]
        if not new:
            return step._replace(rows=None)
        found: FoldedChanges = self.plan(new, keeps=step.keeps)[0]
        return found

    def _write(self, table: Any, folded: Any, rows: pa.Table, commit: DeltaCommit) -> None:
        if self._is_log:
            if len(rows := present(self._expressed(rows))):
                lake.append(table, [rows], commit)
            return
        rows = self._completed(table, folded, rows)
        if folded.is_cleared:
            lake.replace_all(table, present(rows), self.mapping.own, commit)
        elif len(rows):
            lake.merge(table, rows, self.key, self._prunes, commit)

    @property
    def _prunes(self) -> list[str]:
        """Columns that a MERGE compares first, as whole files have one value in them."""
        return [*self.mapping.own, *([BUCKET] if self.layout.buckets else [])]

    def _completed(self, table: Any, folded: FoldedRows, rows: pa.Table) -> pa.Table:
        """Rows with the values that changes lack from the table; those without one there are no
        rows."""
        lacking = [(number, one[0], one[1]) for number, one in enumerate(folded.rows.values())
                   if one is not None and one[1] is not None]  # fmt: skip
        rows, absent = self._filled(table, rows, lacking)
        if folded.is_cleared:
            absent = {number for number, *_ in lacking}
        entering = expressions.entering(self.mapping.filter, self.relation, lacking, absent)
        rows = self._expressed(rows)
        if not all(rows.column(GONE)[number].as_py() for number in entering):
            raise UnsentValue(
                "a row enters the target, and lacks a value", "tables", hint=SENDS_ALL
            )
        if absent:
            rows = rows.take(pa.array([n for n in range(len(rows)) if n not in absent], pa.int64()))
        return rows

    def _filled(
        self, table: Any, rows: pa.Table, lacking: Sequence[tuple[int, str, str]]
    ) -> tuple[pa.Table, set[int]]:
        """Rows with the values that they lack (number, line, key of the row in the table that has
        them); and the numbers of those of which there is none."""
        if not lacking:
            return rows, set()
        origins = list(dict.fromkeys(origin for *_, origin in lacking))
        keys = self._key_rows(origins)
        unsent = {
            name for _, line, _ in lacking
            for name in self._names_of(LINES.unsent(line))
        }  # fmt: skip
        self.refuse_unsent(unsent)
        unsent &= self.kept.keys()
        where = self._current & self._at(keys, origins)
        wanted = [*self.key, *sorted(self.kept[name] for name in unsent)]
        found = lake.rows_at(table, wanted, where)
        places = {key: row for row, key in enumerate(tuples(found, self.key))}
        of_key = dict(zip(origins, tuples(keys, self.key), strict=True))
        at: list[int | None] = [None] * len(rows)
        gaps = {name: [False] * len(rows) for name in unsent}
        absent = set()
        for number, line, origin in lacking:
            at[number] = places.get(of_key[origin])
            if at[number] is None:
                absent.add(number)
            for cell in LINES.unsent(line):
                if (name := self.relation.names[cell]) in gaps:
                    gaps[name][number] = True
        taken = found.take(pa.array(at, pa.int64()))
        for name, mask in gaps.items():
            kept = rows.column(name)
            there = taken.column(self.kept[name]).cast(kept.type)
            both = compute.if_else(pa.array(mask), there, kept)
            rows = rows.set_column(rows.column_names.index(name), rows.field(name), both)
        return rows, absent

    def _expressed(self, rows: pa.Table) -> pa.Table:
        """Rows as `set` makes them, in their order; those outside of the filter are GONE."""
        mapping, read, count = self.mapping, self._read_kinds.names, len(rows)
        if not mapping.has_expressions:
            return rows
        rows = rows if GONE in rows.column_names else marked(rows, is_gone=False)
        meta: Any = {each.name: arrow_type(self._type_at(None, each)) for each in META}
        given = rows.select([each for each in rows.column_names if each in (*read, *meta, GONE)])
        given = given.append_column(OWN_SID.name, pa.array([mapping.source] * count, pa.string()))
        for name in meta.keys() - {*given.column_names}:
            given = given.append_column(name, pa.nulls(count, meta[name]))
        values = {}
        for name in self._own.names:
            text = mapping.computed.get(name, lake.quoted(name))
            # Without a precision a timestamp has nanoseconds, and ends in 2262.
            kind = self.destination.columns[name].replace("timestamp", "timestamp(6)")
            values[name] = f"CAST(({text}) AS {kind})"
        keys = {name: values.pop(name) for name in self.key if name in values}
        where = f"({mapping.filter or 'true'})"
        where = expressions.OF_LOG.format(where) if self._is_log else where
        found = expressions.computed(given, keys, values, where)
        columns = {each.name: found.column(each.name).cast(each.type) for each in self._own}
        columns |= {each: rows.column(each) for each in rows.column_names if each not in read}
        return self._with_sid(pa.table({**columns, GONE: found.column(GONE)}))

    @property
    def _mine_there(self) -> Any:
        """Which rows of the table are the source's: a condition of Arrow."""
        where: Any = pc.scalar(True)
        for name, sid in self.mapping.own.items():
            where &= pc.field(name) == sid
        return where

    @property
    def _current(self) -> Any:
        """Which of them are rows that the source has."""
        return self._mine_there

    def _at(self, rows: pa.Table, keys: Iterable[str]) -> Any:
        """Where rows may be: with these keys, which `rows` has as values."""
        first, *_ = self.key
        where: Any = pc.field(first).isin(rows.column(first).combine_chunks())
        if self.layout.buckets:
            where &= pc.field(BUCKET).isin(sorted(set(self._buckets(keys))))
        return where

    def _key_rows(self, keys: Sequence[str]) -> pa.Table:
        """Keys of the source's rows, as the table has them."""
        kinds = pa.schema([each for each in self._read_kinds if each.name in self._source_key])
        rows = self._read(keys, self._source_key, kinds).rename_columns([*self.key])
        return rows.cast(pa.schema([self._own.field(name) for name in self.key]))

    def _read(self, lines: Iterable[str], names: Sequence[str], kinds: pa.Schema) -> pa.Table:
        return self._noted(
            read_rows(self._name, lines, names, kinds, self._boxes, nulls=self._nulls)
        )

    @property
    def _nulls(self) -> Collection[str]:
        names = {*self._read_kinds.names} - {*self._source_key}
        return names if self._on_misfit == "null" else ()

    def _noted(self, read: ReadRows) -> pa.Table:
        self._nulled = self._nulled.union(read.nulled)
        return read.rows

    @property
    def _boxes(self) -> Sequence[str]:
        return [each.name for each in self.relation.columns if is_box_array(each)]

    @property
    def _name(self) -> str:
        return f"{self.relation.schema}.{self.relation.table}"

    @cached_property
    def _own(self) -> pa.Schema:
        """The columns that are written, but for penstock's own."""
        columns, names = self.destination.columns, self.mapping.computed or self.relation.names
        return pa.schema([
            (name, arrow_type(columns[name])) for name in names if name in self.written
        ])  # fmt: skip

    @cached_property
    def _read_kinds(self) -> pa.Schema:
        """The columns of lines that are read: those that are written, or that SQL needs."""
        if not self.mapping.has_expressions:
            return self._own
        texts = [each.replace('""', '"')
                 for each in (*self.mapping.computed.values(), self.mapping.filter)]  # fmt: skip
        kinds, wanted = self.destination.columns, {*self._source_key, *self.kept}
        return pa.schema([
            # As the table has it: a change names a type of the user otherwise than the catalogue.
            (each.name, arrow_type(kinds.get(self.kept.get(each.name, ""))
                                   or self._type_at(None, each)))
            for each in (self._source if self._is_log else self.relation).columns
            if each.name in wanted or any(mentions(text, each.name) for text in texts)
        ])  # fmt: skip

    def _made_rows(self, changes: Sequence[LineChange], folded: Any) -> pa.Table:
        """As the table has them. Raises Rejected."""
        if self._is_log:
            expressions.refuse_unsent(self.mapping, self.relation, changes)
            key = [field for field in self._read_kinds if field.name in self.key]
            types = {**COLUMNS, "_key_before": pa.struct(key) if key else None}
            beside = [(name, types[name]) for name in OF_LOG if types[name] is not None]
            kinds = pa.schema([*self._read_kinds, *beside])
            rows = self._noted(
                log_rows(self._name, changes, self.relation, kinds, nulls=self._nulls)
            )
            days = rows.column("_committed_at").cast(pa.timestamp("us")).cast(pa.date32())
            return self._beside(rows.append_column(DAY, days))
        lines = folded.lines(self.relation)
        rows = self._read(lines, self.relation.names, self._read_kinds)
        gone = pa.array([row is None for row in folded.rows.values()], pa.bool_())
        return self._beside(rows.append_column(GONE, gone), [*folded.rows])

    def _with_sid(self, rows: pa.Table) -> pa.Table:
        for name, sid in self.mapping.own.items():
            rows = rows.append_column(name, pa.array([sid] * len(rows), pa.string()))
        return rows

    def _beside(self, rows: pa.Table, keys: Sequence[str] | None = None) -> pa.Table:
        """With the bucket of each key, and the source's name, unless `_expressed` adds it."""
        rows = rows if self.mapping.has_expressions else self._with_sid(rows)
        if self.layout.buckets and keys is not None:
            rows = rows.append_column(BUCKET, pa.array(self._buckets(keys), pa.int32()))
        return rows

    def _buckets(self, keys: Iterable[str]) -> list[int]:
        return [crc32(key.encode()) % self.layout.buckets for key in keys]

    def _done(self, cursor: Any, table: Any, known: KnownCommit, commit: DeltaCommit) -> None:
        found = self._commits.after(table, known, commit)
        self._commits.keep(cursor, found, self._nulled)

    # Loads.

    def has_rows(self, cursor: Any) -> bool:
        """See `StagedRows`; also where it is not known how far the table is."""
        if (table := lake.open_table(self.layout)) is None:
            return False
        if self._commits.is_behind(cursor, table):
            return True
        with lake.translated("reading", self.layout.uri):
            return bool(table.to_pyarrow_dataset().head(1, filter=self._mine_there).num_rows)

    def clear(self, cursor: Any) -> None:
        nothing = self._own.empty_table()
        with self._commits.committing(cursor, takes_over=True) as (table, known):
            commit = self._commits.next(known)
            lake.replace_all(table, nothing, self.mapping.own, commit)
            self._done(cursor, table, known, commit)

    def form(self, *, merges: bool) -> tuple[Sequence[str], bytes]:
        if self.mapping.has_expressions:
            return super().form(merges=merges)
        return [name for name in self.relation.names if name in self.written], b""

    def load(self, cursor: Any, pieces: Iterable[bytes], *, merges: bool) -> int:
        lines = b"".join(pieces)
        self._loaded.add(self._loaded_rows(lines))
        return lines.count(b"\n")

    def _loaded_rows(self, lines: bytes) -> pa.Table:
        try:
            texts = lines.decode().split("\n")[:-1]
        except UnicodeDecodeError:
            raise Rejected("the destination refuses a row: it is not UTF-8", "tables") from None
        names, _ = self.form(merges=False)
        if self.mapping.has_expressions:
            names = self.relation.names
        rows = self._read(texts, names, self._read_kinds)
        if self._is_log:
            for name, text in (("_operation", "READ"), ("_sequence", self._point)):
                rows = rows.append_column(name, pa.array([text] * len(rows), pa.string()))
            return self._expressed(self._beside(rows))
        numbers = [names.index(name) for name in self._source_key]
        cells = (line.split("\t") for line in texts)
        keys = ["\t".join([row[number] for number in numbers]) for row in cells]
        return self._expressed(self._beside(rows, keys))

    @contextmanager
    def loading(self, cursor: Any, part: str, point: str, *, merges: bool) -> Iterator[None]:
        # One that is changed while a part of all partitions is read may be in it twice.
        key = self.key if self.mapping.source == ROWS else ()
        self._loaded, self._point = SpooledRows(self._spool, key), point
        yield
        merges &= not self._is_log
        if not (self._loaded or merges):
            return
        with self._commits.committing(cursor) as (table, known):
            if part in known.parts:
                self._commits.keep(cursor, LedgerTable(known), self._nulled)
                return
            commit = self._commits.next(known, part=part)
            if merges:
                rows = [self._loaded_rows(b""), *self._loaded.parts()]
                self._merge_loaded(table, pa.concat_tables(rows), commit)
            else:
                lake.append(table, map(present, self._loaded.parts()), commit)
            self._done(cursor, table, known, commit)

    def _merge_loaded(self, table: Any, rows: pa.Table, commit: DeltaCommit) -> None:
        if len(rows):
            rows = rows if GONE in rows.column_names else marked(rows, is_gone=False)
            lake.merge(table, rows, self.key, self._prunes, commit)

    # Comparing.

    def compared(self, lines: Sequence[str]) -> pa.Table:
        """Rows of the source as they should be here; null for a value that does not fit."""
        if not lines:
            return self._own.empty_table()
        data = "".join([f"{line}\n" for line in lines]).encode()
        kinds = self._read_kinds
        columns, _ = read_lines(data, self.relation.names, kinds, self._boxes)
        rows = self._expressed(pa.Table.from_arrays(columns, schema=kinds))
        return present(rows).select(self._own.names)

    def current_rows(self, *, is_whole: bool = False) -> Iterator[pa.Table]:
        """Rows that the source has, in parts: the source's columns, or with all of ours."""
        if (table := lake.open_table(self.layout)) is None:
            return
        dataset = table.to_pyarrow_dataset()
        names = dataset.schema.names if is_whole else self._own.names
        with lake.translated("reading", self.layout.uri):
            for batch in dataset.to_batches(columns=[*names], filter=self._current):
                rows = pa.Table.from_batches([batch])
                yield rows if is_whole else rows.cast(self._own)

    def mend(self, cursor: Any, lines: Sequence[str], gone: Iterable[pa.Table]) -> None:
        """The table gets the rows of lines, and those with the keys of `gone` go."""
        numbers = self.relation.key
        cells = (line.split("\t") for line in lines)
        keys = ["\t".join([row[number] for number in numbers]) for row in cells]
        rows = marked(self._beside(self.compared(lines), keys), is_gone=False)
        parts = [rows, *(marked(each, is_gone=True) for each in gone)]
        rows = pa.concat_tables(parts, promote_options="permissive")
        with self._commits.committing(cursor) as (table, known):
            commit = self._commits.next(known)
            lake.merge(table, rows, self.key, self._prunes, commit)
            self._done(cursor, table, known, commit)

    def preview(self, cursor: Any, line: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
        names, line = [*self._source.names], line.rstrip("\n")
        kinds = pa.schema([
            (each.name, arrow_type(self._type_at(cursor, each))) for each in self._source.columns
        ])  # fmt: skip
        values: dict[str, Any] = self._read([line], names, kinds).to_pylist()[0]
        made = [values]
        if self.mapping.has_expressions:
            _, before = self.form(merges=False)
            made = present(self._loaded_rows(before + f"{line}\n".encode())).to_pylist()
        after = [{**self.fixed, **{name: one[name] for name in self._own.names}} for one in made]
        return values, after[0] if after else None

    def _type_at(self, cursor: Any, column: RelationColumn) -> str:
        return kind_of(column, self._on_misfit)

    # What statements need, of which there are none.

    def stage(self, cursor: Any, rows: Iterable[Any], keys: Sequence[Any] = ()) -> None: ...

    def copy(self, cursor: Any, rows: Sequence[Any]) -> None: ...

    def _copy_pieces(
        self, cursor: Any, table: sql.Identifier, names: Sequence[str], pieces: Iterable[bytes]
    ) -> int:
        return 0

    def _delete(self, staged: sql.Identifier, condition: sql.Composable) -> sql.Composable:
        return condition

    def _remove(self, cursor: Any) -> None: ...


_RENAME = "rename it at the source, or leave it out of its publication"


def own_names(layout: DeltaLayout) -> frozenset[str]:
    """Columns of ours in a table, or beside its rows on their way there."""
    if layout.kind == "log":
        return frozenset([*COLUMNS, DAY])
    return frozenset([GONE, BUCKET] if layout.buckets else [GONE])


def wrong_names(
    table: str, columns: Sequence[str], layout: DeltaLayout, more: Collection[str] = ()
) -> Iterator[SettingsError]:
    """Columns that cannot be in a table: readers do not tell them apart, or from ours, of which
    there may be `more`. Case does not count."""
    names = [each.lower() for each in columns]
    if twice := sorted({each for each in names if names.count(each) > 1}):
        yield SettingsError(
            f"{table} has columns that differ only by case: {', '.join(twice)}",
            "delta.column-case", hint=_RENAME,
        )  # fmt: skip
    if taken := sorted({*names} & {*own_names(layout), *more}):
        yield SettingsError(
            f"{table} has columns that penstock has beside them: {', '.join(taken)}",
            "tables.name-taken", hint=_RENAME,
        )  # fmt: skip


def marked(rows: pa.Table, *, is_gone: bool) -> pa.Table:
    """Rows as the source of a MERGE."""
    rows = rows.drop_columns([GONE]) if GONE in rows.column_names else rows
    return rows.append_column(GONE, pa.array([is_gone] * len(rows), pa.bool_()))


def present(rows: pa.Table) -> pa.Table:
    """Without those that are GONE."""
    if GONE not in rows.column_names:
        return rows
    return rows.filter(compute.invert(rows.column(GONE))).drop_columns([GONE])
