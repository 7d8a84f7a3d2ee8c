"""A stand-in with the container shop/orders."""

from collections.abc import Iterator

import pytest

from tests.cosmos.container import StoredContainer
from tests.cosmos.server import CosmosServer


@pytest.fixture
def server() -> Iterator[CosmosServer]:
    with CosmosServer() as made:
        yield made


@pytest.fixture
def orders(server: CosmosServer) -> StoredContainer:
    return server.container("shop", "orders")
