"""Makes the archive of Spark's classes (`penstock class-archive`).

A session that lists the classes it loads runs one batch from a Python source to a Python sink,
which loads what every pipeline loads; a second JVM makes the archive from that list.
"""

import os
import shlex
import subprocess
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

from penstock.model.errors import SettingsError, Unavailable
from penstock.spark.session.launch import archive_of, java_command
from penstock.spark.session.session import close_session, java_options, open_session

# Seconds. A JVM makes an archive in some 20 s of CPU, at the lowest priority.
_PATIENCE = 900.0


class Exercise(DataSource):
    """A source of one row, and a sink that drops it."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "exercise"

    def schema(self) -> str:
        """One column."""
        return "row binary"

    def streamReader(self, schema: Any) -> "OneRow":
        """The reader process's side."""
        return OneRow()

    def streamWriter(self, schema: Any, overwrite: bool) -> "Drop":
        """The tasks' side."""
        return Drop()


class OneRow(DataSourceStreamReader):
    """Has one row."""

    def initialOffset(self) -> dict[str, int]:
        """Before it."""
        return {"row": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """After it."""
        return {"row": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """One."""
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The row."""
        yield pa.RecordBatch.from_pydict({"row": [b"row"]})


class Drop(DataSourceStreamArrowWriter):
    """Reads the batches."""

    def write(  # type: ignore[override]
        self, iterator: Iterator[pa.RecordBatch]
    ) -> WriterCommitMessage:
        """Nothing to commit."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


def make_archive() -> Path:
    """Returns the archive's file, which is made if there is none yet; takes half a minute.

    Raises SettingsError where there is no place for it, Unavailable when it can't be written.
    """
    archive = archive_of(os.environ)
    if archive is None:
        raise SettingsError(
            "there is no place for an archive of Spark's classes, or no Java",
            hint="install Java 17 or newer; set PENSTOCK_CLASS_ARCHIVE to a folder",
        )
    if archive.path is not None:
        return archive.path
    try:
        return archive.make(_dump)
    except (OSError, subprocess.SubprocessError) as error:
        raise Unavailable(
            f"the archive of Spark's classes could not be made in {archive.folder}: {error}",
            hint="set PENSTOCK_CLASS_ARCHIVE to a folder of your own with 200 MB of room",
        ) from error


def _dump(archive: Path) -> None:
    classes = archive.with_suffix(".classes")
    _list_classes(classes)
    command = [
        "nice", "-n", "19", *java_command("640m"), "-XX:+UseSerialGC", "-Xshare:dump",
        f"-XX:SharedClassListFile={classes}", f"-XX:SharedArchiveFile={archive}",
    ]  # fmt: skip
    subprocess.run(  # noqa: S603 - the Java that Spark runs on
        command, check=True, timeout=_PATIENCE, capture_output=True, stdin=subprocess.DEVNULL
    )


def _list_classes(classes: Path) -> None:
    """Runs one batch in a JVM that writes the names of its classes to this file."""
    option = shlex.quote(f"-XX:DumpLoadedClassList={classes}")
    conf = {"spark.driver.extraJavaOptions": f"{java_options('realtime')} {option}"}
    with tempfile.TemporaryDirectory(prefix="penstock-class-list-") as folder:
        place = Path(folder)
        spark = open_session(
            "class-list", master="local[1]", folder=place, mode="realtime", slots=1, conf=conf
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
