"""What every feed with several partitions promises, proven on each: memory in all its ways,
DynamoDB and Cosmos DB. A source is read here by the plain contract; `tests/reading` has the parts
that do it."""

import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from penstock.feeds import Feed, Lineage
from penstock.feeds.cosmos import CosmosFeed
from penstock.feeds.dynamodb import DynamodbFeed
from penstock.feeds.memory import MemoryFeed, MemoryFeedSettings
from penstock.model.page import Page
from penstock.model.position import Bookmark, Bookmarks, PartitionId, Place
from penstock.reading.roster import openings
from tests.cosmos.reading import feed_of as cosmos_feed
from tests.cosmos.server import CosmosServer
from tests.dynamodb.server import StreamsServer, settings_of
from tests.feeds.staged import StagedFeed, StagedSettings

_SHARDS = 3
_EACH = 8


@dataclass
class Case:
    """A feed, where it began, and how many changes it has. `source` is kept alive. `known` is what
    a reader of all of it knows, of Cosmos DB, which does not list ranges that have ended."""

    feed: Feed
    begun: Bookmarks
    count: int
    source: object = field(default=None, repr=False)
    known: Bookmarks = field(default_factory=dict)


def on_dynamodb(server: StreamsServer) -> Case:
    """Three shards; one of them splits, and its children have changes too."""
    stream = server.stream("users")
    shards = [stream.shard() for _ in range(_SHARDS)]
    server.page_of_records = 3
    for number in range(_SHARDS * _EACH):
        stream.put(shards[number % _SHARDS], f"k{number % 5}", at=server.now)
    feed = DynamodbFeed(settings_of(server, reads=1000, poll=0.001, start="trim_horizon"))
    begun = feed.begin()
    shards[0].closed = True
    children = [stream.shard(shards[0]) for _ in range(2)]
    for number in range(2 * _EACH):
        stream.put(children[number % 2], f"k{number % 5}", at=server.now)
    return Case(feed, begun, (_SHARDS + 2) * _EACH, server)


def on_cosmos(server: CosmosServer, *, every: bool) -> Case:
    """Three ranges; one splits, and the others merge, which ends neither."""
    container = server.container("shop", "orders")
    container.split("15")
    left, right = container.split("2A")
    mode = "all_versions_and_deletes" if every else "latest_version"
    feed = cosmos_feed(server, mode=mode, page_items=3)
    begun = feed.begin()
    for number in range(2 * _EACH):
        container.put({"id": f"a{number}", "pk": f"k{number}"})
    container.split("0A")
    container.merge(left, right)
    for number in range(2 * _EACH):
        container.put({"id": f"b{number}", "pk": f"k{number}"})
    case = Case(feed, begun, 4 * _EACH, server)
    read(case, begun, case.count)
    return case


MEMORY = {
    "side by side": {"partitions": 3},
    "with tokens": {"partitions": 3, "tokens": True},
    "chained": {"partitions": 3, "chained": True},
    "split and merged": {"partitions": 2, "generations": 2},
}


@pytest.fixture(scope="module", params=[*MEMORY, "dynamodb", "cosmos", "cosmos-every"])
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    if request.param == "dynamodb":
        with StreamsServer() as server:
            yield on_dynamodb(server)
        return
    if request.param.startswith("cosmos"):
        with CosmosServer() as cosmos:
            yield on_cosmos(cosmos, every="every" in request.param)
        return
    given = {"changes": 13, "page": 5, "unit": 2, **MEMORY[request.param]}
    feed = (
        MemoryFeed(MemoryFeedSettings.model_validate(given))
        if request.param == "side by side"
        else StagedFeed(StagedSettings.model_validate(given))
    )
    yield Case(feed, feed.begin(), 13 * len(feed.lineage))


def read(case: Case, known: Bookmarks, count: int) -> list[Page]:
    """All partitions by turns, in an order of chance, parents before children, until there are
    `count` changes."""
    feed, chance = case.feed, random.Random(count)
    done, pages = dict(known), list[Page]()
    deadline = time.monotonic() + 20
    open_now: dict[PartitionId, object] = {}
    followings = {}
    reached: dict[PartitionId, Place] = {}
    while sum(page.count for page in pages) < count:
        assert time.monotonic() < deadline, pages
        for name, bookmark in openings(feed.partitions(done), done, open_now).ready.items():
            done[name] = bookmark
            open_now[name] = followings[name] = feed.follow(name, bookmark)
        for name in chance.sample(sorted(followings), len(followings)):
            following = followings[name]
            pages += (read := following.read(0.001))
            if read:
                reached[name] = read[-1].last
            if following.drained:
                last = following.bookmark(reached.get(name, done[name].place)) or done[name]
                done[name] = last._replace(ended=True)
                followings.pop(name).close()
                del open_now[name]
    for following in followings.values():
        following.close()
    if isinstance(case.feed, CosmosFeed):
        case.known = case.known or done
    return pages


@dataclass(frozen=True)
class Change:
    """As far as this is about identity."""

    partition: str
    place: Place
    event_id: str
    mark: str


def changes(case: Case, pages: list[Page]) -> list[Change]:
    """By one decoder, whatever the order of the pages."""
    decoder = case.feed.decoder("json")
    return [
        Change(row["partition"], Place(row["cursor"], row["ordinal"]), row["event_id"], row["mark"])
        for page in pages
        for batch in decoder.decode(page)
        for row in batch.to_pylist()
    ]


@pytest.fixture(scope="module")
def everything(case: Case) -> list[Change]:
    """From where it began."""
    return changes(case, read(case, case.begun, case.count))


def lineages(case: Case) -> dict[str, Lineage]:
    return {each.partition: each for each in case.feed.partitions(case.known)}


@pytest.mark.slow
def test_what_began_leads_to_every_change_once(case: Case, everything: list[Change]) -> None:
    assert len(everything) == case.count
    assert len({(each.partition, each.place) for each in everything}) == case.count
    found = {each.partition for each in everything}
    parents = {parent for each in lineages(case).values() for parent in each.parents}
    # A range that was split cannot be read any more: its children have its changes.
    unread = parents if isinstance(case.feed, CosmosFeed) else set()
    assert found == set(lineages(case)) - unread


@pytest.mark.slow
def test_event_ids_are_unique_over_all_partitions(case: Case, everything: list[Change]) -> None:
    assert len({each.event_id for each in everything}) == case.count


def test_places_increase_in_each_partition(case: Case, everything: list[Change]) -> None:
    for name in lineages(case):
        found = [each.place for each in everything if each.partition == name]
        assert found == sorted(set(found))


def test_no_partition_begins_before_its_parents_ended(case: Case, everything: list[Change]) -> None:
    order = [each.partition for each in everything]
    last = {name: number for number, name in enumerate(order)}
    for each in lineages(case).values():
        if each.partition not in last:
            continue
        assert all(last.get(parent, -1) < order.index(each.partition) for parent in each.parents)


def test_a_beginning_has_a_bookmark_for_each_partition_without_parents(case: Case) -> None:
    # A range that has ended is not listed once its children are known.
    is_cosmos = isinstance(case.feed, CosmosFeed)
    listed = case.feed.partitions(case.begun if is_cosmos else case.known)
    roots = {each.partition for each in listed if not each.parents}
    assert {name for name, each in case.begun.items() if not each.ended} == roots
    for bookmark in case.begun.values():
        assert Bookmark.from_json(json.loads(json.dumps(bookmark.to_json()))) == bookmark


@pytest.mark.slow
def test_the_same_pages_in_another_order_decode_the_same(case: Case) -> None:
    pages = read(case, case.begun, case.count)
    shuffled = random.Random(1).sample(pages, len(pages))
    assert set(changes(case, shuffled)) == set(changes(case, pages))


@pytest.mark.slow
def test_each_partition_resumes_where_it_was_whatever_the_others_did(
    case: Case, everything: list[Change]
) -> None:
    for seed in range(5):
        chance = random.Random(seed)
        done: dict[PartitionId, Bookmark] = dict(case.begun)
        stored: set[tuple[str, Place]] = set()
        for each in lineages(case).values():
            ended = all(done.get(parent, Bookmark()).ended for parent in each.parents)
            if not ended:
                continue  # it may not be read yet
            mine = [change for change in everything if change.partition == each.partition]
            some = chance.choice([0, chance.randrange(len(mine)), len(mine)]) if mine else 0
            stored |= {(change.partition, change.place) for change in mine[:some]}
            has_child = any(each.partition in other.parents for other in lineages(case).values())
            if not mine and chance.random() < 0.5:
                done[each.partition] = done[each.partition]._replace(ended=True)
            if some:
                last = mine[some - 1]
                mark = json.loads(last.mark or "{}")
                done[each.partition] = Bookmark(
                    last.place, mark, ended=some == len(mine) and has_child
                )
        rest = changes(case, read(case, done, case.count - len(stored)))
        assert sorted((each.partition, each.place) for each in rest) == sorted(
            {(each.partition, each.place) for each in everything} - stored
        )
