"""When a query that ended is started again, and what a lost JVM or lease raises."""

import socket
from collections.abc import Iterator

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, JavaObject
from pyspark.sql.streaming.query import StreamingQuery

from penstock.model.errors import LeaseLost, PenstockError, PositionLost, SettingsError, Unavailable
from penstock.spark.queries.supervised import BLOCKED_LIMIT, CLEARED, EngineLost, Supervised
from tests.waiting import until


@pytest.fixture
def orphan() -> Supervised:
    """Its query was started in a JVM that is not there any more."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    nobody = GatewayParameters(port=port, enable_memory_management=False)
    gateway = JavaGateway(gateway_parameters=nobody)
    query = StreamingQuery(JavaObject("o1", gateway._gateway_client))
    supervised = Supervised("one", lambda _: query)
    supervised.tick(1.0)
    return supervised


@pytest.mark.parametrize("asked", ["progress", "stop", "hand_over", "tick", "drain"])
def test_a_jvm_that_is_gone_is_told_whatever_is_asked(orphan: Supervised, asked: str) -> None:
    with pytest.raises(EngineLost, match="JVM"):
        if asked == "drain":
            orphan.has_drained(reported=False)
        elif asked == "tick":
            orphan.tick(2.0)
        else:
            getattr(orphan, asked)()


def test_a_jvm_that_is_gone_shows_without_a_question(orphan: Supervised) -> None:
    until(lambda: not orphan.is_steady(CLEARED + 2))


def ending(*errors: PenstockError) -> Supervised:
    """A query whose first starts end with these errors; a further start is a failed test."""
    left: Iterator[PenstockError] = iter(errors)

    def start(_: int) -> StreamingQuery:
        raise next(left)

    return Supervised("one", start)


@pytest.mark.parametrize("error", [SettingsError("no publication"), PositionLost("gone")])
def test_a_query_that_failed_for_good_stands_still_and_is_tried_again(error: PenstockError) -> None:
    supervised = ending(error, error, Unavailable("away"))
    supervised.tick(0.0)
    assert (supervised.blocked, supervised.restarts) == (str(error), 1)
    assert supervised.failed is error
    supervised.tick(0.1)
    assert supervised.restarts == 1, "it waits before it tries again"
    supervised.tick(BLOCKED_LIMIT)
    supervised.tick(BLOCKED_LIMIT * 2)
    assert supervised.restarts == 3
    assert supervised.blocked == str(error), "what is away does not show that it was mended"


def test_what_passes_blocks_nothing() -> None:
    supervised = ending(Unavailable("away"))
    supervised.tick(0.0)
    assert (supervised.blocked, supervised.failed) == ("", None)
    assert supervised.last_error.startswith("away")


def test_a_lost_lease_is_raised() -> None:
    with pytest.raises(LeaseLost):
        ending(LeaseLost("another instance")).tick(0.0)
