"""A sink that is exactly once, and the API of its server."""

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.nats.api import JetStream
from penstock.sinks.jetstream import JetStreamSink
from tests.servers import Nats
from tests.sinks.jetstream.raw import Raw


@pytest.fixture
def raw(nats: Nats) -> Iterator[Raw]:
    one = Raw(nats.url)
    yield one
    one.connection.close()


@pytest.fixture
def api(raw: Raw) -> JetStream:
    return raw.api


@pytest.fixture
def sink(sink_of: Any) -> JetStreamSink:
    one: JetStreamSink = sink_of(delivery="exactly-once")
    one.prepare()
    return one
