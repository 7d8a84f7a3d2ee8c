"""Delta tables by delta-rs: each commit has rows, our counter, and how far the source is.

delta-rs does not refuse an older counter by itself. So a table is loaded and compared before each
commit, which is of the version that was loaded or fails.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeAlias

import orjson
import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction, write_deltalake
from deltalake.exceptions import (
    CommitFailedError,
    DeltaProtocolError,
    SchemaMismatchError,
    TableNotFoundError,
)

from penstock.model.errors import PenstockError, SettingsError, Unavailable
from penstock.sinks.delta.rows import GONE
from penstock.tables.sqlstates import Recurring
from penstock.tables.staged import MADE

Field: TypeAlias = Any  # of pyarrow
_METADATA = "penstock"  # the key of ours in a commit's metadata
_RECENT = 20  # commits among which ours is found, mostly
_COLOUR = re.compile(r"\x1b\[[\d;]*m")
_OF_STORAGE = re.compile(r"Generic .{1,40} error|Object at location|error sending|timed out")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaLayout:
    """How a table is kept: where (`uri`), as what `kind`, in how many `buckets` (0: none), and
    divided by the values of which columns. `clean`: seconds between two compactions; 0: none.
    `declared`: columns that documents have instead of one."""

    uri: str
    kind: str = "clone"
    buckets: int = 0
    partition_by: tuple[str, ...] = ()
    clean: float = 0.0
    options: Mapping[str, str] = field(default_factory=dict)  # of the storage
    declared: pa.Schema | None = None

    @property
    def made(self) -> str:
        """What a table that penstock made is described as: it cannot be written as another."""
        if self.kind == "log":
            return f"{MADE}, as a log"
        if self.kind == "history":
            return f"{MADE}, as a history in {self.buckets} buckets"
        return f"{MADE}, in {self.buckets} buckets" if self.buckets else MADE


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaCommit:
    """What a commit says of the source `app`: its `number`, of which `writer`, and up to which
    `place` changes are in the table, or which `part` of a load it is."""

    app: str
    number: int
    writer: str
    place: str = ""
    part: str = ""

    @property
    def properties(self) -> CommitProperties:
        """Of a commit after the version that was loaded, or of none."""
        return CommitProperties(
            custom_metadata={_METADATA: orjson.dumps(asdict(self)).decode()},
            app_transactions=[Transaction(self.app, self.number)], max_commit_retries=0,
        )  # fmt: skip


def open_table(layout: DeltaLayout) -> DeltaTable | None:
    """The table as it is now; None if there is none. Raises Unavailable, SettingsError."""
    with translated("reading", layout.uri):
        try:
            return DeltaTable(layout.uri, storage_options=dict(layout.options) or None)
        except TableNotFoundError:
            return None


def schema_of(table: DeltaTable) -> pa.Schema:
    fields: Any = table.schema().to_arrow()
    return pa.schema(fields)


def size_of(layout: DeltaLayout) -> Mapping[str, Any]:
    """See `LoadsTables.size`."""
    if (table := open_table(layout)) is None:
        return {}
    with translated("reading", layout.uri):
        last = next(iter(table.history(1)), {}).get("timestamp")  # milliseconds
        return size_at(table, None if last is None else datetime.fromtimestamp(last / 1000, UTC))


def size_at(table: DeltaTable, committed: datetime | None) -> Mapping[str, Any]:
    """Of the version that was loaded, which was committed then: without files that only older ones
    have."""
    sizes: list[Any] = pa.table(table.get_add_actions()).column("size_bytes").to_pylist()
    found = {"version": table.version(), "files": len(sizes), "bytes": sum(sizes)}
    at = {} if committed is None else {"last_commit": committed.isoformat(timespec="milliseconds")}
    return found | at


def create_table(layout: DeltaLayout, schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Makes an empty table, unless there is one."""
    with translated("creating", layout.uri):
        DeltaTable.create(
            layout.uri, Schema.from_arrow(schema), mode="ignore", partition_by=[*partition_by],
            description=layout.made, storage_options=dict(layout.options) or None,
        )  # fmt: skip


def is_made(table: DeltaTable) -> bool:
    return (table.metadata().description or "").startswith(MADE)


def verify_layout(table: DeltaTable, layout: DeltaLayout) -> None:
    """Raises SettingsError for a table that penstock made as another: with other buckets rows would
    not be found."""
    found = table.metadata().description
    if is_made(table) and found != layout.made:
        raise SettingsError(
            f"the table at {layout.uri} was {found}, and is to be {layout.made}",
            "delta.layout-changed",
            hint="set `type` and `buckets` as they were; or remove the table at its location, then"
            " `penstock reload`",
        )


def misfits_of(table: DeltaTable, declared: pa.Schema) -> tuple[list[Field], list[str]]:
    """The declared columns that the table lacks; and the names of those of another type there."""
    there = {each.name: each.type for each in table.schema().fields}
    wanted = zip(declared, Schema.from_arrow(declared).fields, strict=True)
    pairs = [(own, there.get(own.name), each.type) for own, each in wanted]
    lacking = [own for own, found, _ in pairs if found is None]
    return lacking, [own.name for own, found, kind in pairs if found not in (None, kind)]


def number_of(table: DeltaTable, app: str) -> int:
    return table.transaction_version(app) or 0


def was_restored(table: DeltaTable, version: int) -> bool:
    """Whether it has the rows of an older version again since this one."""
    if (newer := table.version() - version) <= 0:
        return newer < 0
    return any(each.get("operation") == "RESTORE" for each in table.history(newer))


def last_commit(table: DeltaTable, app: str) -> DeltaCommit | None:
    """The last one of a source; None where the log does not have it any more."""
    for limit in (_RECENT, None):
        for each in table.history(limit):
            if (text := each.get(_METADATA)) and (found := orjson.loads(text))["app"] == app:
                return DeltaCommit(**found)
    return None


def append(table: DeltaTable, parts: Iterable[pa.Table], commit: DeltaCommit) -> None:
    """One commit of rows that come in parts."""
    schema = schema_of(table)
    batches = (batch for rows in parts for batch in _whole(rows, schema).to_batches())
    reader = pa.RecordBatchReader.from_batches(schema, batches)
    write_deltalake(table, reader, mode="append", commit_properties=commit.properties)


def replace_all(
    table: DeltaTable, rows: pa.Table, own: Mapping[str, str], commit: DeltaCommit
) -> None:
    """All rows go, of the source with the values `own` if there are others, and these come."""
    where = condition(own) or None
    if not len(rows):
        table.delete(where, commit_properties=commit.properties)
        return
    write_deltalake(
        table, _whole(rows, schema_of(table)), mode="overwrite", predicate=where,
        commit_properties=commit.properties,
    )  # fmt: skip


def merge(
    table: DeltaTable,
    rows: pa.Table,
    key: Sequence[str],
    prunes: Sequence[str],
    commit: DeltaCommit,
    *,
    ends: Sequence[str] = (),
) -> None:
    """Rows that are new, or replace those with their keys; of those that are GONE the keys go: or,
    with `ends`, their rows get the values of these columns. `prunes`: columns with few values,
    which say where in the table rows may be."""
    found = [f"t.{quoted(name)} = s.{quoted(name)}" for name in (*prunes, *key)]
    for name in prunes:
        values = ", ".join(map(_literal, rows.column(name).unique().to_pylist()))
        found.append(f"t.{quoted(name)} IN ({values})")
    pairs = {quoted(name): f"s.{quoted(name)}" for name in rows.column_names if name != GONE}
    merger = table.merge(
        rows, " AND ".join(found), source_alias="s", target_alias="t",
        streamed_exec=False,  # else the source's statistics do not keep it from reading all files
        commit_properties=commit.properties,
    )  # fmt: skip
    if ends:
        merger = merger.when_matched_update(
            {quoted(name): f"s.{quoted(name)}" for name in ends}, f"s.{GONE}"
        )
    else:
        merger = merger.when_matched_delete(f"s.{GONE}")
        merger = merger.when_matched_update(pairs, f"NOT s.{GONE}")
    merger.when_not_matched_insert(pairs, f"NOT s.{GONE}").execute()


def rows_at(table: DeltaTable, names: Sequence[str], where: Any) -> pa.Table:
    """Columns of the rows for which a condition of Arrow is true."""
    return table.to_pyarrow_dataset().to_table(columns=[*names], filter=where)


def clean(layout: DeltaLayout) -> DeltaTable | None:
    """Joins small files, and removes those and entries of the log that are old. Returns the table
    as it is then."""
    if (table := open_table(layout)) is not None:
        with translated("compacting", layout.uri):
            table.optimize.compact(commit_properties=CommitProperties(max_commit_retries=0))
            table.vacuum(dry_run=False)
            table.cleanup_metadata()
    return table


class ColumnChange(NamedTuple):
    """What a column is called from now on, and its type, if that is another one. `is_emptied`: its
    values are of no use."""

    name: str
    kind: pa.DataType | None = None
    is_emptied: bool = False

    def of(self, field: Field) -> Field:
        return pa.field(self.name, self.kind or field.type)


def change_columns(layout: DeltaLayout, changes: Mapping[str, ColumnChange]) -> None:
    """Writes the table anew, in one commit, with columns that have other names or types."""
    if not changes or (table := open_table(layout)) is None:
        return
    rows: Any = table.to_pyarrow_dataset()
    was, now = rows.schema, pa.schema([_changed(field, changes) for field in rows.schema])
    emptied = {name for name, each in changes.items() if each.is_emptied}

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in rows.to_batches():
            columns = [
                pa.nulls(len(batch), new.type) if old.name in emptied else _cast(column, new.type)
                for old, new, column in zip(was, now, batch.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=now)

    parted = [
        changes[each].name if each in changes else each
        for each in table.metadata().partition_columns
    ]
    with translated("altering", layout.uri):
        write_deltalake(
            table, pa.RecordBatchReader.from_batches(now, batches()), mode="overwrite",
            schema_mode="overwrite", partition_by=parted or None,
            commit_properties=CommitProperties(max_commit_retries=0),
        )  # fmt: skip


def _cast(column: Any, kind: Any) -> Any:
    if not pa.types.is_struct(kind):
        return column.cast(kind)
    parts = [_cast(part, each.type) for part, each in zip(column.flatten(), kind, strict=True)]
    return pa.StructArray.from_arrays(parts, fields=[*kind], mask=column.is_null())


def _changed(field: Field, changes: Mapping[str, ColumnChange]) -> Field:
    """Of a struct of columns, too: the key before, in a log."""
    if pa.types.is_struct(field.type):
        return pa.field(field.name, pa.struct([_changed(each, changes) for each in field.type]))
    return changes[field.name].of(field) if field.name in changes else field


def add_columns(layout: DeltaLayout, kinds: Mapping[str, Any]) -> None:
    """Adds columns, which are null in the rows that are there."""
    if kinds and (table := open_table(layout)) is not None:
        with translated("altering", layout.uri):
            fields = Schema.from_arrow(pa.schema([*kinds.items()])).fields
            table.alter.add_columns(
                fields, commit_properties=CommitProperties(max_commit_retries=0)
            )


def fill(layout: DeltaLayout, name: str, value: Any, own: Mapping[str, Any]) -> None:
    """Rows that have no value in a column get this one: those of the source with the values
    `own`."""
    if (table := open_table(layout)) is not None:
        where = " AND ".join(filter(None, [f"{quoted(name)} IS NULL", condition(own)]))
        kept = CommitProperties(max_commit_retries=0)
        with translated("filling", layout.uri):
            table.update({quoted(name): value}, predicate=where, commit_properties=kept)


def condition(values: Mapping[str, Any]) -> str:
    return " AND ".join(f"{quoted(name)} = {_literal(text)}" for name, text in values.items())


def quoted(name: str) -> str:
    return '"{}"'.format(name.replace('"', '""'))


def _literal(value: Any) -> str:
    if isinstance(value, datetime):
        # A literal of SQL has nanoseconds, and an end in 2262.
        return f"arrow_cast('{value.isoformat()}', 'Timestamp(Microsecond, Some(\"UTC\"))')"
    return str(value) if isinstance(value, int) else "'{}'".format(str(value).replace("'", "''"))


def _whole(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """With all columns of the table, and only these."""
    known = set(rows.column_names)
    columns = [
        rows.column(each.name).cast(each.type) if each.name in known
        else pa.nulls(len(rows), each.type)
        for each in schema
    ]  # fmt: skip
    return pa.Table.from_arrays(columns, schema=schema)


@contextmanager
def translated(doing: str, uri: str) -> Iterator[None]:
    """Errors of delta-rs as ours, without values. What is of the storage passes; what is in no list
    may be of the rows, if it recurs."""
    try:
        yield
    except PenstockError:
        raise
    except CommitFailedError as error:
        raise Unavailable(
            f"{doing} {uri}: another writer has committed to the table", "delta.conflict",
            hint="it is tried again; give the table to one writer",
        ) from error  # fmt: skip
    except (SchemaMismatchError, DeltaProtocolError, TableNotFoundError) as error:
        raise SettingsError(
            f"{doing} {uri}: {error_text(error)}", "delta.table-unfit",
            hint="the table is not as penstock knows it: `penstock reload` loads it anew",
        ) from error  # fmt: skip
    except BaseException as error:
        # delta-rs has no class of its own for some of its errors, and panics are no Exception.
        if not (isinstance(error, Exception) or type(error).__name__ == "PanicException"):
            raise
        said = f"{doing} {uri}: {error_text(error)}"
        if isinstance(error, OSError) or _OF_STORAGE.search(said):
            hint = "look at the storage, its address, login and rights"
            raise Unavailable(said, "delta.unavailable", hint=hint) from error
        raise Recurring(said, "delta.unavailable", hint="look at the table") from error


def error_text(error: BaseException) -> str:
    """In one line."""
    return " ".join(_COLOUR.sub("", str(error)).split())
