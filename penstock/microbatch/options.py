"""The options of the Spark source and sink, besides the feed's or sink's own settings.

Option names are those of the pipeline file, flattened with dots (`batch.max_size`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import orjson
import pyarrow as pa
from pydantic import Field, SecretStr

from penstock.config import Checkpoint, options_from_settings, settings_from_options
from penstock.feeds import Feed, FeedPlugin
from penstock.microbatch.late import columns_of, stub_schema
from penstock.microbatch.run_folder import BOARD, read_task_slots
from penstock.microbatch.ticket import TICKETS
from penstock.model.change import Images, OnError
from penstock.model.change import schema as change_schema
from penstock.model.errors import SettingsError
from penstock.model.settings import Duration, Settings, Size
from penstock.model.table_schema import SchemaStore
from penstock.ops.reporter import Reporter
from penstock.process.plugins import plugin
from penstock.sinks import Sink, SinkPlugin
from penstock.typed import OnMisfit, TypedRows
from penstock.typed.chosen import ChosenColumns
from penstock.typed.document_rows import DocumentRows
from penstock.typed.line_rows import LineRows, OnSchemaChange

Mode = Literal["rows", "realtime"]


class BatchLimits(NamedTuple):
    """Bounds of one micro-batch, in changes and in bytes."""

    events: int
    size: int


class Listening(Settings):
    """Where a server of the driver listens: clients connect to `host`; it binds `bind`, or that."""

    host: str = ""
    bind: str = ""
    port: int = Field(default=0, ge=0, le=65535)


class Reports(Settings):
    """The board's TCP server: `tcp:HOST:PORT`, and its key in hexadecimal. Spark redacts options
    with this name (spark.redaction.regex). `spans`: whether times of batches are reported, too."""

    address: str = ""
    token: SecretStr = SecretStr("")
    spans: bool = False

    def reporter(self, runtime: str | None) -> Reporter | None:
        """To the TCP server, or else to the socket in the run folder, or else none."""
        if self.address:
            return Reporter(self.address, bytes.fromhex(self.token.get_secret_value()))
        return Reporter(Path(runtime) / BOARD) if runtime else None


class TargetOptions(Settings):
    """A reader's sink: its type, and its options as JSON, which Spark redacts by their name
    (spark.redaction.regex). `prefix`: of the tables' names in the schemas that it stores there."""

    sink: str = ""
    secret: SecretStr = SecretStr("")
    prefix: str = ""

    def schemas(self, pipeline: str) -> SchemaStore | None:
        """Where a reader stores its source's schemas; None where the sink keeps none."""
        if not self.sink:
            return None
        plug_in: SinkPlugin = plugin("sinks", self.sink)
        if plug_in.server is None:
            return None
        options = orjson.loads(self.secret.get_secret_value())
        server = plug_in.server(settings_from_options(plug_in.settings, options))
        return server.schemas(pipeline, (self.prefix,) if self.prefix else ())


class SourceOptions(Settings):
    """Options of `spark.readStream.format("penstock")`; all others are the feed's settings."""

    # The feed's type, such as `postgres`.
    backend: str
    # `rows`: the change DataFrame. `realtime`: tickets, for penstock's own sink only, whose tasks
    # get pages as they arrive from the page server, and decode them.
    mode: Mode = "rows"
    # How long an epoch of `realtime` is.
    epoch: Duration = 10.0
    # How many task slots the query has; None: enough. With too few, epochs are short, so that all
    # queries and partitions take turns. `penstock run` writes the present number into the run
    # folder instead.
    slots: int | None = Field(default=None, ge=0)
    # Where tasks reach the reader for pages; without a host: a unix socket, on one machine.
    pages: Listening = Listening()
    # How key, before and after are encoded: JSON text, or MessagePack as binary. `text` only as
    # `realtime`: Spark's batches lose the mark of it.
    images: Images = "json"
    # After a change that cannot be decoded the query fails (`stop`), or the change is a row
    # with the operation ERROR. `penstock run` has another default: dead-letter.
    on_error: OnError = "stop"
    # `initial`: a query without a checkpoint has the table's rows first.
    snapshot: Literal["none", "initial"] = "none"
    # Columns of a change that rows have, with commas; empty: all of them.
    columns: str = ""
    # The table whose columns rows have, `schema.table`, of a feed with lines. What becomes of
    # columns that it gets, and of values that do not fit.
    table: str = ""
    on_schema_change: OnSchemaChange = "rest"
    on_misfit: OnMisfit = "FAILFAST"
    # Of `spark.read`: the changes between two positions (`FROM..TO`) in place of rows.
    changes: str = ""
    # Of its rows: an SQL condition; how many seconds their snapshot is held after a use; and bytes
    # of a partition, about.
    where: str = ""
    hold: Duration = Field(300.0, gt=0)
    range_size: Size = Field(32 * 2**20, ge=2**16)
    # How many hash partitions there are; with 1 the column `route` stays null.
    hash_partitions: int = Field(default=1, ge=1, le=1024)
    # Bounds of one micro-batch over all partitions; of each at least one page always passes.
    max_events: int = 50_000
    max_bytes: Size = 16 * 2**20
    # Bytes of the source held in memory; then the source keeps its log.
    buffer: Size = 48 * 2**20
    # A partition is stale when the source's clock moved so many seconds on, and its stream did not.
    max_gap: Duration | None = None
    # Seconds that an idle trigger waits for a first change.
    patience: Duration = 0.5

    # Set by `penstock run`. Names of feeds, with commas, that every worker imports.
    preload: str = ""
    # Where positions are kept; None: in Spark's checkpoint only.
    positions: str | None = None
    pipeline: str = ""
    checkpoint: Checkpoint = Checkpoint()
    # The run folder.
    runtime: str | None = None
    # The query's name there, which no other one of the run has, also not of this backend.
    query: str = ""
    # Where tasks on other hosts report to.
    reports: Reports = Reports()
    target: TargetOptions = TargetOptions()
    # The folder through which changes that cannot be decoded go around the JVM, and the columns
    # that do so, too, with commas.
    side_channel: str = ""
    late: str = ""

    @property
    def limits(self) -> BatchLimits:
        return BatchLimits(self.max_events, self.max_bytes)

    def live_slots(self) -> int | None:
        live = read_task_slots(self.runtime)
        return live if live is not None else self.slots


class SinkOptions(Settings):
    """Options of `df.writeStream.format("penstock")`; all others are the sink's settings."""

    # The sink's type, such as `jetstream`.
    sink: str = "jetstream"
    # Set by `penstock run`. Names of sinks that every worker imports.
    preload: str = ""
    runtime: str | None = None
    # As the source's.
    reports: Reports = Reports()
    side_channel: str = ""
    late: str = ""


# Before the name of a feed's setting that the source has an option of, too (`feed.mode`).
_FEED = "feed."

# Spark adds these to every writer's options.
_SPARKS_OWN = {"checkpointlocation", "path", "queryname"}


def feed_options(settings: Settings) -> dict[str, str]:
    """A feed's settings among the source's options. Reveals secrets."""
    own = SourceOptions.model_fields
    return {
        f"{_FEED}{name}" if name.split(".")[0] in own else name: text
        for name, text in options_from_settings(settings).items()
    }


def read_source(options: Mapping[str, str]) -> tuple[SourceOptions, Feed]:
    """The source's own options and the feed; raises SettingsError that names the nearest key."""
    own, rest = _part(SourceOptions, options)
    source: SourceOptions = settings_from_options(SourceOptions, own)
    if source.mode == "realtime" and source.positions is None:
        raise SettingsError(
            "mode realtime needs a positions store: Spark's checkpoint has no position then",
            "microbatch",
            hint="use penstock run with spark.trigger: realtime, or the option positions",
        )
    if source.snapshot != "none" and (source.mode != "rows" or source.positions is not None):
        raise SettingsError(
            "the option snapshot is for queries whose record is Spark's checkpoint",
            "spark.first-rows",
            hint="in a pipeline file it is snapshot.initial",
        )
    if source.mode != "rows" and source.columns:
        raise SettingsError(
            "tickets have no columns of a change",
            "spark.columns",
            hint="leave the option columns out, or use mode rows",
        )
    if source.mode == "rows" and source.images == "text":
        raise SettingsError(
            "rows have no images of the form text", "microbatch", hint="images: json or msgpack"
        )
    _preload("feeds", source.preload)
    found: FeedPlugin = plugin("feeds", source.backend)
    given = {name.removeprefix(_FEED): text for name, text in rest.items()}
    is_span = not source.changes or ".." in source.changes
    if not is_span and "changes" in found.settings.model_fields:  # a number, of the memory feed
        given["changes"] = source.changes
        source = source.model_copy(update={"changes": ""})
    if source.table and "table" in found.settings.model_fields:
        given = {"table": source.table, **given}
    elif source.table and found.has_lines:
        name = source.table if "." in source.table else f"public.{source.table}"
        if given.setdefault("tables", name) != name:
            raise SettingsError(
                f"the option table is {name}, and the option tables {given['tables']}",
                "spark.table-missing",
                hint="leave tables out: rows have the columns of one table",
            )
        source = source.model_copy(update={"table": name})
    return source, found.feed(settings_from_options(found.settings, given))


def today(source: SourceOptions) -> pa.Schema:
    """The columns of changes (without late columns), or those chosen of them, or of tickets. Raises
    SettingsError for what is no column of a change."""
    if source.mode != "rows":
        return TICKETS
    whole = change_schema(source.images)
    chosen = [name.strip() for name in source.columns.split(",") if name.strip()]
    if not chosen:
        return stub_schema(whole, columns_of(source.late))
    if unknown := sorted(set(chosen) - set(whole.names)):
        raise SettingsError(
            f"a change has no columns {', '.join(unknown)}",
            "spark.columns",
            hint=f"name some of {', '.join(whole.names)}; columns of a table come by the option"
            " table and .schema(...)",
        )
    return pa.schema([field for field in whole if field.name in chosen])


def typed_rows(source: SourceOptions, schema: pa.Schema) -> TypedRows | None:
    """What makes rows of this schema; None where rows are whole changes. Raises SettingsError."""
    if schema.names == today(source).names:
        return ChosenColumns(schema, source.images) if source.columns else None
    if source.columns:
        raise SettingsError(
            "the option columns names columns of a change, and these rows have others",
            "spark.columns",
            hint="leave the option out: .schema(...) says which columns of a table rows have",
        )
    found: FeedPlugin = plugin("feeds", source.backend)
    if not found.has_lines:
        return DocumentRows(schema, source.on_misfit)
    if not source.table:
        raise SettingsError(
            "rows of this schema are of a table",
            "spark.table-missing",
            hint='name it: .option("table", "public.orders")',
        )
    return LineRows(
        table=source.table,
        schema=schema,
        on_schema_change=source.on_schema_change,
        on_misfit=source.on_misfit,
    )


def read_sink(options: Mapping[str, str]) -> tuple[SinkOptions, Sink]:
    """The sink's own options and the sink; raises SettingsError that names the nearest key."""
    own, rest = _part(SinkOptions, options)
    chosen: SinkOptions = settings_from_options(SinkOptions, own)
    _preload("sinks", chosen.preload)
    found = plugin("sinks", chosen.sink)
    return chosen, found.build(settings_from_options(found.settings, rest))


def _preload(kind: str, names: str) -> None:
    for name in filter(None, names.split(",")):
        plugin(kind, name)


def _part(
    model: type[Settings], options: Mapping[str, Any]
) -> tuple[dict[str, str], dict[str, str]]:
    own: dict[str, str] = {}
    rest: dict[str, str] = {}
    for key, value in options.items():
        name = key.lower()
        if name in _SPARKS_OWN:
            continue
        (own if name.split(".")[0] in model.model_fields else rest)[name] = value
    return own, rest
