"""The data source `penstock`: adapters of PySpark's Python Data Source API.

What Spark forces: `streamReader()` is also built only to be pickled, and the reader is pickled to
executors, so constructors do no I/O and the adapter pickles as its options. The reader, the tasks
and the count of receipts run in different processes; only offsets, splits and receipts cross.
"""

import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType
from pyspark.version import __version__ as spark_version

from penstock.batch import reading
from penstock.microbatch.late import Attempt
from penstock.microbatch.options import BatchLimits, read_sink, read_source, today, typed_rows
from penstock.microbatch.source import Source
from penstock.microbatch.task import (
    commit_receipts,
    freeze_garbage,
    read_split,
    require_columns,
    write_changes,
)
from penstock.microbatch.ticket import Part
from penstock.model.errors import SettingsError
from penstock.typed.columns import schema_of

try:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        InputPartition,
        WriterCommitMessage,
    )
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError as error:
    # Before 4.2 Spark asks for an offset without telling which one is durable.
    raise SettingsError(
        f"penstock needs Spark 4.2 or 4.3, this is PySpark {spark_version}",
        "spark.version",
        hint="install pyspark>=4.2,<4.4, and the same Spark on the cluster",
    ) from error

if TYPE_CHECKING:
    from penstock.sinks import Receipt


def register(spark: SparkSession) -> None:
    """Makes `format("penstock")` known to a session; PySpark's auto-discovery does it as well."""
    spark.dataSource.register(PenstockDataSource)


_print = traceback.print_exc
_DAEMON = "manager"  # the function of `pyspark.daemon` that a fork runs in


def end_quietly() -> None:
    """From now on PySpark's daemon prints no traceback for a fork whose connection Spark closes
    when it stops. (Spark's setting for another daemon does not hold for sources and sinks.)"""
    traceback.print_exc = _print_unless_closed


def _print_unless_closed(*given: Any, **more: Any) -> None:
    error = sys.exception()
    trace = error.__traceback__ if isinstance(error, ConnectionError) else None
    if trace is None or trace.tb_frame.f_code.co_name != _DAEMON:
        _print(*given, **more)


# All of Spark's Python processes for penstock import this module.
end_quietly()


class PenstockDataSource(DataSource):
    """`format("penstock")`: a change feed to read, a sink to write. See docs/reference."""

    @classmethod
    def name(cls) -> str:
        return "penstock"

    def schema(self) -> StructType:
        """The columns of a change (without late columns), of tickets, or of a table."""
        if (table := reading.table_of(self.options)) is not None:
            return from_arrow_schema(schema_of(table), prefer_timestamp_ntz=True)
        return from_arrow_schema(today(read_source(self.options)[0]))

    def streamReader(self, schema: StructType) -> "StreamReader":
        """Plans in the reader process and reads in tasks."""
        return StreamReader(dict(self.options), to_arrow_schema(schema, timezone="UTC"))

    def reader(self, schema: StructType) -> "RowsReader":
        """Plans in a planner process and reads in tasks."""
        return RowsReader(dict(self.options), to_arrow_schema(schema, timezone="UTC"))

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":
        """Tasks write, the driver commits. Raises SettingsError for a DataFrame not of changes."""
        require_columns(schema.names, self.options)
        return StreamWriter(dict(self.options))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Delegates to a `Source` (in the reader process) and to `read_split` (in tasks)."""

    def __init__(self, options: dict[str, str], schema: pa.Schema) -> None:
        source, _ = read_source(options)
        if source.where or source.changes:
            raise SettingsError(
                f"the option {'where' if source.where else 'changes'} is for spark.read: a stream"
                " has all changes of its tables",
                "spark.no-selection",
                hint="filter the DataFrame, or give the publication a row filter",
            )
        self._limits = source.limits
        self._options, self._schema = options, schema
        self._typed = typed_rows(source, schema)
        self._source: Source | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return StreamReader, (self._options, self._schema)

    @property
    def source(self) -> Source:
        """The reader process's side, made at first use."""
        if self._source is None:
            reading.verify(self._options, self._schema)
            self._source = Source.open(self._options)
        return self._source

    def initialOffset(self) -> dict[str, str]:
        """Where a query without a checkpoint begins."""
        return self.source.initial()

    def latestOffset(self, start: dict[str, str], limit: ReadLimit) -> dict[str, str]:
        """The end of the next micro-batch; `start` is durable in the sink."""
        return self.source.latest(start, _limits(limit, self._limits))

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._limits.events)

    def prepareForTriggerAvailableNow(self) -> None:
        self.source.end_by_itself()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """What `lastProgress` shows of the source's log, and how much of it is not durable yet."""
        return self.source.newest() or None

    def partitions(self, start: dict[str, str], end: dict[str, str]) -> Sequence[InputPartition]:
        return [Planned(each) for each in self.source.splits(start, end)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task: changes, or the ticket as it is."""
        assert isinstance(partition, Planned)
        return read_split(self._options, partition.part, _this_attempt(), self._typed)

    def stop(self) -> None:
        """Stops reading. Spark may end the process without this call."""
        if self._source is not None:
            self._source.stop()


class RowsReader(DataSourceReader):
    """Delegates to `batch.reading`. It pushes no filters: Spark 4.3 would give the rows of one
    filter to other uses of the DataFrame."""

    def __init__(self, options: dict[str, str], schema: pa.Schema) -> None:
        typed_rows(read_source(options)[0], schema)  # raises for types that no row has
        self._options, self._schema = options, schema

    def partitions(self) -> Sequence[InputPartition]:
        return [PlannedRows(each) for each in reading.plan(self._options, self._schema)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In a task. Where there are no ranges, Spark makes a partition of its own."""
        if isinstance(partition, PlannedRows):
            yield from reading.read(self._options, partition.part, self._schema, _this_attempt())


@dataclass
class PlannedRows(InputPartition):
    """A range of a table, or a span of changes, on its way to a task."""

    part: reading.BatchPart


def _limits(limit: ReadLimit, limits: BatchLimits) -> BatchLimits:
    """What Spark asks for, within what the options say. Raises SettingsError for all at once."""
    if isinstance(limit, ReadAllAvailable):
        raise SettingsError(
            "trigger(once=True) asks for all changes in one micro-batch, however many there are",
            "spark.once",
            hint="use trigger(availableNow=True), which takes them in micro-batches and ends",
        )
    if isinstance(limit, ReadMaxRows):
        return limits._replace(events=limit.max_rows)
    return limits._replace(size=limit.max_bytes) if isinstance(limit, ReadMaxBytes) else limits


@dataclass
class Planned(InputPartition):
    """A part of a micro-batch on its way to a task."""

    part: Part


def _this_attempt() -> Attempt:
    if (context := TaskContext.get()) is None:
        return Attempt(stage=0, number=0, is_first=True)
    return Attempt(
        stage=context.stageId(), number=context.taskAttemptId(), is_first=context.partitionId() == 0
    )


@dataclass
class Committed(WriterCommitMessage):
    """A task's receipt on its way to the driver."""

    receipt: "Receipt"


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: dict[str, str]) -> None:
        read_sink(options)
        freeze_garbage()
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Committed:  # type: ignore[override]
        """In a task: gets the pages of tickets, decodes them, and stores every change."""
        return Committed(write_changes(self._options, iterator, _this_attempt()))

    def commit(self, messages: list[Any], batchId: int) -> None:
        """In the driver's commit process, after every task wrote."""
        receipts = [message.receipt for message in messages if message is not None]
        commit_receipts(self._options, receipts)
