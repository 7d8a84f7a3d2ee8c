"""One real Spark session for the tests of the glue."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.spark.session.plan import SessionPlan
from penstock.spark.session.session import close_session, make_active, open_session
from tests.cosmos.server import CosmosServer
from tests.dynamodb.server import StreamsServer
from tests.microbatch.sources import Documents, Items, Orders, Written
from tests.mongo import shop_on


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session as the service makes it, on two cores."""
    folder: Path = tmp_path_factory.mktemp("spark")
    plan = SessionPlan(name="tests", master="local[2]", folder=folder, mode="rows", slots=1)
    session = open_session(plan)
    try:
        yield session
    finally:
        close_session(session)


@pytest.fixture(autouse=True)
def stays_active(request: pytest.FixtureRequest) -> Iterator[None]:
    """Statements have a session of their own, which would stay the thread's active one."""
    found = request.getfixturevalue("spark") if "spark" in request.fixturenames else None
    yield
    if isinstance(found, SparkSession):  # a parameter may have that name
        make_active(found)


@pytest.fixture(
    params=[*(pytest.param(name, marks=pytest.mark.thorough) for name in ("mongodb", "dynamodb")),
            "cosmos"]
)  # fmt: skip
def other(request: pytest.FixtureRequest) -> Iterator[Written]:
    """A source of another kind than PostgreSQL, which keeps no place for a reader. Without Spark,
    tests/microbatch/test_run_end.py has all of them."""
    if request.param == "mongodb":
        with shop_on(request.getfixturevalue("mongo")) as shop:
            yield Documents(shop)
    elif request.param == "dynamodb":
        with StreamsServer() as streams:
            yield Items(streams)
    else:
        with CosmosServer() as cosmos:
            yield Orders(cosmos, "latest_version")
