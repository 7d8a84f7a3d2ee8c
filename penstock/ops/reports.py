"""What is reported of a pipeline: a frozen type for each kind of report.

A field is declared once: what it means, how its reports are merged, how it adds up over partitions
and backends, and its series. The board, /status and its schema, /metrics, the METRICS line and the
manual's tables are derived from that. An unknown field is a TypeError where it is reported.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from math import inf
from typing import Any, ClassVar, Literal, NamedTuple, Self

Over = Literal["", "sum", "max"]


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What is known of one field.

    `series`: its name, without `penstock_` and `_total`; `counter`: its type; `label`: what the
    keys of a mapping are, or the text itself; `states`: all that the text may be. `merge`: "latest"
    value; "count": each process reports its own, and the board adds them up; "keys": the latest of
    each key. `over`: how it adds up over partitions and backends; `line`: it is in the METRICS
    line; `rated`: it is what is done of a thing, of which the board knows the rate;
    `chart`: what /history calls it.
    """

    what: str
    series: str = ""
    counter: bool = False
    label: str = ""
    states: tuple[str, ...] = ()
    merge: Literal["latest", "count", "keys"] = "latest"
    over: Over = ""
    line: bool = False
    rated: bool = False
    chart: str = ""


def told(default: Any, what: str, **more: Any) -> Any:
    """A field of a report; `...` for one without a default, a type for an empty one."""
    about = {"about": About(what=what, **more)}
    if isinstance(default, type):
        return field(default_factory=default, metadata=about)
    return field(default=MISSING if default is ... else default, metadata=about)


def counted(default: Any, what: str, **more: Any) -> Any:
    """A counter, of each process for itself; a mapping has one for each key."""
    return told(default, what, counter=True, merge="count", over="sum", **more)


_known: dict[type[Any], Mapping[str, About]] = {}


def described(kind: type[Any]) -> Mapping[str, About]:
    """The fields that are told of, by name."""
    if kind not in _known:
        _known[kind] = {one.name: one.metadata["about"] for one in fields(kind) if one.metadata}
    return _known[kind]


def together(over: Over, values: Iterable[Any]) -> Any:
    """The sum, or the highest, of those that are known. Pure."""
    known = [value for value in values if value is not None]
    return sum(known) if over == "sum" else max(known, default=None)


class StatusReport:
    """What one process says of one thing. Fields that it does not name stay as they were: `named`
    has those that it does.

    Not slotted: the status of a backend inherits from several. `expires`: seconds without a report
    after which the thing has gone. `of_backend`: its name is that of a backend, or begins with it;
    `has_rows`: a backend has many, named BACKEND/KEY. `is_kept`: the board merges it, or else only
    passes it on.
    """

    kind: ClassVar[str]
    expires: ClassVar[float] = inf
    of_backend: ClassVar[bool] = True
    has_rows: ClassVar[bool] = False
    is_kept: ClassVar[bool] = True
    named: Mapping[str, Any]

    def __new__(cls, **named: Any) -> Self:
        """Also notes which fields were named."""
        made = super().__new__(cls)
        object.__setattr__(made, "named", named)
        return made


@dataclass(frozen=True, kw_only=True)
class ProcessReport(StatusReport):
    """Of all workers of the pipeline, and of the service."""

    kind = "process"
    of_backend = False

    unknown_types: Mapping[str, int] = counted(dict, "Types whose values are delivered as text.")
    notifications: Mapping[str, int] = counted(dict, "As in the status.")


@dataclass(frozen=True, kw_only=True)
class QueryReport(StatusReport):
    """Of a backend, by what runs its query."""

    kind = "query"

    begun: bool = told(False, "Its start succeeded, and its query may run.")
    blocked: str = told("", "Why the backend stands still until an operator acts.")
    paused: Mapping[str, str | None] | None = told(
        None, "A pause: since when, by whom, until when; null while the backend takes changes."
    )
    restarts: int = told(0, "Restarts of the backend's query.", series="restarts", counter=True)
    last_error: str = told("", "What failed last.")


@dataclass(frozen=True, kw_only=True)
class ReadingReport(StatusReport):
    """What a partition and a backend both have."""

    current: str | None = told(None, "The source's newest place, as the source writes it.")
    confirmed: str | None = told(None, "The acknowledged place of the source.")
    buffered_events: int = told(
        0, "Changes in the buffer.", series="buffered_events", over="sum", line=True
    )
    buffered_bytes: int = told(
        0, "Bytes in the buffer.", series="buffered_bytes", over="sum", chart="buffered_bytes"
    )
    lag_bytes: int | None = told(
        None, "Log that is not confirmed yet: alert when it grows.",
        series="lag_bytes", over="sum", line=True, chart="lag_bytes",
    )  # fmt: skip
    lag_seconds: float | None = told(
        None, "How far the stored changes are behind the source: alert when it grows.",
        series="lag_seconds", over="max", line=True, chart="lag_seconds",
    )  # fmt: skip
    window_seconds: float | None = told(
        None, "How far the source's history reaches back.", series="window_seconds"
    )
    window_left_seconds: float | None = told(
        None, "How long the stored position stays in the source's history: alert when it falls.",
        series="window_left_seconds", chart="window_left_seconds",
    )  # fmt: skip
    window_bytes: int | None = told(
        None, "The most log that the source keeps for the reader.", series="window_bytes"
    )
    window_left_bytes: int | None = told(
        None, "How much more log the source can write until it gives the reader up: alert when"
        " it falls.", series="window_left_bytes", chart="window_left_bytes",
    )  # fmt: skip
    at_risk: str = told("", "Why changes may soon be lost, and the remedy.")
    last_error: str = told("", "What failed last.")
    reader: str | None = told(None, "The reader, as the source names it.")
    details: Mapping[str, Any] = told(
        dict, "Details in the source's terms. Those of a single partition are in its backend."
    )


@dataclass(frozen=True, kw_only=True)
class SourceReport(ReadingReport):
    """Of a backend, by what reads it. Numbers are sums over its partitions."""

    kind = "source"

    connected: bool = told(False, "Whether the source is connected.", series="connected")
    lag: Mapping[str, float] = told(
        dict, "What the source has that is not durable yet, in the source's unit: bytes, changes.",
        series="lag", label="unit",
    )  # fmt: skip
    events: int = counted(
        0, "Changes read from the source.", series="events", line=True, rated=True, chart="read"
    )
    pages: int = counted(0, "Pages of changes read from the source.", series="pages")
    batches: int = counted(0, "Micro-batches planned.", series="batches")
    reconnects: int = counted(
        0, "Connections to the source made anew.", series="reconnects", line=True
    )
    buffer_percent: float | None = told(
        None, "How full the buffer is, in percent.", series="buffer_percent"
    )
    partition_count: int = told(0, "The number of partitions.")
    partition_states: Mapping[str, int] = told(
        dict, "Partitions, by state: reading, disconnected, waiting, ended.",
        series="partitions", label="state",
    )  # fmt: skip
    source_state: str = told(
        "", "What is wrong with the source as a whole: disabled, throttled, behind, unknown_types,"
        " tables_left_out, or nothing.",
    )  # fmt: skip
    source_message: str = told("", "`source_state` as a sentence.")
    detail_series: Sequence[str] = told(tuple, "The names of numbers in `details` that are series.")
    stopped: bool = told(False, "Whether all is saved and reading has ended.")
    host: str | None = told(None, "For a processor: its name among the hosts.")
    leases: int | None = told(None, "For a processor: partitions of all hosts.")
    hosts: Mapping[str, int] = told(
        dict, "For a processor: how many leases of partitions each host has."
    )
    unowned: int | None = told(None, "For a processor: partitions without a live host.")
    observer_errors: int | None = told(None, "For a processor: batches that its observer failed.")
    set_aside: int | None = told(None, "For a processor: changes that it set aside.")


@dataclass(frozen=True, kw_only=True)
class PartitionReport(ReadingReport):
    """Of one partition, by what reads it."""

    kind = "partition"
    expires = 60.0
    has_rows = True

    state: str = told("reading", "reading, disconnected, waiting, ended.")
    place: str | None = told(None, "The last durable place.")
    lag: float | None = told(None, "What the source has after `place`, in `lag_unit`.")
    lag_unit: str | None = told(None, "bytes or changes.")
    connected: bool = told(False, "Whether there is a connection to the source.")
    reconnects: int = told(0, "Connections that the present reader made anew.")
    throttled: bool = told(
        False, "Whether the source refused the last call, because there were too many."
    )


@dataclass(frozen=True, kw_only=True)
class MeasureReport(StatusReport):
    """Of a backend, by all that measure."""

    kind = "measure"

    positions_error: str = told("", "Why positions cannot be saved now.")
    saved: int = counted(0, "Times that positions were saved.", series="checkpoints")
    save_errors: int = counted(
        0, "Times that positions could not be saved: alert on it.", series="checkpoint_errors"
    )
    histograms: Mapping[str, Any] = counted(
        dict, "As in the metrics: `buckets` and `sum`, by name."
    )


@dataclass(frozen=True, kw_only=True)
class BatchReport(StatusReport):
    """Of a backend's last micro-batch, by its reader and by what runs its query."""

    kind = "batch"

    id: int = told(-1, "Spark's number; -1 before the first.")
    rows: int = told(0, "Rows of the last micro-batch.", series="batch_rows")
    timings: Mapping[str, float] = told(dict, "Spark's phases in milliseconds.")


@dataclass(frozen=True, kw_only=True)
class GapReport(StatusReport):
    """What a partition has lost, by what reads it."""

    kind = "gap"
    has_rows = True

    stale: bool = told(
        False, "1 while a partition has lost changes and is not marked as mended: alert on it.",
        series="partition_stale",
    )  # fmt: skip
    counts: Mapping[str, int] = told(
        dict, "All gaps in the changes of a partition, by cause.",
        series="gaps", counter=True, label="cause",
    )  # fmt: skip
    gaps: Sequence[Mapping[str, Any]] = told(tuple, "The latest gaps.")


@dataclass(frozen=True, kw_only=True)
class SnapshotsReport(StatusReport):
    """Of a backend's snapshots since the start, by the service."""

    kind = "snapshots"

    runs: Mapping[str, int] = told(
        dict, "Snapshots of tables that ended: done, failed, cancelled.",
        series="snapshot_runs", counter=True, label="state",
    )  # fmt: skip
    chunks: int = told(0, "Chunks of snapshots stored.", series="snapshot_chunks", counter=True)
    rows: int = told(0, "Rows of snapshots stored.", series="snapshot_rows", counter=True)
    bytes: int = told(0, "Bytes of chunks stored.", series="snapshot_bytes", counter=True)
    current: Sequence[Mapping[str, Any]] = told(
        tuple, "For each running snapshot: `snapshot_id`, `table`, `state`, `waiting` (for which"
        " process of the server, and the start of that transaction; or for the pipeline to"
        " follow its source), `ranges` and how many are `done`, `chunks`, `rows`, `bytes`,"
        " `bytes_per_second`, `seconds_left`.",
    )  # fmt: skip
    last: Mapping[str, Mapping[str, Any]] = told(
        dict, "The last snapshot of each table that ended: `snapshot_id`, `state`, `rows`, `at`."
    )
    refusal: str = told("", "Why the pipeline refuses all snapshots; empty: it takes them.")


LEVELS = ("normal", "slow", "critical")


@dataclass(frozen=True, kw_only=True)
class SinkReport(StatusReport):
    """Of a sink, by all that write to it. With several backends, states are those of the writer
    that reported last."""

    kind = "sink"
    of_backend = False

    connected: bool | None = told(None, "Whether the sink is connected.", series="sink_connected")
    delivery: str | None = told(
        None, "exactly-once, deduplicated; `details.reason` has the reason."
    )
    durability: str | None = told(None, "What an acknowledgement of the server promises.")
    published: int = counted(0, "Changes sent to the sink.", series="published", line=True)
    acknowledged: int = counted(
        0, "Changes that the sink has stored.", series="acknowledged", line=True, rated=True,
        chart="stored",
    )  # fmt: skip
    duplicates: int = counted(0, "Changes that were stored before.", series="duplicates")
    bytes: int = counted(0, "Bytes of changes sent.", series="sink_bytes")
    batches: int = counted(0, "Batches of messages sent.")
    resent: int = counted(0, "Messages sent again.")
    dead_letters: Mapping[str, int] = counted(
        dict, "Changes set aside, by reason; see Poison.", series="dead_letters", label="reason"
    )
    errors: int = counted(0, "Refusals and failures of the sink.", series="sink_errors", line=True)
    reconnects: int = counted(0, "Connections to the sink made anew.", series="sink_reconnects")
    attempts: int = told(0, "Retries of what failed last.")
    last_error: str = told("", "What failed last.")
    latency_p50_ms: float | None = told(
        None, "Median from the commit at the source to the acknowledgement, lately.",
        chart="latency_p50_ms",
    )  # fmt: skip
    latency_p99_ms: float | None = told(
        None, "The 99th percentile of the same.", chart="latency_p99_ms"
    )
    answer_ms: float | None = told(
        None, "The longest time of an answer of the sink's server, lately.",
        series="sink_answer_seconds",
    )  # fmt: skip
    pressure: str | None = told(
        None, "Back-pressure: normal, slow, critical. The series is 1 for the current state."
        " Alert on critical.",
        series="sink_pressure_state", label="state", states=LEVELS,
    )  # fmt: skip
    pressure_reason: str = told("", "Why back-pressure is in this state.")
    pressure_transitions: int = counted(
        0, "Changes of the back-pressure's state.", series="sink_pressure_transitions"
    )
    pressure_entered: Mapping[str, int] = counted(
        dict, "Times that back-pressure entered a level.",
        series="sink_pressure_events", label="level",
    )  # fmt: skip
    breaker: str | None = told(
        None, "Circuit breaker: closed, open, half-open. The series is 1 for the current state."
        " Alert on open.",
        series="sink_breaker_state", label="state", states=("closed", "open", "half-open"),
    )  # fmt: skip
    breaker_reason: str = told("", "Why the circuit breaker is in this state.")
    breaker_transitions: int = counted(
        0, "Changes of the circuit breaker's state.", series="sink_breaker_transitions"
    )
    breaker_entered: Mapping[str, int] = counted(
        dict, "Times that the circuit breaker entered a state."
    )
    commits: Mapping[str, int] = counted(
        dict, "Transactions that each worker of a sink of tables committed.",
        series="sink_commits", label="worker",
    )  # fmt: skip
    commit_seconds: Mapping[str, float] = counted(dict, "The time that these commits took.")
    histograms: Mapping[str, Any] = counted(
        dict, "As in the metrics: `buckets` and `sum`, by name."
    )
    details: Mapping[str, Any] = told(dict, "Details in the sink's terms.", merge="keys")


@dataclass(frozen=True, kw_only=True)
class TableStatus(StatusReport):
    """Of a table. None: not known."""

    kind = "table"
    of_backend = False

    backend: str = told("", "Its backend.")
    sid: str | None = told(None, "In a sink of tables: the source's name, or its slot.")
    table: str = told("", "Its name at the source.")
    target: str | None = told(None, "In a sink of tables: its target.")
    state: str = told(
        "", "following, suspended, resuming. In a sink of tables loading (its rows are loaded, or"
        " changes that came meanwhile are applied), live, waiting (for what `error` says),"
        " suspended (`on_error` does not let it pass a refused row or change), left (the map)."
        " Alert on waiting and suspended.", series="table_state", label="state",
    )  # fmt: skip
    reason: str | None = told(
        "", "Why the table is suspended: unfit, refused, unsent-value, changed and others."
    )
    error: str | None = told("", "What failed, or the remedy.")
    since: str | None = told("", "When the table entered its state.")
    place: str | None = told(None, "The last durable place.")
    lag_seconds: float | None = told(
        None, "The time between the commits of the last change at the source and in the target.",
        series="table_lag_seconds",
    )  # fmt: skip
    ignored: Sequence[str] | None = told(None, "Columns of the source that the target lacks.")
    rows_loaded: int | None = told(None, "Rows that the load has read.", series="table_rows_loaded")
    rows_to_come: int | None = told(
        None, "About how many rows the load must still read.", series="table_rows_to_come"
    )
    applied: Mapping[str, int] | None = counted(
        None, "Changes stored in the sink, by operation. Sinks without tables count the"
        " 200 busiest tables of a backend by name, and all others as `other`.",
        series="table_changes", label="operation", rated=True,
    )  # fmt: skip
    rate: float | None = told(None, "Changes a second, lately.")
    last_change_seconds: float | None = told(
        None, "The time since a change of the table was stored."
    )
    letters: int | None = counted(None, "Rows and changes set aside.", series="table_dead_letters")
    held: int | None = told(None, "Changes that wait in the ledger.", series="table_held")
    skipped: int | None = told(None, "Changes that are missing in the sink.")
    first_skipped: str | None = told(None, "The place of the first skipped or held change.")
    last_skipped: str | None = told(None, "The place of the last skipped or held change.")
    version: int | None = told(None, "The version of a Delta table after penstock's last commit.")
    files: int | None = told(None, "Files of a Delta table at this version.", series="table_files")
    bytes: int | None = told(None, "Bytes of these files.", series="table_bytes")
    nulled: Sequence[str] | None = told(
        None, "Columns of a Delta table that are null for values that their type cannot hold."
    )
    last_commit: str | None = told(None, "When penstock last committed to a Delta table.")

    @property
    def name(self) -> str:
        return "/".join(filter(None, (self.backend, self.sid, self.table)))

    def to_json(self) -> dict[str, Any]:
        found = ((name, getattr(self, name)) for name in described(TableStatus))
        return {name: value for name, value in found if value is not None}


class StoredBatch(NamedTuple):
    """A page that is stored. Times are nanoseconds since 1970 UTC: read from the source, handed to
    a task, decoded, stored."""

    partition: str
    place: str
    changes: int
    captured: int
    handed: int
    decoded: int
    stored: int


@dataclass(frozen=True, kw_only=True)
class SpansReport(StatusReport):
    """Of a backend, for spans: what a task stored, what its reader saved, or Spark's last
    micro-batch of rows."""

    kind = "spans"
    is_kept = False

    stored: Sequence[Sequence[Any]] = told(tuple, "The fields of each `StoredBatch`.")
    saved: Mapping[str, str] = told(dict, "Partition to place.")
    began: int = told(0, "When the save began, in nanoseconds since 1970 UTC.")
    ended: int = told(0, "When it ended.")
    micro_batch: Mapping[str, Any] = told(dict, "`id`, and Spark's `timings` in milliseconds.")


KINDS: Mapping[str, type[StatusReport]] = {
    each.kind: each
    for each in (
        ProcessReport, QueryReport, SourceReport, PartitionReport, MeasureReport, BatchReport,
        GapReport, SnapshotsReport, SinkReport, TableStatus, SpansReport,
    )
}  # fmt: skip
