"""A sink that is exactly once, and the API of its server."""

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.nats.api import JetStream
from penstock.nats.connection import Connection
from penstock.sinks.jetstream import JetStreamSettings, JetStreamSink
from tests.servers import Nats


@pytest.fixture
def api(nats: Nats) -> Iterator[JetStream]:
    connection = Connection(JetStreamSettings(url=nats.url))
    connection.open()
    yield JetStream(connection)
    connection.close()


@pytest.fixture
def sink(sink_of: Any) -> JetStreamSink:
    one: JetStreamSink = sink_of(delivery="exactly-once")
    one.prepare()
    return one
