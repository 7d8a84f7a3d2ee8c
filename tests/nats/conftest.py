"""Connections to the shared server."""

from collections.abc import Callable, Iterator

import pytest

from penstock.nats.connection import Connection
from penstock.nats.settings import NatsSettings
from tests.servers import Nats


@pytest.fixture
def connect(nats: Nats) -> Iterator[Callable[[], Connection]]:
    made: list[Connection] = []

    def one() -> Connection:
        found = Connection(NatsSettings.model_validate({"url": nats.url, "timeout": 20}))
        found.open()
        made.append(found)
        return found

    yield one
    for connection in made:
        connection.close()


@pytest.fixture
def connection(connect: Callable[[], Connection]) -> Connection:
    return connect()
