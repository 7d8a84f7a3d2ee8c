"""What a server and a network do to a change stream: nothing is lost, and nothing comes twice."""

import json
from contextlib import closing, suppress

import pymongo
import pytest

from penstock.feeds.mongodb.cluster import hello_of, is_sharded
from penstock.feeds.mongodb.failures import RESUMABLE
from tests.chaos.proxy import Proxy, Weather
from tests.mongo import REAL, Shop, shop_on
from tests.mongodb.reading import Read, feed_of
from tests.mongodb.server import ScriptedMongod
from tests.servers import Secantus
from tests.waiting import until

on_a_real_one = pytest.mark.skipif(
    not REAL, reason="needs a real replica set or sharded cluster: PENSTOCK_MONGODB_URL"
)


@pytest.mark.slow
@pytest.mark.parametrize("code", sorted(RESUMABLE))
@pytest.mark.parametrize("command", ["getMore", "aggregate"])
def test_a_resumable_code_loses_nothing(
    server: ScriptedMongod, reading: Read, command: str, code: int
) -> None:
    there = reading(feed_of(server))
    server.history.insert(1)
    there.read(1)
    if command == "aggregate":
        there.reader.disconnect()
    server.fail(command, code, times=2)
    server.history.insert(2)
    assert there.read(2) == ["1", "2"]
    # With 391 the driver logs in again, and asks once more by itself.
    assert len(there.errors) == (1 if code == 391 else 2)


@pytest.mark.skipif(bool(REAL), reason="needs a server of its own")
def test_a_killed_server_loses_nothing_that_it_acknowledged(reading: Read) -> None:
    server = Secantus()  # with --sync-on-commit
    with server, shop_on(server.url) as shop:
        there = reading(shop.feed(connect_timeout=2))
        acknowledged: list[str] = []
        for round_ in range(3):
            for number in range(20):
                shop.db.users.insert_one({"_id": f"{round_}-{number}"})
                acknowledged.append(f"{round_}-{number}")
            there.read(len(acknowledged) - 10)  # some of them are not read yet
            server.kill()
            known = len(there.errors)
            there.until(lambda known=known: len(there.errors) > known)
            server.start()
        assert there.read(len(acknowledged)) == acknowledged


@pytest.mark.slow
def test_a_network_that_is_cut_loses_nothing(server: ScriptedMongod, reading: Read) -> None:
    with closing(Proxy("127.0.0.1", server.port)) as proxy:
        url = f"mongodb://127.0.0.1:{proxy.port}/?directConnection=true"
        there = reading(feed_of(server, connection=url, connect_timeout=1, silence=2))
        expected = []
        for round_, weather in enumerate(
            (Weather(refused=True), Weather(lost="all"), Weather(lost="answers"), Weather(cut=40))
        ):
            server.history.insert(f"{round_}a")
            expected.append(f"{round_}a")
            assert there.read(len(expected)) == expected
            proxy.weather = weather
            proxy.reset()
            server.history.insert(f"{round_}b")
            expected.append(f"{round_}b")
            known = len(there.errors)
            there.until(lambda known=known: len(there.errors) > known)
            assert len(there.rows) < len(expected)
            proxy.weather = Weather()
            proxy.reset()
            assert there.read(len(expected)) == expected


@on_a_real_one
def test_an_election_loses_and_repeats_nothing(shop: Shop, reading: Read) -> None:
    if is_sharded(hello_of(shop.client)):
        pytest.skip("mongos hides elections: give the URL of a replica set")
    reader = reading(shop.feed())
    shop.db.users.insert_one({"_id": 1})
    reader.read(1)
    with suppress(pymongo.errors.AutoReconnect):  # the old primary closes its connections
        shop.client.admin.command({"replSetStepDown": 10, "force": True})
    until(lambda: _inserted(shop, 2))
    assert reader.read(2) == ["1", "2"]


@on_a_real_one
def test_a_resized_oplog_is_no_gap(shop: Shop, reading: Read) -> None:
    if is_sharded(hello_of(shop.client)):
        pytest.skip("a shard's oplog is resized at the shard: give the URL of a replica set")
    reader = reading(shop.feed())
    shop.db.users.insert_one({"_id": 1})
    reader.read(1)
    reader.close()
    shop.client.admin.command({"replSetResizeOplog": 1, "size": 990.0})
    shop.db.users.insert_one({"_id": 2})
    assert reader.read(2) == ["1", "2"]


@on_a_real_one
def test_a_sharded_collection_has_compound_keys_and_one_change_of_each(
    shop: Shop, reading: Read
) -> None:
    if not is_sharded(hello_of(shop.client)):
        pytest.skip("needs mongos: give the URL of a sharded cluster")
    shop.client.admin.command({"enableSharding": shop.name})
    shop.client.admin.command(
        {"shardCollection": f"{shop.name}.users", "key": {"country": "hashed"}}
    )
    reader = reading(shop.feed())
    shop.db.users.insert_many([{"_id": number, "country": f"c{number}"} for number in range(50)])
    found = reader.read(50)
    keys = [json.loads(each) for each in found]
    assert sorted(key["_id"] for key in keys) == list(range(50))
    assert all(key["country"] == f"c{key['_id']}" for key in keys)


def _inserted(shop: Shop, number: int) -> bool:
    try:
        shop.db.users.replace_one({"_id": number}, {}, upsert=True)
    except pymongo.errors.PyMongoError:
        return False
    return True
