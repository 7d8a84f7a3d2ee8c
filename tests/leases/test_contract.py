"""What every positions store promises, `penstock.testing.stores`, on each."""

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from examples.file_store import FileStore
from penstock.leases import LeaseStore
from penstock.leases.cosmos import CosmosStore
from penstock.leases.etcd import EtcdStore
from penstock.leases.memory import MemoryStore
from penstock.leases.mongodb import MongoStore
from penstock.leases.nats import NatsStore
from penstock.leases.postgres import PostgresStore
from penstock.leases.sqlite import SqliteStore
from penstock.testing import stores
from tests.claims import marked
from tests.cosmos.reading import store_url as cosmos_url
from tests.cosmos.server import CosmosServer
from tests.servers import Database, Etcd, Nats

STORES: dict[str, Callable[[Path], LeaseStore]] = {
    "file": lambda folder: FileStore(f"jsonfile://{folder}/leases.json"),
    "memory": lambda _: MemoryStore(),
    "sqlite": lambda folder: SqliteStore(folder / "leases.db"),
}


@pytest.fixture(params=[*sorted(STORES), "cosmos", "etcd", "mongodb", "nats", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LeaseStore]:
    if request.param == "postgres":
        database: Database = request.getfixturevalue("database")
        found: LeaseStore = PostgresStore(database.url)
    elif request.param == "etcd":
        etcd: Etcd = request.getfixturevalue("etcd")
        found = EtcdStore(f"{etcd.url}/tests/{uuid.uuid4().hex}")
    elif request.param == "cosmos":
        with CosmosServer() as cosmos:
            found = CosmosStore(cosmos_url(cosmos))
            yield found
        return
    elif request.param == "mongodb":
        mongo_url: str = request.getfixturevalue("lease_mongo_url")
        found = MongoStore(mongo_url)
    elif request.param == "nats":
        server: Nats = request.getfixturevalue("nats")
        found = NatsStore(f"{server.url}/{uuid.uuid4().hex}")
    else:
        found = STORES[request.param](tmp_path)
    yield found
    found.close()


_SLOW = {
    stores.a_row_that_was_never_put_is_none,
    stores.any_text_is_a_name,
    stores.a_row_that_is_lost_does_not_fail_the_others,
    stores.of_many_writers_of_many_rows_one_wins_each_row,
    stores.holders_take_and_hand_over_leases,
    stores.of_hosts_that_start_together_one_asks_the_source,
}


@pytest.mark.parametrize("claim", marked(stores.CLAIMS, _SLOW))
def test_a_store_keeps_the_contract(store: LeaseStore, claim: Callable[[LeaseStore], None]) -> None:
    claim(store)
