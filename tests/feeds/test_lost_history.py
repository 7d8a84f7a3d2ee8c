"""What every feed promises when history is lost, `penstock.testing.losses`, proven on each."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from penstock.feeds import Feed
from penstock.feeds.dynamodb import DynamodbFeed
from penstock.feeds.mongodb.feed import PARTITION
from penstock.model.position import Bookmark, PartitionId, Place
from penstock.testing import losses
from penstock.testing.losses import LostHistory
from penstock.wire.dynamodb.decoder import place_of
from tests.cosmos.reading import feed_of as cosmos_feed
from tests.cosmos.server import CosmosServer
from tests.dynamodb.server import StreamsServer, settings_of
from tests.feeds.postgres.story import FAST, SLOT, TABLE, feed_of, insert, started
from tests.feeds.staged import StagedFeed, StagedSettings
from tests.mongo import shop_on
from tests.mongodb.history import History
from tests.mongodb.reading import feed_of as mongodb_feed
from tests.mongodb.server import ScriptedMongod
from tests.servers import Postgres
from tests.slots import drop_slot


@dataclass
class Lost:
    """See `LostHistory`."""

    feed: Callable[[str], Feed]
    partition: PartitionId
    bookmark: Bookmark
    causes: list[str]
    write: Callable[[], object]


@pytest.fixture(
    params=[
        "memory",
        "memory found by reading",
        "memory twice",
        "mongodb",
        "mongodb found by reading",
        "mongodb twice",
        "mongodb found late",
        "cosmos",
        "dynamodb",
        "dynamodb without a place",
        "postgres",
    ]
)
def lost(request: pytest.FixtureRequest) -> Iterator[Lost]:
    kind = request.param
    if kind.startswith("memory"):
        given = {"changes": 40, "unit": 1, "page": 5, "trimmed": 30}
        given |= {"found": "read"} if "reading" in kind else {}
        given |= {"history": "B"} if "twice" in kind else {}
        causes = (["other_history"] if "twice" in kind else []) + ["trimmed"]

        def memory(policy: str) -> Feed:
            return StagedFeed(StagedSettings.model_validate({**given, "on_gap": policy}))

        yield Lost(
            memory,
            PartitionId("p0"),
            Bookmark(mark={"history": "A"} if "twice" in kind else {}),
            causes,
            lambda: None,
        )
    elif kind == "mongodb":
        with shop_on(request.getfixturevalue("mongo")) as shop:
            token = Bookmark(mark={"token": {"_data": "00FF00FF00FF00FF"}})
            number = iter(range(100))
            yield Lost(
                lambda policy: shop.feed(on_gap=policy),
                PARTITION,
                token,
                ["token_"],
                lambda: shop.db.users.insert_one({"_id": next(number)}),
            )
    elif kind.startswith("mongodb"):
        is_late = "late" in kind
        with ScriptedMongod(History(), "mongos" if is_late else "primary") as mongod:
            begun = mongodb_feed(mongod).begin()[PARTITION]
            for _ in range(3):
                mongod.history.insert("lost")
            mongod.history.trim(1)
            mark = {**(begun.mark or {})}
            if "twice" in kind:  # another cluster, whose oplog has nothing to begin at either
                mark["cluster"] = "rs9/6b0000000000000000000000"
                mongod.fail("getMore", 286, times=2)
            mongod.late = 2 if is_late else 0
            causes = (["other_cluster"] if "twice" in kind else []) + ["oplog_rolled_over"]
            causes += ["oplog_rolled_over"] if is_late else []  # at the last change's time as well
            yield Lost(
                lambda policy: mongodb_feed(mongod, on_gap=policy),
                PARTITION,
                Bookmark(Place("6A000000/00000001", 0), mark),
                causes,
                lambda: mongod.history.insert("next"),
            )
    elif kind == "cosmos":
        with CosmosServer() as cosmos:
            container = cosmos.container("shop", "orders")
            every = "all_versions_and_deletes"
            (partition, begun), *_ = cosmos_feed(cosmos, mode=every).begin().items()
            for n in range(5):
                container.put({"id": f"lost{n}", "pk": "a"})
            container.retained = 3
            number = iter(range(100))
            yield Lost(
                lambda policy: cosmos_feed(cosmos, mode=every, on_gap=policy),
                partition,
                Bookmark(Place(f"{0:020d}/a", 0), begun.mark),
                ["retention"],
                lambda: container.put({"id": f"next{next(number)}", "pk": "a"}),
            )
    elif kind.startswith("dynamodb"):
        with StreamsServer() as server:
            stream = server.stream("users")
            shard = stream.shard()
            sequence = [stream.put(shard, f"k{n}", at=server.now) for n in range(5)]
            stream.trim(shard, 3)
            server.trims_at = "GetRecords"
            partition = PartitionId(f"{stream.label}/{shard.id}")
            old = Bookmark(None, {"from": "trim_horizon", "asked": time.time() - 25 * 3600})
            at = old if "without" in kind else Bookmark(place_of(sequence[0]), {})
            yield Lost(
                lambda policy: DynamodbFeed(
                    settings_of(server, reads=1000, poll=0.001, on_gap=policy)
                ),
                partition,
                at,
                ["trimmed"],
                lambda: None,
            )
    else:
        with Postgres(settings=FAST) as server:
            server.execute(TABLE)
            feed_of(server).begin()
            story = started(server)
            drop_slot(server, SLOT)
            insert(server, 11, 20, "lost")
            numbers = iter(range(100, 200))
            yield Lost(
                lambda policy: feed_of(server, on_gap=policy),
                SLOT,
                story.bookmark,
                ["slot_missing"],
                lambda: insert(server, number := next(numbers), number),
            )


@pytest.mark.parametrize("claim", losses.CLAIMS, ids=lambda claim: claim.__name__)
def test_a_feed_keeps_the_contract(lost: Lost, claim: Callable[[LostHistory], None]) -> None:
    claim(lost)
