"""What a supervised query says when its JVM is gone."""

import socket

import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway, JavaObject
from pyspark.sql.streaming.query import StreamingQuery

from penstock.spark.queries.supervised import EngineLost, Supervised


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
    assert supervised.running
    return supervised


@pytest.mark.parametrize("asked", ["progress", "stop", "hand_over", "tick"])
def test_a_jvm_that_is_gone_is_told_whatever_is_asked(orphan: Supervised, asked: str) -> None:
    arguments = (2.0,) if asked == "tick" else ()
    with pytest.raises(EngineLost, match="JVM"):
        getattr(orphan, asked)(*arguments)
