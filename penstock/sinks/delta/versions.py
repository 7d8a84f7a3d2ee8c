"""Changes of a source's table -> versions of its rows in a Delta table (slowly changing dimension
2).

What a version is, and when it begins and ends, is as in `penstock/tables/history.py`. A commit ends
versions that are open in the table, and adds those that began: by one MERGE.
"""

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from penstock.model.errors import SettingsError
from penstock.sinks.delta import expressions, lake
from penstock.sinks.delta.lake import DeltaCommit
from penstock.sinks.delta.rows import GONE, of_key, tuples
from penstock.sinks.delta.staged import BUCKET, DeltaStagedRows, marked, present
from penstock.tables.fold import LINES
from penstock.tables.history import HistoryColumns, Version, VersionFold
from penstock.tables.lines import LineChange, SourceRelation
from penstock.tables.staged import Destination, RowMapping, UnsentValue

Key = Hashable
FIRST_AT, LAST_AT = datetime(1900, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)
AT: Any = pa.timestamp("us", tz="UTC")


class FoldedVersions(NamedTuple):
    """Versions, and when the table was emptied with them (of one transaction), or ""."""

    groups: Sequence[tuple[Sequence[Version], str]]
    moved: Sequence[LineChange] = ()

    @property
    def is_cleared(self) -> bool:
        return any(emptied for _, emptied in self.groups)

    @property
    def versions(self) -> list[Version]:
        return [each for group, _ in self.groups for each in group]


class OpenVersion(NamedTuple):
    """When a version began that has no end; it is a row of the table (`there`), or new."""

    start: datetime
    row: int
    there: bool


@dataclass(slots=True)
class Timeline:
    """When versions begin and end. `opened`: those that are open, by key; `last`: when a key's last
    version began, or ended; `ended`: rows of the table that end, when, and whether by a deletion;
    `made`: new versions by their rows, from when to when."""

    opened: dict[Key, OpenVersion] = field(default_factory=dict)
    last: dict[Key, datetime] = field(default_factory=dict)
    ended: dict[int, tuple[datetime, bool]] = field(default_factory=dict)
    made: dict[int, tuple[datetime, datetime, bool]] = field(default_factory=dict)

    @classmethod
    def of(cls, keys: Sequence[Key], starts: Sequence[datetime], ends: Sequence[datetime],
           ) -> "Timeline":  # fmt: skip
        """Of versions that a table has, in any order."""
        self = cls()
        for row, (key, start, end) in enumerate(zip(keys, starts, ends, strict=True)):
            is_open = end == LAST_AT
            self.last[key] = max(start if is_open else end, self.last.get(key, FIRST_AT))
            if is_open:
                self.opened[key] = OpenVersion(start, row, there=True)
        return self

    def add(self, key: Key, at: datetime, row: int | None) -> None:
        """The new row of a key; None: it is deleted. The deletion of what is not there is none."""
        if row is None and key not in self.opened:
            return
        time = max(at, self.last[key] + _TICK) if key in self.last else FIRST_AT
        self._end(key, time, is_deleted=row is None)
        if row is not None:
            self.made[row] = time, LAST_AT, False
            self.opened[key] = OpenVersion(time, row, there=False)

    def empty(self, at: datetime, keys: Collection[Key]) -> None:
        """All rows are deleted but those of these keys."""
        for key in self.opened.keys() - keys:
            self._end(key, max(at, self.opened[key].start + _TICK), is_deleted=True)

    def _end(self, key: Key, at: datetime, *, is_deleted: bool) -> None:
        self.last[key] = at
        if (found := self.opened.pop(key, None)) is None:
            return
        if found.there:
            self.ended[found.row] = at, is_deleted
        else:
            self.made[found.row] = found.start, at, is_deleted


class DeltaStagedHistory(DeltaStagedRows):
    """See `DeltaStagedRows`."""

    def __init__(
        self, relation: SourceRelation, destination: Destination, mapping: RowMapping, number: int,
        *, periods: HistoryColumns, **options: Any,
    ) -> None:  # fmt: skip
        self._periods = periods
        super().__init__(relation, destination, mapping, number, **options)
        self.written -= periods.kinds.keys()

    @property
    def unique(self) -> Sequence[str]:
        """See `StagedRows`: several versions have one key."""
        return [*super().unique, self._periods.start]

    def problems(self) -> Iterator[SettingsError]:
        yield from super().problems()
        if missing := sorted(self._periods.kinds.keys() - self.destination.columns.keys()):
            yield SettingsError(
                f"the table at {self.layout.uri}: a history needs a column {', '.join(missing)}",
                "tables", hint="see docs/how-to/history.md",
            )  # fmt: skip

    @property
    def _current(self) -> Any:
        return self._mine_there & (pc.field(self._periods.end) == pa.scalar(LAST_AT, AT))

    def _folded(self, changes: Sequence[LineChange], *, keeps: bool) -> FoldedVersions:
        groups = [*VersionFold(self.relation.key).versions(changes)]
        return FoldedVersions([each for each in groups if each[0] or each[1]])

    def _made_rows(self, changes: Sequence[LineChange], folded: FoldedVersions) -> pa.Table:
        key, width, versions = self.relation.key, len(self.relation.names), folded.versions
        lines = [of_key(each.key, key, width) if each.line is None else each.line
                 for each in versions]  # fmt: skip
        rows = self._read(lines, self.relation.names, self._read_kinds)
        return self._beside(rows, [each.key for each in versions])

    def _write(
        self, table: Any, folded: FoldedVersions, rows: pa.Table, commit: DeltaCommit
    ) -> None:
        versions = folded.versions
        lacking = [
            (number, each.line, each.origin) for number, each in enumerate(versions)
            if each.line is not None and LINES.unsent(each.line)
        ]  # fmt: skip
        rows, absent = self._filled(table, rows, lacking)
        entering, condition = absent, self.mapping.filter
        if condition:
            entering = expressions.entering(condition, self.relation, lacking, absent)
        rows = self._expressed(rows)
        gone: list[Any] = [False] * len(rows)
        if GONE in rows.column_names:
            gone = rows.column(GONE).to_pylist()
        if not all(gone[number] for number in entering):
            raise UnsentValue(
                "a row lacks a value that was not sent, and there is no version before it", "tables"
            )
        where = self._mine_there
        if not folded.is_cleared:
            where &= self._at(rows, [each.key for each in versions])
        there, timeline = self._timeline(table, where)
        is_gone = [each.line is None or gone[number] or number in absent
                   for number, each in enumerate(versions)]  # fmt: skip
        keys, number = tuples(rows, self.key), 0
        for group, emptied in folded.groups:
            own = keys[number : number + len(group)]
            if emptied:
                timeline.empty(datetime.fromisoformat(emptied), {*own})
            for key, each in zip(own, group, strict=True):
                at = datetime.fromisoformat(each.at)
                timeline.add(key, at, None if is_gone[number] else number)
                number += 1
        self._commit(table, rows, there, timeline, commit)

    def _timeline(self, table: Any, where: Any) -> tuple[pa.Table, Timeline]:
        """Versions in the table, by their keys, and how they follow each other."""
        start, end = self._periods.start, self._periods.end
        names = [*self.key, start, end, *([BUCKET] if self.layout.buckets else [])]
        there = lake.rows_at(table, names, where)
        starts: Any = there.column(start).cast(AT).to_pylist()
        ends: Any = there.column(end).cast(AT).to_pylist()
        return there, Timeline.of(tuples(there, self.key), starts, ends)

    def _commit(
        self, table: Any, rows: pa.Table, there: pa.Table, timeline: Timeline, commit: DeltaCommit
    ) -> None:
        made, ended, start = timeline.made, timeline.ended, self._periods.start
        parts = []
        if made:
            new = rows.take(pa.array([*made], pa.int64()))
            new = self._during(new, *zip(*made.values(), strict=True))
            parts.append(marked(new, is_gone=False))
        if ended:
            old = there.take(pa.array([*ended], pa.int64()))
            starts = old.column(start).cast(AT)
            old = old.drop_columns([start, self._periods.end])
            old = self._with_sid(self._during(old, starts, *zip(*ended.values(), strict=True)))
            parts.append(marked(old, is_gone=True))
        if parts:
            lake.merge(
                table, pa.concat_tables(parts, promote_options="permissive"), [*self.key, start],
                self._prunes, commit, ends=[self._periods.end, self._periods.deleted],
            )  # fmt: skip

    def _during(self, rows: pa.Table, start: Any, end: Any, deleted: Any) -> pa.Table:
        """Rows with when they begin and end."""
        names = (self._periods.start, self._periods.end, self._periods.deleted)
        for name, values, kind in zip(names, (start, end, deleted), (AT, AT, pa.bool_()),
                                      strict=True):  # fmt: skip
            column = values if isinstance(values, pa.ChunkedArray) else pa.array(values, kind)
            rows = rows.append_column(name, column)
        return rows

    def _loaded_rows(self, lines: bytes) -> pa.Table:
        rows = super()._loaded_rows(lines)
        count = len(rows)
        return self._during(rows, [FIRST_AT] * count, [LAST_AT] * count, [False] * count)

    def _merge_loaded(self, table: Any, rows: pa.Table, commit: DeltaCommit) -> None:
        """These are all rows: versions of others end, and rows that differ from their open version
        have a new one."""
        rows, at, names = present(rows), datetime.now(UTC), self._own.names
        was = lake.rows_at(table, names, self._current).select(names).cast(self._own)
        values = dict(zip(tuples(was, self.key), map(repr, tuples(was, names)), strict=True))
        there, timeline = self._timeline(table, self._mine_there)
        keys = tuples(rows, self.key)
        for key in values.keys() - {*keys}:
            timeline.add(key, at, None)
        for number, (key, row) in enumerate(zip(keys, tuples(rows, names), strict=True)):
            if values.get(key) != repr(row):
                timeline.add(key, at, number)
        rows = rows.drop_columns([*self._periods.kinds])
        self._commit(table, rows, there, timeline, commit)
