"""The pipeline's statements for rows of snapshots: each batch of them is a Spark batch."""

import hashlib
import threading
from collections.abc import Sequence

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from penstock.config import Pipeline
from penstock.model.change import COLUMNS, OPTIONAL
from penstock.model.errors import SettingsError, Unavailable
from penstock.spark.queries.columns import no_changes, other_step
from penstock.spark.queries.query import transformed


class SparkStatements:
    """The implementation of `snapshots.statements.RowTransform`. It has a session of its own: the
    view `changes` of the other is that of the queries."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        self._spark, self._pipeline = spark.newSession(), pipeline
        self._lock = threading.Lock()  # over the view
        texts = "\0".join(step.sql for step in pipeline.transform)
        self.identity = hashlib.sha256(texts.encode()).hexdigest()[:16]
        self.refusal = self._refused()

    def _refused(self) -> str:
        try:
            made = transformed(self._spark, self._pipeline, no_changes(self._spark))
        except SettingsError as error:
            return f"is refused ({error.message})"
        missing = [name for name in COLUMNS if made.columns.count(name) != 1]
        if missing := [name for name in missing if name not in OPTIONAL]:
            return f"lacks the columns {', '.join(missing)}"
        if other := other_step(made):
            return f"does more than choose rows and compute columns of each ({other})"
        return ""

    def made(self, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.Table:
        """See `RowTransform`."""
        try:
            with self._lock:
                rows = self._spark.createDataFrame(pa.Table.from_batches([batch]))
                made = transformed(self._spark, self._pipeline, rows).select(*columns)
            return made.toArrow()
        except PySparkException as error:  # whose message may have values
            if condition := error.getCondition():
                raise SettingsError(
                    f"transform fails on rows of a snapshot: {condition}",
                    hint="correct its statements; the changes of such rows fail, too",
                ) from None
            raise Unavailable("Spark failed to run transform on rows of a snapshot") from None
        except Py4JError:
            raise Unavailable("Spark does not run transform on rows of a snapshot") from None
