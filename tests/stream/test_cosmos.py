"""The iterator over Cosmos DB's change feed: tokens while ranges split."""

import pytest

import penstock
from penstock.stream import Stream
from tests.cosmos.server import CosmosServer
from tests.stream.taking import saved, some


def opened(server: CosmosServer, at: object) -> Stream:
    return penstock.stream(
        "cosmos",
        at=at,
        endpoint=server.url,
        key=server.key,
        database="shop",
        container="orders",
        mode="all_versions_and_deletes",
        page_items=3,
        poll=0.01,
    )


@pytest.mark.slow
def test_a_token_goes_on_in_the_children_of_a_split() -> None:
    with CosmosServer() as server:
        orders = server.container("shop", "orders")
        with opened(server, "latest") as stream:
            next(stream)
            for n in range(10):
                orders.put({"id": f"i{n}", "pk": f"p{n}"})
            found = some(stream, 4)
            token = saved(stream)
        orders.split()
        for n in range(10, 20):
            orders.put({"id": f"i{n}", "pk": f"p{n}"})
        with opened(server, token) as stream:
            found += some(stream, 16)
        assert sorted(each["key"]["id"] for each in found) == sorted(f"i{n}" for n in range(20))
