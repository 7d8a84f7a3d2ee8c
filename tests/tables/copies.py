"""Copies of a source's tables in a database, as a sink of tables and a mirror have them, beside the
source's own rows."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from types import SimpleNamespace
from typing import Any, NamedTuple

import orjson

from penstock.consumer.mirror.followed import Followed
from penstock.consumer.mirror.plan import RowCoder
from penstock.consumer.mirror.steps import LoadedChunk, TableRefused
from penstock.consumer.mirror.target import open_target
from penstock.consumer.mirror.target_table import TargetTable
from penstock.nats.consumers import Delivered
from tests.progress import Noted
from tests.sinks.changes import batch_of
from tests.sinks.postgres.test_write import never
from tests.tables.databases import Place

UNSENT, NULL = "\\U", "\\N"
_TYPES = {"integer": 23, "bigint": 20, "text": 25, "json": 114}
_NUMBERS = ("integer", "bigint")
Row = tuple[str | None, ...]


class Column(NamedTuple):
    """`number`: in the source's catalogue. `missing`: what rows have that are older."""

    name: str
    type: str = "text"
    is_key: bool = False
    number: int = 0
    missing: str | None = None


ID, NAME = Column("id", "integer", True, 1), Column("name", "text", False, 2)


class Change(NamedTuple):
    """`before`: the key of before, or a whole row where there is no key."""

    table: str
    operation: str
    before: Sequence[str] | None
    after: Sequence[str] | None


def _row(cells: Sequence[str]) -> Row:
    return tuple(None if one == NULL else one for one in cells)


class Copy(ABC):
    """`source`: the rows of each table at the source; `rows` are those in the database. `errors`:
    what was refused so far. Changes are written as `INSERT 1 one`, `UPDATE 1 > 2 two`, `DELETE 1`,
    of the table `items`; or of another one, as `others: TRUNCATE`."""

    def __init__(self, place: Place, tables: Sequence[str], columns: Sequence[Column]) -> None:
        self.place = place
        self.columns = dict.fromkeys(tables, tuple(columns))
        self.versions = dict.fromkeys(tables, 1)
        self.source: dict[str, list[Row]] = {name: [] for name in tables}
        self.errors: list[str] = []
        self._written = set[str]()

    def write(self, *texts: str) -> None:
        """Writes changes in one commit."""
        changes = [self._change(text) for text in texts]
        for each in changes:
            self._note(each)
        self._write(changes)

    def follow(self, table: str, *columns: Column) -> None:
        """The source's table has these columns from now on."""
        places = {one.number: place for place, one in enumerate(self.columns[table])}
        self.source[table] = [
            tuple(
                row[places[one.number]] if one.number in places else one.missing for one in columns
            )
            for row in self.source[table]
        ]
        self.columns[table] = columns
        self.versions[table] += 1

    def rows(self, table: str = "items") -> list[Row]:
        names = (one.name.replace('"', '""') for one in self.columns[table])
        texts = ", ".join(f'CAST("{name}" AS text)' for name in names)
        return sorted(self.place.execute(f'SELECT {texts} FROM "{table}"'), key=str)

    @property
    def is_right(self) -> bool:
        """Whether each table that had changes has the source's rows."""
        return all(self.rows(name) == sorted(self.source[name], key=str) for name in self._written)

    def keys(self, table: str) -> list[int]:
        return [place for place, one in enumerate(self.columns[table]) if one.is_key]

    def _change(self, text: str) -> Change:
        table, _, text = text.rpartition(": ")
        operation, *cells = text.split(" ")
        table, keys = table or "items", self.keys(table or "items")
        at = cells.index(">") if ">" in cells else len(cells) if operation == "DELETE" else None
        before, after = (None, cells) if at is None else (cells[:at], cells[at + 1 :])
        assert before is None or len(before) == (len(keys) or len(self.columns[table]))
        return Change(table, operation, before, after or None)

    def _note(self, change: Change) -> None:
        table, operation, before, after = change
        self._written.add(table)
        rows, keys = self.source[table], self.keys(table)
        if operation == "TRUNCATE":
            rows.clear()
        new = None if after is None else _row(after)
        if operation in ("UPDATE", "DELETE"):
            old = _row(before) if before else tuple((new or ())[n] for n in keys)
            places = keys or range(len(self.columns[table]))
            found = next(row for row in rows if tuple(row[n] for n in places) == old)
            rows.remove(found)
            pairs = zip(found, new or (), strict=bool(new))
            new = new and tuple(was if one == UNSENT else one for was, one in pairs)
        if new is not None:
            rows.append(new)

    @abstractmethod
    def _write(self, changes: Sequence[Change]) -> None: ...

    @abstractmethod
    def again(self) -> None:
        """Writes once more what was written last."""

    @abstractmethod
    def mend(self) -> None:
        """What was refused is written, as its cause is gone."""

    def close(self) -> None:  # noqa: B027 - a sink keeps nothing open
        pass


class SinkCopy(Copy):
    def __init__(self, place: Place, tables: Sequence[str], columns: Sequence[Column]) -> None:
        super().__init__(place, tables, columns)
        entry = {"backend": "default", "tables": {name: {"create": True} for name in tables}}
        self.sink = place.sink(
            {"map": [entry], "on_error": "dead-letter", "commit": {"wait": "5s"}, "workers": 1}
        )
        self._commit, self._batches = 0, list[Any]()

    def _write(self, changes: Sequence[Change]) -> None:
        self._batches = []
        for table, group in groupby(changes, lambda one: one.table):
            self._commit += 1
            self._batches.append(self._batch(table, [*group]))
        self.again()

    def again(self) -> None:
        self.sink.write(self._batches, Noted())
        waiting = [each for each in self.sink.tables() if each["state"] == "waiting"]
        self.errors = [each["error"] for each in (*self.sink.dead_letters(), *waiting)]

    def mend(self) -> None:
        for each in [*self.sink.dead_letters()]:
            self.sink.replay(str(each["id"]), never)
        for each in self.sink.tables():
            if each["state"] == "waiting":
                self.sink.resume_table(None, each["table"])
        for load in self.sink.unfinished():
            load.settle("stop")

    def _batch(self, table: str, changes: Sequence[Change]) -> Any:
        columns, keys = self.columns[table], self.keys(table)
        numbers = [[one.number, one.name, one.missing] for one in columns]
        relation = {
            "schema": "public", "table": table, "relation_id": 16385 + len(table),
            "version": str(self.versions[table]),
            "columns": [
                {"name": one.name, "type": _TYPES[one.type], "modifier": -1, "key": one.is_key}
                for one in columns
            ],
            "catalog": {"last": max(one.number for one in columns), "file": "1", "gone": [],
                        "columns": numbers},
        }  # fmt: skip
        document = [orjson.dumps(relation).decode(), *[None] * (len(changes) - 1)]

        def key_of(one: Change) -> str | None:
            cells = one.before if one.after is None else [one.after[n] for n in keys]
            return "\t".join(cells) if cells and keys else None

        def before_of(one: Change) -> str | None:
            if one.before is None or (one.after is None and keys):
                return None
            given = dict(zip(keys or range(len(columns)), one.before, strict=True))
            return "\t".join(given.get(n, UNSENT) for n in range(len(columns)))

        return batch_of(
            len(changes), self._commit, images="text", collection=table, delta=document,
            relation_id=relation["relation_id"],
            operation=[one.operation for one in changes], key=[*map(key_of, changes)],
            before=[*map(before_of, changes)],
            after=["\t".join(one.after) if one.after else None for one in changes],
            unchanged=[
                [column.name for column, cell in zip(columns, one.after or (), strict=False)
                 if cell == UNSENT]
                for one in changes
            ],
        )  # fmt: skip


class MirrorCopy(Copy):
    def __init__(self, place: Place, tables: Sequence[str], columns: Sequence[Column]) -> None:
        super().__init__(place, tables, columns)
        self.target = open_target(place.url)
        self.target.open(tables)
        self._documents: dict[tuple[str, str], Any] = {}
        self._catalog: Any = SimpleNamespace(version=lambda *key: self._documents.get(key))
        self._sequence, self._messages = 0, list[tuple[str, Delivered, Any]]()
        self._followed = dict[str, Followed]()
        for name in tables:
            self._load(name)

    def close(self) -> None:
        self.target.close()

    def _write(self, changes: Sequence[Change]) -> None:
        self._messages = []
        for each in changes:
            self._sequence += 1
            message = Delivered(self._sequence, f"cdc.{each.table}")
            self._messages.append((each.table, message, self._body(each)))
        self.again()

    def again(self) -> None:
        for table, message, body in self._messages:
            self._followed[table].add(message, body)
        work = {name: each.work() for name, each in self._followed.items()}
        while True:
            try:
                self.target.apply([one for some in work.values() for one in some], {})
                break
            except TableRefused as error:
                self.errors.append(str(error))
                self._followed[error.table].refuse(error)
                work[error.table] = self._followed[error.table].work()
        for name, each in self._followed.items():
            each.reached(self._sequence)
            if each.problem and each.refusal is None:
                self._load(name)

    def mend(self) -> None:
        for name, each in self._followed.items():
            if each.problem:
                self._load(name)

    def _load(self, name: str) -> None:
        """The table is loaded, with the rows that the source has now."""
        document = self._document(name)
        table = TargetTable(
            name=name, backend="", schema="public", table=name, target=name, stream="CDC",
            snapshot_id=f"s{self._sequence}", sequence=self._sequence, relation_id=5,
        ).with_schema(document)  # fmt: skip
        self.target.begin(table)
        made = RowCoder(table, table.names, self.target.encoders(table))
        rows = [made(self._values(name, row)) for row in self.source[name]]
        self.target.load(table, LoadedChunk(0, len(rows), 0), rows)
        live = replace(table, state="live")
        self.target.finish(live, len(rows))
        self._followed[name] = Followed(live, self.target, self._catalog, dropped="drop")

    def _document(self, name: str) -> Any:
        version, columns = str(self.versions[name]), self.columns[name]
        return self._documents.setdefault((name, version), {
            "version": version, "schema": "public", "table": name, "relation_id": 5,
            "state": {"last_number": max(one.number for one in columns)},
            "columns": [
                {"name": one.name, "data_type": one.type, "type": _TYPES[one.type],
                 "number": one.number, "key": one.is_key,
                 "has_missing": one.missing is not None, "is_generated": False}
                for one in columns
            ],
        })  # fmt: skip

    def _values(self, table: str, cells: Sequence[str | None]) -> dict[str, Any]:
        return {
            one.name: None if cell in (NULL, None) else int(cell) if one.type in _NUMBERS else cell
            for one, cell in zip(self.columns[table], cells, strict=True)
            if cell != UNSENT
        }

    def _body(self, change: Change) -> dict[str, Any]:
        table, operation, before, after = change
        columns, keys = self.columns[table], self.keys(table)
        data = None if after is None else self._values(table, after)
        old = key = None
        if before is not None:
            given = dict(zip(keys or range(len(columns)), before, strict=True))
            old = self._values(table, [given.get(n, UNSENT) for n in range(len(columns))])
        if keys and (data or old):
            key = {columns[n].name: (data or old or {})[columns[n].name] for n in keys}
        return {
            "operation": operation, "position": f"{self._sequence:08}:0", "key": key,
            "before": old, "data": data, "relation_id": 5,
            "unchanged": [one.name for one in columns if data is not None and one.name not in data],
            "schema_version": self._document(table)["version"],
        }  # fmt: skip


COPIES = {"sink": SinkCopy, "mirror": MirrorCopy}
