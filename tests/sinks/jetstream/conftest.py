"""A sink that is exactly once, its stream, and what is in it."""

from collections.abc import Callable, Iterator
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
def sink(nats: Nats, settings_of: Callable[..., JetStreamSettings]) -> JetStreamSink:
    one = JetStreamSink(settings_of(nats.url, delivery="exactly-once"))
    one.prepare()
    return one


@pytest.fixture
def stored(nats: Nats, stream: str, read: Any) -> Callable[[], list[str]]:
    return lambda: [message.event_id for message in read(nats.url, stream)]
