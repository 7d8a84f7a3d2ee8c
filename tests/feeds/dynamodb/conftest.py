"""The scripted server with a stream of the table `users`, and its shard."""

from collections.abc import Iterator

import pytest

from tests.dynamodb.server import StreamsServer
from tests.dynamodb.streams import Shard, Stream


@pytest.fixture
def server() -> Iterator[StreamsServer]:
    with StreamsServer() as found:
        yield found


@pytest.fixture
def stream(server: StreamsServer) -> Stream:
    return server.stream("users")


@pytest.fixture
def shard(stream: Stream) -> Shard:
    return stream.shard()
