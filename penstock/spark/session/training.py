"""Makes the archive of classes without a pipeline: `python -m penstock.spark.session.training`.

For an image of a container, and before a run of many short sessions (a test suite): a session
that loads what every pipeline does, by one batch from a Python source to a Python sink.
"""

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import ReadLimit

from penstock.spark.session.launch import archive_of
from penstock.spark.session.session import close_session, open_session

__all__ = ["train"]


class Exercise(DataSource):
    """A source of one row and a sink that forgets it."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "exercise"

    def schema(self) -> str:
        """One column."""
        return "row binary"

    def streamReader(self, schema: Any) -> "TrainingReader":
        """The planner's side."""
        return TrainingReader()

    def streamWriter(self, schema: Any, overwrite: bool) -> "Writer":
        """The tasks' side."""
        return Writer()


class TrainingReader(DataSourceStreamReader):
    """Says once that there is a row."""

    def initialOffset(self) -> dict[str, int]:
        """Before it."""
        return {"row": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Behind it."""
        return {"row": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """One."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The row."""
        yield pa.RecordBatch.from_pydict({"row": [b"row"]})


class Writer(DataSourceStreamArrowWriter):
    """Reads what it gets."""

    def write(  # type: ignore[override]
        self, iterator: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        """Nothing to commit."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


def train() -> None:
    """Returns when the archive is made, or when there is nothing to do or no place to keep it."""
    archive = archive_of(os.environ)
    if archive is None or archive.path is not None:
        return
    with tempfile.TemporaryDirectory(prefix="penstock-training-") as folder:
        place = Path(folder)
        spark = open_session(
            "training", master="local[1]", folder=place, mode="packed", slots=1, conf={}
        )
        gateway = SparkContext._gateway
        try:
            spark.dataSource.register(Exercise)
            frame = spark.readStream.format("exercise").load()
            query = (
                frame.writeStream.format("exercise")
                .option("checkpointLocation", str(place / "checkpoint"))
                .start()
            )
            query.processAllAvailable()
            query.stop()
        finally:
            close_session(spark)
            if gateway is not None:
                gateway.proc.wait()


if __name__ == "__main__":
    train()
