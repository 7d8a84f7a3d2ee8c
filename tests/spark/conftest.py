"""One real Spark session for the tests of the glue."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark.session.session import close_session, open_session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session as the service makes it, on two cores."""
    folder: Path = tmp_path_factory.mktemp("spark")
    session = open_session("tests", master="local[2]", folder=folder, mode="rows", slots=1, conf={})
    try:
        yield session
    finally:
        close_session(session)
