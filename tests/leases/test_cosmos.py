"""What is Cosmos DB's own of its lease store: the URL, the container, refusals."""

import logging
import pickle
import time
from typing import Any

import pytest
from azure.core.utils import CaseInsensitiveDict
from azure.cosmos import ContainerProxy

from penstock.leases import Lease
from penstock.leases.cosmos import CosmosStore, parts_of_cosmos
from penstock.model.errors import SettingsError, Unavailable
from tests.cosmos.reading import store_url
from tests.cosmos.server import CosmosServer


def test_a_url_names_account_key_database_and_container() -> None:
    found = parts_of_cosmos("cosmos://:a%2Fb%3D@h.documents.azure.com:443/d/c%20c")
    assert found == ("https://h.documents.azure.com:443", "a/b=", "d", "c c")
    assert parts_of_cosmos("cosmos://h/d/c")[:2] == ("https://h:443", "")


@pytest.mark.slow
def test_the_container_is_made_once_and_a_copy_reads_the_same() -> None:
    with CosmosServer() as server:
        store = CosmosStore(store_url(server))
        assert "penstock" not in server.databases
        put = store.put(Lease(name="shop/azure/0-FF", owner="me", properties={"term": 60}))
        assert server.databases["penstock"]["leases"].paths == ("/id",)
        assert pickle.loads(pickle.dumps(store)).get(put.name) == put
        assert server.key not in repr(store)


def test_a_wrong_key_is_for_the_operator_and_a_busy_service_is_waited_for() -> None:
    with CosmosServer() as server:
        store = CosmosStore(store_url(server))
        put = store.put(Lease(name="a"))
        server.fail("item", 403, message="no", times=1)
        with pytest.raises(SettingsError):
            store.get("a")
        server.fail("item", 449, message="retry", times=1)
        with pytest.raises(Unavailable):
            store.put(put)
        assert store.get("a") == put


@pytest.mark.parametrize(("seconds", "is_refused"), [(3600, True), (-1, False), (None, False)])
def test_a_container_that_deletes_its_items_by_time_is_refused(
    seconds: int | None, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CosmosServer() as server:
        CosmosStore(store_url(server)).put(Lease(name="a"))
        container = server.databases["penstock"]["leases"]
        given = {**container.properties, "defaultTtl": seconds}
        monkeypatch.setattr(type(container), "properties", given)
        again = CosmosStore(store_url(server))
        if is_refused:
            with pytest.raises(SettingsError, match="deletes its items after 3600 s"):
                again.get("a")
        else:
            assert again.get("a") is not None


@pytest.mark.slow
@pytest.mark.parametrize("sub_status", [1002, 1003, 1013])
def test_a_404_that_is_not_of_the_row_is_waited_for(sub_status: int) -> None:
    """`SubStatusCodes` of azure-cosmos: a replica that lags, no container, one that is made."""
    with CosmosServer() as server:
        store = CosmosStore(store_url(server))
        put = store.put(Lease(name="a"))
        acts = (lambda: store.get("a"), lambda: store.put(put), lambda: store.delete(put))
        for act in acts:
            server.fail("item", 404, sub_status, message="not here", times=100)
            with pytest.raises(Unavailable):
                act()
            server.heal()
        assert store.get("a") == put


@pytest.mark.slow
def test_a_container_that_was_deleted_is_made_again() -> None:
    with CosmosServer() as server:
        store = CosmosStore(store_url(server))
        store.put(Lease(name="a"))
        del server.databases["penstock"]["leases"]
        with pytest.raises(Unavailable):
            store.get("a")
        assert store.get("a") is None
        assert store.put(Lease(name="a")).revision


@pytest.mark.slow
def test_the_sdk_logs_nothing_and_waits_for_seconds_only(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.leases.cosmos._TIMEOUT", 0.2)
    monkeypatch.setattr(CosmosServer, "answer", _late(CosmosServer.answer))
    with caplog.at_level("INFO"), CosmosServer() as server:
        server.container("penstock", "leases", "/id")
        server.slow = 2.0
        with pytest.raises(Unavailable):
            CosmosStore(store_url(server)).get("a")
    assert not [each for each in caplog.records if each.name.startswith("azure")]
    assert not logging.getLogger("penstock.leases.sdk").propagate


def _late(answer: Any) -> Any:
    """Of any request, not of the feed's alone."""

    def late(server: CosmosServer, *given: Any) -> Any:
        time.sleep(server.slow)
        return answer(server, *given)

    return late


@pytest.mark.parametrize(("times", "passes"), [(1, True), (100, False)])
def test_headers_that_another_thread_writes_to_are_read_again(
    times: int, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `tests/feeds/cosmos/test_failures.py`; threads share a store."""
    read, left = ContainerProxy.read_all_items, [None] * times

    def listed(rows: ContainerProxy) -> Any:
        if left:
            left.pop()
            headers = CaseInsensitiveDict({"etag": "1"})
            for _ in headers.items():
                headers["x-ms-throttle-retry-count"] = "0"
        return read(rows)

    with CosmosServer() as server:
        store = CosmosStore(store_url(server))
        put = store.put(Lease(name="a"))
        monkeypatch.setattr(ContainerProxy, "read_all_items", listed)
        if passes:
            assert store.list("") == [put]
        else:
            with pytest.raises(Unavailable):
                store.list("")
