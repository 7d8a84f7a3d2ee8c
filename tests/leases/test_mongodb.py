"""Leases in MongoDB: its URL, races between stores, restarts, and what an operator must mend."""

from collections.abc import Iterator

import pytest
from pymongo import MongoClient

from penstock.leases import Lease, replace
from penstock.leases.mongodb import MongoStore
from penstock.model.errors import SettingsError, Unavailable
from tests.servers import Secantus


def test_no_other_collection_can_be_chosen_because_feeds_leave_this_one_out() -> None:
    with pytest.raises(SettingsError, match="always in the collection penstock_lease") as caught:
        MongoStore("mongodb://me:s3cret@a:1,b:2/shop?replicaSet=r&collection=places&tls=true")
    assert "DATABASE" in caught.value.hint
    assert "s3cret" not in str(caught.value)


def test_options_go_to_the_driver() -> None:
    store = MongoStore("mongodb://me:s3cret@a:1,b:2/shop?replicaSet=r&tls=true")
    assert repr(store) == "MongoStore(shop.penstock_lease)"
    with pytest.raises(SettingsError) as caught:
        MongoStore("mongodb://me:s3cret@h:port/shop").get("a")
    assert "mongodb://" in caught.value.hint
    assert "s3cret" not in str(caught.value)


def test_a_document_that_is_no_lease_is_an_error_with_the_remedy(lease_mongo_url: str) -> None:
    store = MongoStore(lease_mongo_url)
    client: MongoClient[dict[str, object]]
    with MongoClient(lease_mongo_url) as client:
        client.get_default_database()["penstock_lease"].insert_one({"_id": "x"})
    with pytest.raises(SettingsError, match="no lease") as caught:
        store.list("")
    assert "own" in caught.value.hint
    store.close()


@pytest.fixture
def own_mongo() -> Iterator[Secantus]:
    with Secantus() as server:
        yield server


@pytest.mark.fault
def test_a_server_that_was_killed_is_unavailable_until_it_is_back(
    own_mongo: Secantus, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MongoStore(f"{own_mongo.url}/p")
    put = store.put(Lease(name="a", continuation="1"))
    own_mongo.kill()
    with pytest.raises(Unavailable, match="positions collection"):
        store.put(replace(put, continuation="2"))
    own_mongo.start()
    assert store.get("a") == put
    written = store.put_all([replace(put, continuation="2"), Lease(name="b")])
    assert [store.get("a"), store.get("b")] == written
    store.close()
