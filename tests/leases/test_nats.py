"""What leases in a bucket add to the contract: names of any text, restarts, the URL."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from penstock.leases import Lease
from penstock.leases.nats import NatsStore
from penstock.leases.open import open_store
from penstock.model.errors import LeaseLost, SettingsError
from tests.servers import Nats

pytestmark = pytest.mark.live


def test_a_url_names_the_server_and_the_bucket(nats: Nats, stream: str) -> None:
    store = open_store(f"{nats.url}/{stream}")
    assert isinstance(store, NatsStore)
    assert store.get("a") is None
    store.close()


@pytest.mark.parametrize(
    "url", ["nats://h:4222", "nats://h/", "nats://h/a b", "nats://h/b?color=red"]
)
def test_a_url_without_a_bucket_is_an_error_that_hides_the_password(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        open_store(url.replace("//h", "//me:s3cret@h"))
    assert "BUCKET" in caught.value.hint
    assert "s3cret" not in str(caught.value)


def test_the_password_does_not_print(stream: str) -> None:
    assert "s3cret" not in repr(NatsStore(f"nats://me:s3cret@h:4222/{stream}"))


@pytest.mark.parametrize("name", ["a/b c.d*>=%", "ü/€", ".", "", "=41", "x" * 200])
def test_any_text_is_a_name(nats: Nats, stream: str, name: str) -> None:
    store = NatsStore(f"{nats.url}/{stream}")
    put = store.put(Lease(name=name, owner="me"))
    assert store.get(name) == put
    assert store.list(name[:2]) == [put]
    store.delete(put)
    assert store.list("") == []
    store.close()


def test_a_store_pickles(nats: Nats, stream: str) -> None:
    store = NatsStore(f"{nats.url}/{stream}")
    put = store.put(Lease(name="a"))
    copy = pickle.loads(pickle.dumps(store))
    assert copy.get("a") == put
    store.close()
    copy.close()


def test_a_restart_of_the_server_is_not_noticed(own_nats: Callable[..., Nats]) -> None:
    server = own_nats()
    store = NatsStore(f"{server.url}/leases")
    put = store.put(Lease(name="a", continuation="1"))
    server.kill()
    server.start()
    assert store.get("a") == put
    server.kill()
    server.start()
    assert store.put(replace(put, continuation="2")).revision != put.revision
    store.close()


def test_rows_that_another_owner_changed_do_not_keep_the_others(nats: Nats, stream: str) -> None:
    store = NatsStore(f"{nats.url}/{stream}")
    rows = [store.put(Lease(name=f"p{n}")) for n in range(5)]
    store.put(replace(rows[2], owner="other"))
    found: list[Any] = store.put_all([replace(row, owner="me") for row in rows])
    assert [isinstance(one, LeaseLost) for one in found] == [False, False, True, False, False]
    assert [row.owner for row in store.list("")] == ["me", "me", "other", "me", "me"]
    store.close()


def test_a_key_that_is_no_lease_is_an_error_with_the_remedy(nats: Nats, stream: str) -> None:
    store = NatsStore(f"{nats.url}/{stream}")
    store.put(Lease(name="a"))
    with store._bucket() as bucket:
        bucket.put("other", b"not a lease")
    with pytest.raises(SettingsError, match="no lease") as caught:
        store.list("")
    assert "own" in caught.value.hint
    store.close()


def test_a_key_of_an_earlier_version_has_no_properties(nats: Nats, stream: str) -> None:
    store = NatsStore(f"{nats.url}/{stream}")
    with store._bucket() as bucket:
        bucket.put("a", b'{"owner": "me", "continuation": "1"}')
    found = store.get("a")
    assert found is not None
    assert found == Lease(name="a", owner="me", continuation="1", revision=found.revision)
    assert store.put(replace(found, properties={"team": "x"})) == store.get("a")
    store.close()
