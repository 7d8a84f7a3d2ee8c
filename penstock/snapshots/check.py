"""Preflight of snapshots: whether the stream of changes outlasts them."""

from collections.abc import Sequence

from penstock.config import Pipeline
from penstock.model.finding import Finding
from penstock.snapshots.followed_tables import sources
from penstock.snapshots.init_stream import InitStream, problems
from penstock.snapshots.retention import Kept


def check_snapshots(pipeline: Pipeline) -> Sequence[Finding]:
    """Nothing where the pipeline takes none. Does I/O; raises Unavailable, SettingsError."""
    sink, settings = pipeline.sink.server(), pipeline.snapshot
    if sink is None or not sources(pipeline):
        return []
    with InitStream(sink.nats, settings.stream, lambda: True) as stream:
        changes, chunks = stream.config(sink.stream), stream.config(settings.stream)
    unfit = [
        Finding(level="error", subject=f"stream {settings.stream}", message=problem, remedy=remedy)
        for problem, remedy in (problems(settings.stream, chunks) if chunks else ())
    ]
    return [
        *unfit,
        *Kept.of(sink.stream, changes or sink.limits, chunks).findings(settings.max_age),
    ]
