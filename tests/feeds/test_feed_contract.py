"""What every feed promises, `penstock.testing.feeds`, proven on each: memory (also with marks that
resuming needs), MongoDB, DynamoDB, Cosmos DB in both modes, and PostgreSQL 15, 16 and 18."""

from collections.abc import Callable, Iterator

import pytest
from pymongo.errors import OperationFailure

from penstock.feeds.dynamodb import DynamodbFeed
from penstock.feeds.memory import MemoryFeed, MemoryFeedSettings
from penstock.feeds.mongodb import losses
from penstock.feeds.postgres import PostgresFeed, PostgresSettings
from penstock.model.errors import PositionLost, Unavailable
from penstock.testing import feeds
from penstock.testing.feeds import StagedFeed
from tests.cosmos.reading import feed_of as cosmos_feed
from tests.cosmos.server import CosmosServer
from tests.dynamodb.server import StreamsServer, settings_of
from tests.feeds.staged import StagedFeed as ScriptedFeed
from tests.feeds.staged import StagedSettings
from tests.mongo import Shop, shop_on
from tests.servers import Postgres

_WORKLOAD = """
CREATE TABLE one (id bigint PRIMARY KEY, text text);
CREATE TABLE two (id bigint PRIMARY KEY, number numeric);
ALTER TABLE two REPLICA IDENTITY FULL;
"""
_TRANSACTIONS = [
    "INSERT INTO one SELECT g, 'row ' || g FROM generate_series(1, 12) g",
    "INSERT INTO one VALUES (100, 'x'); UPDATE one SET text = 'y' WHERE id < 4;"
    " DELETE FROM one WHERE id = 12",
    "SELECT pg_logical_emit_message(false, 'note', 'between')",
    "INSERT INTO two VALUES (1, 1.5), (2, NULL);"
    " SELECT pg_logical_emit_message(true, 'note', 'inside'); UPDATE two SET number = 7",
    "CREATE TABLE empty (id int PRIMARY KEY)",
    "INSERT INTO one VALUES (500, 'z'); TRUNCATE one, two; INSERT INTO one VALUES (501, 'z')",
    "UPDATE one SET id = 502",
    "INSERT INTO one VALUES (600, 'x');"
    " SELECT pg_logical_emit_message(false, 'note', 'before commit')",
]
_CHANGES = 12 + 5 + 1 + 5 + 4 + 1 + 2


@pytest.fixture(
    scope="module",
    params=[
        "memory",
        "memory-tokens",
        "mongodb",
        "dynamodb",
        "cosmos",
        "cosmos-every",
        "postgres-15",
        "postgres-16",
        "postgres-18",
    ],
)
def staged(request: pytest.FixtureRequest) -> Iterator[StagedFeed]:
    """A feed with some thirty changes, nothing acknowledged; its pages are small."""
    kind, _, version = request.param.partition("-")
    if kind == "memory":
        how = {"changes": 30, "page": 7, "unit": 4}
        made = (
            ScriptedFeed(StagedSettings.model_validate({**how, version: True}))
            if version
            else MemoryFeed(MemoryFeedSettings(**how))
        )
        yield StagedFeed(feed=made, begun=made.begin(), count=30, remembers=True)
        return
    if kind == "dynamodb":
        with StreamsServer() as streams:
            yield _on_dynamodb(streams)
        return
    if kind == "cosmos":
        with CosmosServer() as cosmos:
            yield _on_cosmos(cosmos, every=bool(version))
        return
    if kind == "mongodb":
        with shop_on(request.getfixturevalue("mongo")) as shop:
            yield _on_mongodb(shop)
        return
    try:
        server = Postgres(version=int(version))
    except Unavailable as error:
        pytest.skip(str(error))
    with server, server.database() as database:
        feed = PostgresFeed(
            PostgresSettings(
                connection=database.url,
                slot="contract",
                publication="p",
                create_publication=True,
                page_rows=3,
            )
        )
        database.execute(_WORKLOAD)
        begun = feed.begin()
        for transaction in _TRANSACTIONS:
            database.execute(transaction)
        yield StagedFeed(feed=feed, begun=begun, count=_CHANGES, remembers=True)


def _on_dynamodb(server: StreamsServer) -> StagedFeed:
    """Pages of a few records."""
    stream = server.stream("users")
    shard = stream.shard()
    feed = DynamodbFeed(settings_of(server, reads=1000, poll=0.01))
    begun = feed.begin()
    server.page_of_records = 7
    for n in range(_CHANGES):
        kind = ("INSERT", "UPDATE", "DELETE")[n % 3]
        stream.put(shard, f"k{n % 5}", kind, new={"n": n}, old={"n": n - 1}, at=server.now)
    return StagedFeed(feed=feed, begun=begun, count=_CHANGES)


def _on_cosmos(server: CosmosServer, *, every: bool) -> StagedFeed:
    """Transactions of several items, which no page cuts; of all versions some change one twice."""
    container = server.container("shop", "orders")
    mode = "all_versions_and_deletes" if every else "latest_version"
    feed = cosmos_feed(server, mode=mode, page_items=4)
    begun = feed.begin()
    for n in range(_CHANGES // 3):
        items = [{"id": f"k{3 * n + i}", "pk": f"p{n}"} for i in range(3)]
        if every and n % 2:
            items[2] = {**items[0], "n": n}
        container.transaction([("upsert", each) for each in items])
    return StagedFeed(feed=feed, begun=begun, count=_CHANGES // 3 * 3, starts_bare=False)


def _history_lost() -> PositionLost:
    """ChangeStreamHistoryLost, which the oplog has to confirm."""
    error = PositionLost("refused")
    error.__cause__ = OperationFailure("refused", 286)
    return error


def _on_mongodb(shop: Shop) -> StagedFeed:
    """A feed with as many changes as the others have."""
    one, two = shop.db["one"], shop.db["two"]
    made = shop.feed(page_rows=3)
    begun = made.begin()
    one.insert_many([{"_id": number, "text": f"row {number}"} for number in range(1, 13)])
    one.insert_one({"_id": 100, "text": "x"})
    one.update_many({"_id": {"$lt": 4}}, {"$set": {"text": "y"}})
    one.delete_one({"_id": 12})
    with shop.client.start_session() as session, session.start_transaction():
        two.insert_many([{"_id": number} for number in (1, 2)], session=session)
        one.update_many({"_id": {"$lt": 4}}, {"$unset": {"text": 1}}, session=session)
    one.replace_one({"_id": 5}, {"text": "replaced"})
    one.rename("three")
    shop.db["three"].drop()
    two.delete_many({})
    two.insert_many([{"_id": number} for number in (7, 8, 9)])
    return StagedFeed(
        feed=made, begun=begun, count=_CHANGES, starts_bare=False, refusal=_history_lost
    )


@pytest.mark.parametrize("claim", feeds.CLAIMS, ids=lambda claim: claim.__name__)
def test_a_feed_keeps_the_contract(
    staged: StagedFeed,
    claim: Callable[[StagedFeed], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if claim is feeds.a_refusal_for_a_while_is_no_gap_where_nothing_is_lost:
        monkeypatch.setattr(losses, "reach", lambda settings: (1, ""))  # the stand-in has no oplog
    claim(staged)
