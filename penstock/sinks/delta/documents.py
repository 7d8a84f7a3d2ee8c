"""Documents -> rows with declared columns, as they come to a Delta table and nowhere before.

To all else such a table has columns for the key, which are text, and `document`.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import orjson
import pyarrow as pa

from penstock.model.errors import Rejected, SettingsError
from penstock.sinks.delta import lake
from penstock.sinks.delta.rows import GONE
from penstock.sinks.delta.staged import BUCKET, DAY, DeltaStagedRows
from penstock.tables.lines import LineChange
from penstock.typed.columns import META, verify_beside
from penstock.typed.ddl import schema_of_ddl
from penstock.typed.document_rows import rest_of
from penstock.typed.documents import DocumentColumns, FieldMisfit, text_of
from penstock.wire.document_lines import DOCUMENT

_OURS = ("_rest", "_corrupt")


@cache
def declared(text: str) -> pa.Schema | None:
    """The columns that DDL text declares; None where it is empty. Raises SettingsError for columns
    that documents cannot have."""
    if not text:
        return None
    schema = schema_of_ddl(text)
    verify_beside(schema)
    names = [each.lower() for each in schema.names]
    taken = {*META, BUCKET, DAY, GONE} - {*_OURS}
    if wrong := sorted({name for name in names if name in taken or names.count(name) > 1}):
        raise SettingsError(
            f"the schema has columns that rows cannot have, or several times: {', '.join(wrong)}",
            "tables.name-taken",
            hint="leave them out; a log has what tells of a change besides, and readers do not tell"
            " columns apart by case",
        )
    DocumentColumns(_own(schema))
    return schema


def _own(schema: pa.Schema) -> pa.Schema:
    return pa.schema([each for each in schema if each.name not in _OURS])


def columns_of(declared: pa.Schema, key: Sequence[str]) -> list[Any]:
    """The columns of a table: of the key, as declared or text, and the others."""
    names = {*declared.names}
    keys = [declared.field(each) if each in names else pa.field(each, pa.string()) for each in key]
    return [*keys, *(each for each in declared if each.name not in key)]


def shown(declared: pa.Schema, kinds: Mapping[str, str]) -> Mapping[str, str]:
    """What a table with these columns is to all else."""
    return {**kinds, **dict.fromkeys(declared.names, "text"), DOCUMENT: "text"}


class DeltaStagedDocuments(DeltaStagedRows):
    """See `DeltaStagedRows`."""

    @property
    def _declared(self) -> pa.Schema:
        assert self.layout.declared is not None
        return self.layout.declared

    def problems(self) -> Iterator[SettingsError]:
        yield from super().problems()
        if (table := lake.open_table(self.layout)) is None:
            return
        lacking, other = lake.misfits_of(table, self._declared)
        if names := [*other, *([] if lake.is_made(table) else [each.name for each in lacking])]:
            yield SettingsError(
                f"the table at {self.layout.uri} has not the types that `schema` declares:"
                f" {', '.join(names)}",
                "delta.schema-changed",
                hint="declare them as they were, under other names, or remove the table at its"
                " location, then `penstock reload`",
            )

    def make(self, cursor: Any) -> None:
        """See `StagedRows`: the table gets columns that were declared since."""
        if (table := lake.open_table(self.layout)) is not None:
            lacking, _ = lake.misfits_of(table, self._declared)
            lake.add_columns(self.layout, {each.name: each.type for each in lacking})

    def _filled(
        self, table: Any, rows: pa.Table, lacking: Sequence[tuple[int, str, str]]
    ) -> tuple[pa.Table, set[int]]:
        """A change without its document, as that was deleted since, leaves the row as it is."""
        return rows, {number for number, *_ in lacking}

    def _made_rows(self, changes: Sequence[LineChange], folded: Any) -> pa.Table:
        return self._typed(super()._made_rows(changes, folded))

    def _loaded_rows(self, lines: bytes) -> pa.Table:
        return self._typed(super()._loaded_rows(lines))

    def _typed(self, rows: pa.Table) -> pa.Table:
        """Raises Rejected for a value that its column cannot hold, unless that is null then; and
        for one of the key in any case."""
        texts = rows.column(DOCUMENT).to_pylist()
        documents = [None if text is None else orjson.loads(text) for text in texts]
        own, key = _own(self._declared), {*self.key}
        keyed = pa.schema([each for each in own if each.name in key])
        columns, misfits = DocumentColumns(own).columns(documents)
        found = dict(zip(own.names, columns, strict=True))
        keys, wrong = DocumentColumns(keyed).columns(rows.select(keyed.names).to_pylist())
        misfits = {name: each for name, each in misfits.items() if name not in key}
        if wrong or (misfits and self._on_misfit != "null"):
            raise self._refusal(next(iter((wrong or misfits).values()))[0])
        found |= dict(zip(keyed.names, keys, strict=True))
        self._nulled = self._nulled.union(misfits)
        corrupt = {each.row for some in misfits.values() for each in some}
        ours: Mapping[str, Sequence[Any]] = {
            "_rest": rest_of(documents, own.names, misfits),
            "_corrupt": [
                text_of(each) if row in corrupt else None for row, each in enumerate(documents)
            ],
        }
        rows = rows.drop_columns([DOCUMENT, *keyed.names])
        for field in self._declared:
            column = found.get(field.name)
            if column is None:
                column = pa.array(ours[field.name], field.type)
            rows = rows.append_column(field, column)
        if "_unsent" in rows.column_names:
            rows = self._unsent(rows, [name for name in own.names if name not in key])
        return rows

    def _unsent(self, rows: pa.Table, names: Sequence[str]) -> pa.Table:
        lists = rows.column("_unsent").to_pylist()
        found: Any = [[*names] if DOCUMENT in (each or ()) else each for each in lists]
        place = rows.column_names.index("_unsent")
        return rows.set_column(place, "_unsent", pa.array(found, rows.column(place).type))

    def _refusal(self, misfit: FieldMisfit) -> Rejected:
        return Rejected(
            f"{self._name} has {misfit.found} in {misfit.path}, which the schema declares as"
            f" {misfit.type}, and which does not fit there",
            "delta.misfit",
            hint="declare the column as a string, which takes any value; or, unless it is of the"
            " key, set `sink.on_misfit` to null, and give the schema a column _corrupt",
        )
