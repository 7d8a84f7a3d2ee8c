"""A pipeline's `transform` without the pipeline: in a local Spark of its own, as the service runs
it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from penstock.config import Pipeline
from penstock.model.errors import SettingsError
from penstock.spark.queries.columns import no_changes
from penstock.spark.queries.engine import SparkStatements
from penstock.spark.queries.query import transformed
from penstock.spark.session.launch import is_local
from penstock.spark.session.plan import SessionPlan
from penstock.spark.session.session import close_session, open_session


@contextmanager
def local_statements(pipeline: Pipeline) -> Iterator[SparkStatements]:
    """The statements, until the end of their session. Raises what `open_session` does, and
    SettingsError for statements that changes cannot go through."""
    # What Spark logs of a statement that it refuses is Java's trace; the error has its message.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    settings = pipeline.spark
    with TemporaryDirectory(prefix="penstock-preview-") as folder:
        plan = SessionPlan(
            name=pipeline.name,
            master=settings.master if is_local(settings.master) else "local[1]",
            folder=Path(folder),
            mode="rows",
            slots=1,
            conf=settings.conf,
            fork_server=False,
            class_archive=settings.class_archive,
        )
        spark = open_session(plan)
        try:
            transformed(spark, pipeline, no_changes(spark))
            statements = SparkStatements(spark, pipeline)
            if statements.lacks:
                raise SettingsError(
                    f"transform leaves out the columns {', '.join(statements.lacks)}",
                    "spark.transform-invalid",
                    hint="a sink needs every column of a change: SELECT * EXCEPT (after), ... AS"
                    " after FROM changes",
                )
            yield statements
        finally:
            close_session(spark)
