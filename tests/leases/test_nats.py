"""What leases in a bucket add to the contract: names of any text, restarts, the URL."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.leases import Lease
from penstock.leases.nats import NatsStore
from penstock.model.errors import SettingsError
from tests.servers import Nats


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


def test_a_key_that_is_no_lease_is_an_error_with_the_remedy(nats: Nats, stream: str) -> None:
    store = NatsStore(f"{nats.url}/{stream}")
    store.put(Lease(name="a"))
    with store._bucket() as bucket:
        bucket.put("other", b"not a lease")
    with pytest.raises(SettingsError, match="no lease") as caught:
        store.list("")
    assert "own" in caught.value.hint
    store.close()
