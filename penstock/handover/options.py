"""What the Spark source and sink understand as options, besides the feed's or sink's own settings.

Option names are those of the pipeline file, flattened with dots (`batch.max_size`).
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from penstock.change import Images, OnError
from penstock.config import Checkpoint, settings_from_options
from penstock.errors import SettingsError
from penstock.feeds import Feed
from penstock.plugins import plugin
from penstock.settings import Duration, Settings, Size
from penstock.sinks import Sink

__all__ = ["Mode", "SinkOptions", "SourceOptions", "read_sink", "read_source"]


Mode = Literal["rows", "packed", "realtime"]


class SourceOptions(Settings):
    """Options of `spark.readStream.format("penstock")`; all others are the feed's settings."""

    # The feed's type, such as `postgres`.
    backend: str
    # `rows`: the change DataFrame. For penstock's own sink only, whose tasks get the pages from the
    # planner and decode them: `packed` (a micro-batch at a time) and `realtime` (as they come).
    mode: Mode = "rows"
    # How long an epoch of `realtime` is.
    epoch: Duration = 10.0
    # How many tasks of this query Spark runs at a time; None: as many as there are partitions. With
    # fewer, epochs are short, so that every partition (or query) has its turn.
    slots: int | None = Field(default=None, ge=0)
    # Where executors reach the planner: the driver's host; empty: by a unix socket, on one machine.
    outlet: str = ""
    # How key, before and after are encoded: JSON text, or MessagePack as binary.
    images: Images = "json"
    # What becomes of a change that cannot be decoded: with `stop` the query fails; otherwise it is
    # a row with the operation ERROR. `penstock run` has another default: dead-letter.
    on_error: OnError = "stop"
    # Bounds of one micro-batch and partition; at least one page always passes.
    max_events: int = 50_000
    max_bytes: Size = 16 * 2**20
    # Bytes of the source held in memory; then the source keeps its log.
    buffer: Size = 48 * 2**20
    # Seconds that an idle trigger waits for a first change.
    patience: Duration = 0.5

    # Set by `penstock run`. Feeds by name, with commas, that a worker shall have imported.
    preload: str = ""
    # Where positions are kept; None: in Spark's checkpoint only.
    positions: str | None = None
    pipeline: str = ""
    checkpoint: Checkpoint = Checkpoint()
    # The folder through which the service and this source talk: the board's socket, a stop file.
    runtime: str | None = None
    # The columns that go around the JVM, with commas, and the folder that they go through.
    late: str = ""
    depot: str = ""


class SinkOptions(Settings):
    """Options of `df.writeStream.format("penstock")`; all others are the sink's settings."""

    # The sink's type, such as `jetstream`.
    sink: str = "jetstream"
    # Set by `penstock run`. Sinks by name that a worker shall have imported.
    preload: str = ""
    runtime: str | None = None
    # As the source's.
    late: str = ""
    depot: str = ""


# Spark adds these to every writer's options.
_SPARKS_OWN = {"checkpointlocation", "path", "queryname"}


def read_source(options: Mapping[str, str]) -> tuple[SourceOptions, Feed]:
    """The source's own options and the feed; raises SettingsError that names the nearest key."""
    own, rest = _part(SourceOptions, options)
    source: SourceOptions = settings_from_options(SourceOptions, own)
    if source.mode == "realtime" and source.positions is None:
        raise SettingsError(
            "mode realtime needs a positions store: Spark's checkpoint has no position then",
            hint="use penstock run with spark.trigger: realtime, or the option positions",
        )
    _preload("feeds", source.preload)
    found = plugin("feeds", source.backend)
    return source, found.build(settings_from_options(found.settings, rest))


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
