"""Whether the stream of changes keeps them for long enough to go on after a snapshot.

A consumer loads the chunks, and applies the changes since the snapshot began. Streams that keep
changes for a minute and chunks for days look well, and lose rows: a snapshot that is older than the
oldest change has a hole after it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from penstock.config import Pipeline, SnapshotSettings
from penstock.model.errors import SettingsError
from penstock.model.finding import Finding, failed, finding
from penstock.sinks.server import SinkServer
from penstock.snapshots.followed_tables import sources
from penstock.snapshots.init_stream import InitStream, problems

_NANOSECONDS = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """For how many seconds the two streams keep messages; None: for ever. `is_bounded`: the stream
    of changes has a limit of bytes or messages, or lets acknowledged ones go. `of_subject`: it
    keeps so many messages of a subject, and no reader notices that those before are gone."""

    stream: str
    changes: float | None
    chunks: float | None
    is_bounded: bool = False
    of_subject: int = 0

    @classmethod
    def of(
        cls, stream: str, changes: Mapping[str, Any] | None, chunks: Mapping[str, Any] | None
    ) -> "Kept":
        """The times of streams with these configurations; for ever where there is none."""
        config = changes or {}
        refuses = config.get("discard") == "new" and config.get("discard_new_per_subject")
        bounded = any(config.get(key, -1) > 0 for key in ("max_bytes", "max_msgs"))
        return cls(
            stream=stream,
            changes=_seconds(changes),
            chunks=_seconds(chunks),
            is_bounded=bounded or config.get("retention", "limits") != "limits",
            of_subject=0 if refuses else max(config.get("max_msgs_per_subject", 0), 0),
        )

    def refuse(self, max_age: float) -> None:
        """Raises SettingsError where changes are gone before a snapshot that takes `max_age`
        seconds, and as long to load, can be followed by them."""
        if self.of_subject:
            raise SettingsError(
                f"the stream {self.stream} keeps only {self.of_subject} messages of a subject:"
                " changes after a snapshot are gone, and rows stay wrong without an error",
                "snapshots.retention-short",
                hint=f"nats stream edit {self.stream} --max-msgs-per-subject=-1, and limit max_age",
            )
        if self.changes is not None and self.changes < 2 * max_age:
            raise SettingsError(
                f"the stream {self.stream} keeps changes for {_text(self.changes)}: when a snapshot"
                f" is loaded, the changes after it are gone, and rows stay wrong without an error",
                "snapshots.retention-short",
                hint=f"keep them for {_text(2 * max_age)} at least (snapshot.max_age, and as long"
                f" to load): nats stream edit {self.stream} --max-age, and sink.max_age; or lower"
                " snapshot.max_age",
            )

    def findings(self, max_age: float, *, needed: bool = True) -> list[Finding]:
        """What `refuse` raises, as findings (a warning where no snapshot is `needed`), and what may
        lead to it later."""
        about = f"stream {self.stream}: snapshots"
        try:
            self.refuse(max_age)
        except SettingsError as error:
            return [
                failed(about, error) if needed else replace(failed(about, error), level="warning")
            ]
        if self.changes is not None and (self.chunks is None or self.chunks > self.changes):
            kept = "for ever" if self.chunks is None else f"for {_text(self.chunks)}"
            text = (
                f"changes are kept for {_text(self.changes)}, chunks of snapshots {kept}: an old"
                " snapshot cannot be followed by its changes any more"
            )
            remedy = (
                "keep chunks no longer than changes (nats stream edit INIT --max-age), or have"
                " consumers ask for a new snapshot"
            )
            return [finding("warning", about, text, remedy, code="snapshots.chunks-outlast")]
        if self.is_bounded:
            text = (
                "its limits, or acknowledgements, may take changes away before a snapshot is loaded"
            )
            remedy = f"leave room for what is written within {_text(2 * max_age)}"
            return [finding("warning", about, text, remedy, code="snapshots.stream-bounded")]
        return [finding("ok", about, "changes outlast a snapshot")]


def refusal(stream: InitStream, sink: SinkServer, settings: SnapshotSettings) -> str:
    """Why each request would be refused now; "" if it is not. Raises Unavailable, SettingsError."""
    changes, chunks = stream.config(sink.stream) or sink.limits, stream.config(settings.stream)
    try:
        Kept.of(sink.stream, changes, chunks).refuse(settings.max_age)
    except SettingsError as error:
        return str(error)
    return ""


def check_snapshots(pipeline: Pipeline) -> Sequence[Finding]:
    """Nothing where the pipeline takes no snapshots. Raises Unavailable, SettingsError."""
    sink, settings = pipeline.sink.server(), pipeline.snapshot
    if sink is None or not sources(pipeline):
        return []
    with InitStream(sink.nats, settings.stream, lambda: True) as stream:
        changes, chunks = stream.config(sink.stream), stream.config(settings.stream)
    unfit = [
        finding(
            "error", f"stream {settings.stream}", problem, remedy, code="snapshots.stream-unfit"
        )
        for problem, remedy in (problems(settings.stream, chunks) if chunks else ())
    ]
    return [
        *unfit,
        *Kept.of(sink.stream, changes or sink.limits, chunks).findings(
            settings.max_age, needed=pipeline.needs_snapshots
        ),
    ]


def _seconds(config: Mapping[str, Any] | None) -> float | None:
    age = (config or {}).get("max_age", 0)
    return age / _NANOSECONDS if age else None


def _text(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
