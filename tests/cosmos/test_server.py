"""The stand-in, asked by the official SDK; its answers have the shapes of the public documentation.

Shapes: "Change feed in Azure Cosmos DB" and "Change feed modes" (Microsoft Learn), "Get partition
key ranges" and "List documents" of the REST API reference; .NET's ChangeFeedMetadata.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from azure.cosmos import ContainerProxy, CosmosClient, exceptions

from tests.cosmos.container import StoredContainer
from tests.cosmos.server import CosmosServer


@pytest.fixture
def server() -> Iterator[CosmosServer]:
    with CosmosServer() as made:
        yield made


@pytest.fixture
def orders(server: CosmosServer) -> StoredContainer:
    return server.container("shop", "orders")


@pytest.fixture
def container(server: CosmosServer, orders: StoredContainer) -> ContainerProxy:
    client = CosmosClient(server.url, credential=server.key)
    return client.get_database_client("shop").get_container_client("orders")


@pytest.mark.slow
def test_a_request_without_the_key_is_refused(server: CosmosServer) -> None:
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(f"{server.url}/dbs/shop")
    assert raised.value.code == 401
    with pytest.raises(exceptions.CosmosHttpResponseError) as refused:
        CosmosClient(server.url, credential="d3Jvbmc=")
    assert refused.value.status_code == 401


def test_an_item_has_the_documented_system_properties(
    container: ContainerProxy, orders: StoredContainer
) -> None:
    container.create_item({"id": "i", "pk": "a"})
    (page,) = container.query_items_change_feed(start_time="Beginning").by_page()
    (item,) = page
    documented = {"_rid", "_self", "_etag", "_attachments", "_ts", "_lsn"}
    assert item.keys() == {"id", "pk"} | documented
    assert isinstance(item["_lsn"], int)
    assert isinstance(item["_ts"], int)
    assert item["_rid"].startswith(orders.rid[:5])


def test_versions_have_the_documented_shape(
    server: CosmosServer, container: ContainerProxy, orders: StoredContainer
) -> None:
    feed = container.query_items_change_feed(mode="AllVersionsAndDeletes").by_page()
    assert next(feed, None) is None
    container.create_item({"id": "i", "pk": "a"})
    container.upsert_item({"id": "i", "pk": "a", "n": 1})
    container.delete_item("i", partition_key="a")
    create, replace, delete = list(next(feed))
    assert create["metadata"].keys() == {"operationType", "lsn", "crts", "previousImageLSN"}
    kinds = [each["metadata"]["operationType"] for each in (create, replace, delete)]
    assert kinds == ["create", "replace", "delete"]
    assert replace["metadata"]["previousImageLSN"] == create["metadata"]["lsn"]
    assert (delete["current"], delete["previous"]["n"]) == ({}, 1)
    assert delete["metadata"]["id"] == "i"
    assert delete["metadata"]["partitionKey"] == {"pk": "a"}
    sent = server.requests[-1]
    assert sent["a-im"] == "Full-Fidelity Feed"
    assert sent["x-ms-cosmos-changefeed-wire-format-version"] == "2021-09-15"


def test_a_page_says_where_the_next_one_begins_and_nothing_new_is_304(
    server: CosmosServer, container: ContainerProxy, orders: StoredContainer
) -> None:
    for n in range(3):
        orders.put({"id": f"i{n}", "pk": "a"})
    statuses: list[int] = []
    etags: list[str] = []

    def arrived(response: Any) -> None:
        statuses.append(response.http_response.status_code)
        etags.append(response.http_response.headers["etag"])

    pages = container.query_items_change_feed(
        start_time="Beginning", max_item_count=2, raw_response_hook=arrived
    ).by_page()
    assert [[item["id"] for item in page] for page in pages] == [["i0", "i1"], ["i2"]]
    assert statuses == [200, 200, 304]
    assert etags == ['"2"', '"3"', '"3"']


def test_key_ranges_name_their_parents_and_a_map_that_is_current_is_304(
    server: CosmosServer, container: ContainerProxy, orders: StoredContainer
) -> None:
    assert len(list(container.read_feed_ranges())) == 1
    left, right = orders.split()
    assert (left.parents, right.parents) == (("0",), ("0",))
    assert [each.parents for each in orders.split(range_id=left.id)] == [("0", left.id)] * 2
    found = list(container.read_feed_ranges(force_refresh=True))
    assert [each["Range"]["min"] for each in found] == [each.min for each in orders.ranges]
    merged = orders.merge(*orders.ranges[:2])
    assert {"0", left.id} < set(merged.parents)


def test_a_range_that_is_gone_is_410_1002_and_the_sdk_goes_on_with_its_children(
    server: CosmosServer, container: ContainerProxy, orders: StoredContainer
) -> None:
    pages = container.query_items_change_feed(start_time="Beginning").by_page()
    orders.put({"id": "i0", "pk": "a"})
    assert [item["id"] for item in next(pages)] == ["i0"]
    orders.split()
    for n in range(1, 9):
        orders.put({"id": f"i{n}", "pk": f"p{n}"})
    found = [item["id"] for page in pages for item in page]
    assert sorted(found) == [f"i{n}" for n in range(1, 9)]


def test_what_is_sent_is_json_of_the_documented_envelope(
    server: CosmosServer, container: ContainerProxy, orders: StoredContainer
) -> None:
    orders.put({"id": "i", "pk": "a"})
    bodies: list[bytes] = []
    pages = container.query_items_change_feed(
        start_time="Beginning", raw_response_hook=lambda r: bodies.append(r.http_response.body())
    ).by_page()
    next(pages)
    assert json.loads(bodies[-1]).keys() == {"_rid", "Documents", "_count"}
