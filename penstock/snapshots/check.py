"""Preflight of snapshots: whether the stream of changes outlasts them."""

from collections.abc import Sequence

from penstock.config import Pipeline
from penstock.model.finding import Finding
from penstock.sinks.jetstream.settings import JetStreamSettings
from penstock.snapshots.followed_tables import sources
from penstock.snapshots.init_stream import InitStream, problems
from penstock.snapshots.retention import Kept


def check_snapshots(pipeline: Pipeline) -> Sequence[Finding]:
    """Nothing where the pipeline takes none. Does I/O; raises Unavailable, SettingsError."""
    sink, settings = pipeline.sink.settings, pipeline.snapshot
    if not isinstance(sink, JetStreamSettings) or not sources(pipeline):
        return []
    with InitStream(sink, settings.stream, lambda: True) as stream:
        changes, chunks = stream.config(sink.stream), stream.config(settings.stream)
    # As the stream will be made.
    to_be = {"max_age": sink.max_age * 10**9, "max_bytes": sink.max_bytes or -1}
    unfit = [
        Finding(level="error", subject=f"stream {settings.stream}", message=problem, remedy=remedy)
        for problem, remedy in (problems(settings.stream, chunks) if chunks else ())
    ]
    return [*unfit, *Kept.of(sink.stream, changes or to_be, chunks).findings(settings.max_age)]
