"""Some rows of followed tables, before and after what a pipeline makes of them: by its `transform`,
or by `filter` and `set` of its map. Sources and destination are only read."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
import pyarrow as pa

from penstock.config import Pipeline
from penstock.feeds import Feed, HasSources, ListsTables, SamplesRows
from penstock.model.change import ERROR, Images, Operation, schema, unreadable
from penstock.model.errors import PenstockError, Rejected, SettingsError
from penstock.model.table_schema import TableSchema
from penstock.sinks.tables.preview import PreviewsTable, PreviewsTables
from penstock.sinks.tables.table_map import TableMap
from penstock.snapshots.followed_tables import FollowedTable, SnapshotSource, resolve
from penstock.snapshots.statements import RowTransform

_NEEDED = "event_id", "operation", "namespace", "collection", "key", "after"


@dataclass(frozen=True, slots=True)
class MadeRow:
    """What a row becomes: a change of the table, with its values."""

    operation: str
    table: str
    key: Any
    after: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPreview:
    """A row of the source, and all that it becomes; nothing, where it is `left_out_by` a step, or
    has a `problem`. `before` is None for what statements make of no single row."""

    operation: str
    key: Any
    before: Any
    made: Sequence[MadeRow] = ()
    left_out_by: str = ""
    problem: PenstockError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePreview:
    """A table of a backend and, if that has several sources, of the one that is named. `target`: at
    a destination of tables. `problem`: why there are no rows."""

    backend: str
    sid: str
    table: str
    target: str = ""
    rows: Sequence[RowPreview] = ()
    problem: PenstockError | None = None


def tables_of(pipeline: Pipeline, names: Sequence[str], sid: str) -> list[FollowedTable]:
    """The tables that are followed, or will be, or those of them that are called so; of several
    sources of a backend the one with this sid, or the first. Does I/O; raises Unavailable,
    SettingsError."""
    found = [
        FollowedTable(source=source, schema=each)
        for source in _sources(pipeline, sid)
        for each in _schemas(source.feed)
    ]
    if not found:
        raise SettingsError(
            f"{pipeline.name} follows no table", "snapshots.no-table",
            hint="`penstock check FILE` says what its source lacks",
        )  # fmt: skip
    return [resolve(tuple(name.split(".")), found) for name in names] or found


def _sources(pipeline: Pipeline, sid: str) -> Iterator[SnapshotSource]:
    for backend in pipeline.backends:
        feed = backend.feed()
        if isinstance(feed, HasSources):
            feed = feed.of(sid or min(feed.sources))
        if not isinstance(feed, SamplesRows):
            raise SettingsError(
                f"rows of a backend of type {backend.type} cannot be sampled",
                "snapshots.no-samples",
                hint="its feed lacks the method `sample` (docs/how-to/write-a-feed.md)",
            )
        prefix = (backend.name,) if len(pipeline.backends) > 1 else ()
        yield SnapshotSource(backend=backend.name, feed=feed, prefix=prefix)


def _schemas(feed: Feed) -> Sequence[TableSchema]:
    return feed.schemas_to_be() or [
        TableSchema(schema=space, table=table, name=(table,), version="", columns=())
        for space, table in feed.tables() or ()
    ]


def previews(
    pipeline: Pipeline,
    tables: Sequence[FollowedTable],
    rows: int,
    statements: RowTransform | None,
) -> Iterator[TablePreview]:
    """At most so many rows of each table. `statements`: those of the pipeline's transform. Does
    I/O; raises Unavailable, SettingsError."""
    sink: object = pipeline.sink.sink()
    if not isinstance(sink, PreviewsTables):
        yield from (_changed(each, rows, statements) for each in tables)
        return
    table_map = TableMap(sink.settings)
    with sink.previewing() as preview:
        for each in tables:
            yield _written(each, rows, table_map, preview)


def _changed(table: FollowedTable, rows: int, statements: RowTransform | None) -> TablePreview:
    """Rows as changes, which statements take."""
    batch = _read(table, "json", rows)
    known, broken = batch.to_pylist(), {*unreadable(batch)}
    made = [each for number, each in enumerate(known) if number not in broken]
    if statements is not None:
        kept = [number for number in range(len(batch)) if number not in broken]
        try:
            made = statements.made(batch.take(pa.array(kept, pa.int64())), _NEEDED).to_pylist()
        except SettingsError as error:
            return _preview(table, problem=error)
    of: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for each in made:
        of[each["event_id"]].append(each)
    found = [_row(each, of.pop(each["event_id"], [])) for each in known]
    if of:  # which rows they are of, or which are left out, nobody can tell
        found = [replace(each, left_out_by="") for each in found]
    return _preview(table, rows=[*found, *(_row(None, rest) for rest in of.values())])


def _row(row: dict[str, Any] | None, made: Sequence[dict[str, Any]]) -> RowPreview:
    """`row`: None where statements have made rows of no single one."""
    found = RowPreview(operation="", key=None, before=None)
    if row is not None:
        after = _parsed(row["after"])
        if row["operation"] == ERROR:
            problem = Rejected(
                f"it cannot be read: {after['error']}", "snapshots.row-unreadable",
                hint="its changes become dead letters: see docs/how-to/dead-letters.md",
            )  # fmt: skip
            return RowPreview(operation=ERROR, key=None, before=None, problem=problem)
        found = RowPreview(operation=row["operation"], key=_parsed(row["key"]), before=after)
    try:
        changes = [_made(each) for each in made]
    except orjson.JSONDecodeError:
        problem = Rejected(
            "transform makes broken JSON of it", "snapshots", hint="correct its statements"
        )
        return replace(found, problem=problem)
    return replace(found, made=changes, left_out_by="" if changes else "transform")


def _made(row: dict[str, Any]) -> MadeRow:
    names = row["namespace"], row["collection"]
    table = ".".join(filter(None, names))
    return MadeRow(row["operation"], table, _parsed(row["key"]), _parsed(row["after"]))


def _parsed(image: str | None) -> Any:
    return None if image is None else orjson.loads(image)


def _written(
    table: FollowedTable, rows: int, table_map: TableMap, preview: PreviewsTable
) -> TablePreview:
    """Rows as a sink of tables writes them."""
    source, schema = table.source, table.schema
    mapped = table_map.mapped(source.backend, schema.schema, schema.table)
    if mapped is None:
        problem = SettingsError(
            "it is not in the map: its changes are left out", "snapshots.not-in-map",
            hint="add it to sink.map, or leave it out of the backend's `tables`",
        )  # fmt: skip
        return _preview(table, problem=problem)
    lines = [str(each) for each in _read(table, "text", rows)["after"].to_pylist()]
    try:
        found = preview(mapped, _sid(table), schema, lines)
    except SettingsError as error:
        return _preview(table, target=mapped.full_target, problem=error)
    keys = [column["name"] for column in schema.columns if column["key"]]
    made = [
        RowPreview(
            operation=Operation.READ, key={name: each.before[name] for name in keys},
            before=each.before, problem=each.problem,
            made=[]
            if each.after is None
            else [MadeRow(Operation.READ, mapped.full_target, None, each.after)],
            left_out_by="filter" if each.after is None and each.problem is None else "",
        )
        for each in found
    ]  # fmt: skip
    return _preview(table, target=mapped.full_target, rows=made)


def _read(table: FollowedTable, images: Images, rows: int) -> pa.RecordBatch:
    """Rows with the operation READ, and ids that differ. Raises Unavailable, SettingsError."""
    feed: object = table.source.feed
    assert isinstance(feed, SamplesRows)
    decoder = table.source.feed.decoder(images, "dead-letter")
    batches = [
        batch
        for page in feed.sample(table.schema.schema, table.schema.table, rows)
        for batch in decoder.decode(page)
    ]
    found = pa.Table.from_batches(batches, schema(images)).slice(0, rows).to_pylist()
    for number, each in enumerate(found):
        each["event_id"] = f"{each['event_id']}#{number}"
        if each["operation"] == Operation.INSERT:
            each["operation"] = Operation.READ.value
    return pa.RecordBatch.from_pylist(found, schema(images))


def _preview(table: FollowedTable, **more: Any) -> TablePreview:
    name = f"{table.schema.schema}.{table.schema.table}".lstrip(".")
    return TablePreview(backend=table.source.backend, sid=_sid(table), table=name, **more)


def _sid(table: FollowedTable) -> str:
    feed: object = table.source.feed
    return str(feed.partition) if isinstance(feed, ListsTables) else ""
