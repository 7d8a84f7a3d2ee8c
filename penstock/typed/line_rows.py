"""Changes whose images are lines -> typed rows of a table."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, Literal, NamedTuple

import orjson
import pyarrow as pa
from pyarrow import compute

from penstock.model.change import Images, Operation
from penstock.model.errors import SettingsError
from penstock.tables.lines import NULL, UNSENT, SourceRelation
from penstock.typed import OnMisfit
from penstock.typed.columns import COLUMNS, META, sequences, verify_beside
from penstock.typed.lines import Array, CellMisfit, Field, is_readable, misfit_error, read_lines

pc: Any = compute

OnSchemaChange = Literal["rest", "fail"]
_BOXES = "1020"  # the type box[]

_ROWS = ("INSERT", "UPDATE", "REPLACE", "DELETE", "READ")
_IMAGES = ("key", "before", "after")
# What names a change's relation.
_RELATION = ("relation_id", "schema_version")


class LineRelation(NamedTuple):
    """What lines are of; `boxes`: its columns that are arrays of the type box."""

    names: tuple[str, ...]
    key: tuple[int, ...]
    boxes: frozenset[str]

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "LineRelation":
        """Of the document in `delta`."""
        relation = SourceRelation.of(document)
        types = document.get("types") or {}
        own = {oid for oid, each in types.items() if each.get("delimiter", ",") != ","}
        columns = zip(relation.names, relation.columns, strict=True)
        boxes = frozenset(name for name, each in columns if str(each.oid) in {*own, _BOXES})
        return cls(relation.names, relation.key, boxes)


NOTHING = LineRelation((), (), frozenset())
Relations = Mapping[Any, LineRelation]


def relations_of(batches: Iterable[pa.RecordBatch]) -> Relations:
    """The relations of a page's changes; the first change of each has it."""
    found: dict[Any, LineRelation] = {}
    for batch in batches:
        deltas, *names = (batch.column(name) for name in ("delta", *_RELATION))
        for row in pc.indices_nonzero(deltas.is_valid()).to_pylist():
            name = tuple(each[row].as_py() for each in names)
            found[name] = LineRelation.of(orjson.loads(deltas[row].as_py()))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class LineRows:
    """Makes rows of `schema`, some columns of which are `table`'s, of changes with images of
    lines."""

    images: ClassVar[Images] = "text"
    table: str
    schema: pa.Schema
    on_schema_change: OnSchemaChange = "rest"
    on_misfit: OnMisfit = "FAILFAST"

    def __post_init__(self) -> None:
        verify_beside(self.schema)
        for field in self.schema:
            is_key = field.name == "_key_before"
            is_wrong = is_key and not pa.types.is_struct(field.type)
            if is_wrong or (field.name not in COLUMNS and not is_readable(field.type)):
                raise SettingsError(
                    f"the column {field.name} of the schema has the type {field.type}",
                    "typed",
                    hint="declare a struct of the key's columns" if is_key
                    else "declare a plain type, an array of one, or a string",
                )  # fmt: skip

    def of_page(
        self, page: Iterable[pa.RecordBatch], kept: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """The rows of those changes of a page that are `kept`. Raises SettingsError for a value
        that its column cannot hold."""
        relations = relations_of(page)
        for batch in kept:
            for part, name in _of_one_relation(batch):
                yield self._rows(part, relations.get(name, NOTHING))

    def _rows(self, changes: pa.RecordBatch, relation: LineRelation) -> pa.RecordBatch:
        names = relation.names
        changes, errors = _only_rows(_completed(changes, names))
        found: dict[str, Any] = {}
        misfits: list[CellMisfit] = []
        lines: Any = b""
        lacking = [field.name for field in self._own if field.name not in names]
        if names:
            self._check(names, lacking)
            lines = _lines(changes, names)
            found, misfits = self._values(lines, relation)
        made: dict[str, Callable[[], Any]] = {
            "_operation": lambda: changes.column("operation"),
            "_sequence": lambda: sequences(changes),
            "_committed_at": lambda: changes.column("committed_at"),
            "_unsent": lambda: _unsent(changes, names, lacking),
            "_rest": lambda: self._rest(lines, len(changes), relation, misfits),
            "_corrupt": lambda: errors,
            "_key_before": lambda: self._keys_before(changes, relation),
        }
        columns = []
        for field in self.schema:
            column = made[field.name]() if field.name in made else found.get(field.name)
            columns.append(
                pa.nulls(len(changes), field.type) if column is None else column.cast(field.type)
            )
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    @property
    def _own(self) -> list[Field]:
        return [field for field in self.schema if field.name not in META]

    def _check(self, names: Sequence[str], lacking: Sequence[str]) -> None:
        has = {field.name for field in self._own}
        new = [name for name in names if name not in has]
        if self.on_schema_change == "fail" and (new or lacking):
            raise SettingsError(
                f"{self.table} has other columns than the rows: new {', '.join(new) or 'none'},"
                f" gone {', '.join(lacking) or 'none'}",
                "typed.schema-changed",
                hint="make the DataFrame again, so that it has the columns of now, and start the"
                " query again; or set on_schema_change: rest",
            )

    def _values(
        self, lines: Any, relation: LineRelation
    ) -> tuple[dict[str, Any], list[CellMisfit]]:
        wanted = pa.schema([field for field in self._own if field.name in relation.names])
        columns, misfits = _read(lines, relation, wanted)
        if misfits and self.on_misfit == "FAILFAST":
            raise misfit_error(self.table, wanted, misfits[0])
        return dict(zip(wanted.names, columns, strict=True)), misfits

    def _rest(
        self, lines: Any, count: int, relation: LineRelation, misfits: Sequence[CellMisfit]
    ) -> Array | None:
        has = {field.name for field in self._own}
        more = [name for name in relation.names if name not in has]
        if not (more or misfits):
            return None
        texts = pa.schema([(name, pa.string()) for name in more])
        columns, _ = _read(lines, relation, texts)
        rows: list[dict[str, str]] = [{} for _ in range(count)]
        for name, column in zip(more, columns, strict=True):
            for row, value in enumerate(column.to_pylist()):
                if value is not None:
                    rows[row][name] = value
        for misfit in misfits:
            rows[misfit.row][misfit.column] = misfit.text
        return pa.array([list(row.items()) or None for row in rows], COLUMNS["_rest"])

    def _keys_before(self, changes: pa.RecordBatch, relation: LineRelation) -> Array | None:
        kind = self.schema.field("_key_before").type
        wanted = pa.schema([kind.field(number) for number in range(kind.num_fields)])
        before = changes.column("before")
        if before.null_count == len(before) or not {*wanted.names} <= {*relation.names}:
            return None
        rows, lines = [], []
        images = zip(
            changes.column("operation").to_pylist(), before.to_pylist(),
            changes.column("key").to_pylist(), strict=True,
        )  # fmt: skip
        for row, (operation, old, now) in enumerate(images):
            if operation != "UPDATE" or old is None:
                continue
            cells = old.split("\t")
            if "\t".join(cells[number] for number in relation.key) != now:
                rows.append(row)
                lines.append(old)
        if not rows:
            return None
        text = "".join(f"{line}\n" for line in lines).encode()
        columns, misfits = _read(text, relation, wanted)
        if misfits:
            raise misfit_error(self.table, wanted, misfits[0])
        places = dict(zip(rows, range(len(rows)), strict=True))
        taken = pa.array([places.get(row) for row in range(len(changes))], pa.int64())
        return pa.StructArray.from_arrays(columns, fields=list(wanted)).take(taken)


def _read(
    lines: Any, relation: LineRelation, wanted: pa.Schema
) -> tuple[list[Array], list[CellMisfit]]:
    return read_lines(lines, relation.names, wanted, relation.boxes)


def _of_one_relation(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, Any]]:
    """Parts of a batch, in order, each with its relation's name; without messages."""
    operations = batch.column("operation")
    is_message = pc.equal(operations, Operation.MESSAGE.value)
    if pc.any(is_message).as_py():
        batch = batch.filter(pc.invert(is_message))
    names = [batch.column(name) for name in _RELATION]
    if not len(batch):
        return
    if all(len(each.unique()) == 1 for each in names):
        yield batch, tuple(each[0].as_py() for each in names)
        return
    first = 0
    for name, rows in groupby(zip(*(each.to_pylist() for each in names), strict=True)):
        count = len(list(rows))
        yield batch.slice(first, count), name
        first += count


def _with(changes: pa.RecordBatch, **columns: Any) -> pa.RecordBatch:
    made = [columns.get(name, changes.column(name)) for name in changes.schema.names]
    return pa.RecordBatch.from_arrays(made, schema=changes.schema)


def _completed(changes: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """With the values that a change did not send, and that it has in the whole row of before."""
    unsent: Any = changes.column("unchanged")
    before = changes.column("before")
    if not len(unsent.flatten()) or before.null_count == len(before):
        return changes
    rows: list[Any] = unsent.to_pylist()
    lines: list[Any] = changes.column("after").to_pylist()
    for row, (new, old) in enumerate(zip(lines, before.to_pylist(), strict=True)):
        if rows[row] and new is not None and old is not None:
            cells = zip(new.split("\t"), old.split("\t"), strict=True)
            both = [was if now == UNSENT else now for now, was in cells]
            lines[row] = "\t".join(both)
            rows[row] = [name for name, cell in zip(names, both, strict=True) if cell == UNSENT]
    return _with(changes, after=pa.array(lines, pa.string()), unchanged=pa.array(rows, unsent.type))


def _only_rows(changes: pa.RecordBatch) -> tuple[pa.RecordBatch, Array | None]:
    """Without images that are no rows; and those of changes that cannot be read."""
    operations = changes.column("operation")
    is_row = pc.is_in(operations, pa.array(_ROWS))
    if pc.all(is_row).as_py():
        return changes, None
    after, nothing = changes.column("after"), pa.scalar(None, pa.string())
    errors = pc.if_else(pc.equal(operations, Operation.ERROR.value), after, nothing)
    images = {name: pc.if_else(is_row, changes.column(name), nothing) for name in _IMAGES}
    return _with(changes, **images), errors


def _lines(changes: pa.RecordBatch, names: Sequence[str]) -> Array:
    """The line of each change: of what was deleted the old row."""
    after, before = changes.column("after"), changes.column("before")
    return pc.coalesce(after, before, "\t".join([NULL] * len(names))) if after.null_count else after


def _unsent(changes: pa.RecordBatch, names: Sequence[str], lacking: Sequence[str]) -> Array:
    """Columns of rows that changes have no value of, also those that the source does not have."""
    found = changes.column("unchanged")
    after = changes.column("after")
    if not after.null_count and not lacking:
        return found
    rows = found.to_pylist()
    if after.null_count:
        images = zip(after.to_pylist(), changes.column("before").to_pylist(), strict=True)
        for row, (new, old) in enumerate(images):
            if new is None and old is not None and UNSENT in old:
                cells = zip(names, old.split("\t"), strict=True)
                rows[row] = [name for name, cell in cells if cell == UNSENT]
    return pa.array([[*(row or ()), *lacking] for row in rows], pa.list_(pa.string()))
