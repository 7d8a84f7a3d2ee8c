"""A key range, read from the stand-in by the official SDK: splits, merges, refusals, and what a
replay gives again."""

import itertools
import random
import time
from dataclasses import replace
from typing import Any

import pytest

from penstock.feeds import Feed, Gap, HistoryLost
from penstock.feeds.cosmos import CosmosFeed
from penstock.feeds.cosmos.client import container_of
from penstock.feeds.cosmos.ranges import KeyRange
from penstock.model.errors import Malformed, SettingsError, Unavailable
from penstock.model.page import Page
from penstock.model.position import Bookmark, Bookmarks, PartitionId, Place
from penstock.reading.roster import openings
from penstock.wire.cosmos.decoder import key_of
from tests.cosmos.container import StoredContainer
from tests.cosmos.reading import feed_of, ids_of, only, read_pages, rows_of
from tests.cosmos.server import CosmosServer

_EVERY = "all_versions_and_deletes"


def put(orders: StoredContainer, *names: str, pk: str = "a", **given: Any) -> None:
    """One transaction."""
    orders.transaction([("upsert", {"id": name, "pk": pk, **given}) for name in names])


def names(feed: Any, pages: list[Page]) -> list[str]:
    return [row["document_id"] for row in rows_of(feed, pages)]


@pytest.mark.parametrize(
    ("updated", "rest"), [("first", ["second", "third", "first"]), ("second", ["third", "second"])]
)
def test_a_change_that_is_superseded_is_delivered_once_and_hides_no_other_of_its_transaction(
    server: CosmosServer, orders: StoredContainer, updated: str, rest: list[str]
) -> None:
    """Items of one LSN; the first is delivered, then a crash, and one is updated. Counting items
    inside the LSN would pass over the second one."""
    put(orders, "first", "second", "third")
    feed = feed_of(server)
    name, begun = only(feed.begin())
    following = feed.follow(name, begun)
    (page,) = read_pages(following, 3)
    stored = following.bookmark(page.first)
    assert stored is not None
    put(orders, updated, n=2)
    found = read_pages(feed.follow(name, stored), len(rest))
    assert names(feed, found) == [f'["a","{each}"]' for each in rest]


def test_pages_are_small_and_never_cut_a_transaction(
    server: CosmosServer, orders: StoredContainer
) -> None:
    for n in range(4):
        put(orders, *(f"{n}{i}" for i in range(5)))
    feed = feed_of(server, page_items=2)
    pages = read_pages(feed.follow(*only(feed.begin())), 20)
    assert [page.count for page in pages] == [5, 5, 5, 5]
    assert server.requests[-1]["x-ms-max-item-count"] == "2"


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_replay_inside_a_page_by_shorter_pages_doubles_nothing(
    server: CosmosServer, orders: StoredContainer, size: int
) -> None:
    for n in range(10):
        put(orders, f"i{n}")
    feed = feed_of(server)
    name, begun = only(feed.begin())
    following = feed.follow(name, begun)
    (page,) = read_pages(following, 10)
    rows = rows_of(feed, [page])
    stored = following.bookmark(Place(rows[6]["cursor"], rows[6]["ordinal"]))
    assert stored is not None
    shorter = feed_of(server, page_items=size)
    again = shorter.follow(name, stored)
    assert list(again.read(0.0)) == [], "a page that is done as a whole"
    kept = again.bookmark(stored.place)
    assert kept is not None
    for each in (again, shorter.follow(name, kept)):
        assert names(shorter, read_pages(each, 3)) == [f'["a","i{n}"]' for n in range(7, 10)]
        assert not each.drained


@pytest.mark.slow
def test_children_of_a_split_begin_inside_the_page_that_their_parent_was_in(
    server: CosmosServer, orders: StoredContainer
) -> None:
    for n in range(20):
        put(orders, f"i{n}", pk=f"p{n}")
    feed = feed_of(server, page_items=20)
    name, begun = only(feed.begin())
    following = feed.follow(name, begun)
    (page,) = read_pages(following, 20)
    rows = rows_of(feed, [page])
    seventh = Place(rows[6]["cursor"], rows[6]["ordinal"])
    stored = following.bookmark(seventh)
    assert stored is not None
    orders.split()
    again = feed.follow(name, stored)
    assert read_pages(again, 1) == []
    assert again.drained
    ended = again.bookmark(seventh)
    assert ended is not None
    known = {name: ended._replace(ended=True)}
    children = [each for each in feed.partitions(known) if each.parents]
    assert len(children) == 2
    found = []
    for child in children:
        assert child.first is not None
        # Through JSON, as a store has it.
        first = Bookmark.from_json(child.first.to_json())
        reader = feed.follow(child.partition, first)
        pages: list[Page] = []
        while not pages or not reader.status()["details"]["tip_reached"]:
            pages += reader.read(0.05)
        found += ids_of(feed, pages)
    assert sorted(found) == sorted(row["document_id"] for row in rows[7:])


@pytest.mark.slow
def test_a_part_of_a_merged_partition_is_clipped_when_that_splits_elsewhere(
    server: CosmosServer, orders: StoredContainer
) -> None:
    """The SDK reads the children of a part unclipped: 27 items for 20, and the neighbour's too."""
    left, right = orders.split("20")
    feed = feed_of(server)
    begun = dict(feed.begin())
    orders.merge(left, right)
    orders.split("10")
    for n in range(40):
        put(orders, f"i{n}", pk=f"p{n}")
    everything = read_all(feed, begun, 40)
    assert sorted(everything) == sorted(f'["p{n}","i{n}"]' for n in range(40))


def read_all(feed: Feed, begun: Bookmarks, count: int, act: Any = None) -> list[str]:
    """Through the contract, as the roster does: document ids in the order they came."""
    known, found = dict(begun), list[str]()
    open_now: dict[PartitionId, Any] = {}
    deadline = time.monotonic() + 20
    while len(found) < count:
        assert time.monotonic() < deadline, sorted(found)
        for name, bookmark in openings(feed.partitions(known), known, open_now).ready.items():
            known[name] = bookmark
            open_now[name] = feed.follow(name, bookmark)
        if act is not None:
            act()
        for name, following in list(open_now.items()):
            for page in following.read(0.0):
                found += ids_of(feed, [page])  # type: ignore[arg-type]
                known[name] = following.bookmark(page.last)
            if following.drained:
                last = following.bookmark(known[name].place) or known[name]
                known[name] = last._replace(ended=True)
                del open_now[name]
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.thorough) for n in (1, 2, 3))]
)
@pytest.mark.parametrize("mode", ["latest_version", _EVERY])
def test_nothing_is_lost_or_doubled_while_ranges_split_and_merge(
    server: CosmosServer, orders: StoredContainer, mode: str, seed: int
) -> None:
    chance = random.Random(seed)
    numbers = iter(range(120))

    def act() -> None:
        for number in itertools.islice(numbers, chance.randrange(12)):
            put(orders, f"i{number}", pk=f"p{number}")
        if chance.random() < 0.3:
            orders.split(range_id=chance.choice(orders.ranges).id)
        elif len(orders.ranges) > 1 and chance.random() < 0.3:
            at = chance.randrange(len(orders.ranges) - 1)
            orders.merge(orders.ranges[at], orders.ranges[at + 1])

    feed = feed_of(server, mode=mode, page_items=5)
    found = read_all(feed, feed.begin("now"), 120, act)
    assert sorted(found) == sorted(f'["p{n}","i{n}"]' for n in range(120))


def test_too_many_requests_wait_as_long_as_the_service_says_for_the_same_page(
    server: CosmosServer, orders: StoredContainer
) -> None:
    put(orders, "one")
    feed = feed_of(server)
    following = feed.follow(*only(feed.begin()))
    server.fail("feed", 429, headers={"x-ms-retry-after-ms": "300"})
    began = time.monotonic()
    assert list(following.read(0.0)) == []
    assert following.status()["throttled"] is True
    asked = server.counts["feed"]
    pages = read_pages(following, 1)
    assert time.monotonic() - began >= 0.3
    assert server.counts["feed"] == asked + 1
    assert ids_of(feed, pages) == ['["a","one"]']
    assert following.status()["throttled"] is False
    assert server.requests[-1].get("if-none-match") is None, "the same page"


@pytest.mark.parametrize("why", ["throttled", "too large", "gone"])
def test_what_is_not_idle_says_when_its_next_read_is_worth_it(
    server: CosmosServer, orders: StoredContainer, why: str
) -> None:
    for n in range(4):
        put(orders, f"i{n}")
    feed = feed_of(server, page_items=2, poll=100)
    name, begun = only(feed.begin())
    following = feed.follow(name, begun)
    if why == "throttled":
        server.fail("feed", 429, headers={"x-ms-retry-after-ms": "30000"})
    elif why == "too large":
        server.fail("feed", 413)
    elif why == "gone":
        server.fail("feed", 410, 1007)
    assert following.read(0.0) == []
    assert following.next_in is not None
    assert (10 < following.next_in <= 30) if why == "throttled" else following.next_in < 5
    server.heal()
    if why == "too large":
        while following.read(0.0) or not following.status()["details"]["tip_reached"]:
            pass
        assert following.next_in is None, "it is idle"


def test_too_many_requests_without_a_wait_are_not_repeated_at_once(
    server: CosmosServer, orders: StoredContainer
) -> None:
    put(orders, "one")
    feed = feed_of(server)
    following = feed.follow(*only(feed.begin()))
    server.fail("feed", 429, headers={"x-ms-retry-after-ms": "0"}, times=3)
    began = time.monotonic()
    assert ids_of(feed, read_pages(following, 1)) == ['["a","one"]']
    assert time.monotonic() - began >= 0.3


@pytest.mark.slow
def test_a_page_that_is_too_large_is_halved_and_the_size_that_works_is_kept_and_doubled_slowly(
    server: CosmosServer, orders: StoredContainer
) -> None:
    """.NET's ExceptionClassifier knows it by this message of a 400."""
    for n in range(60):
        put(orders, f"i{n}")
    feed = feed_of(server, page_items=4)
    following = feed.follow(*only(feed.begin()))
    server.fail("feed", 400, message="... Reduce page size and try again.", times=2)
    asked = server.counts["feed"]
    pages = read_pages(following, 60)
    assert [page.count for page in pages] == [*[1] * 16, *[2] * 16, 4, 4, 4]
    assert server.counts["feed"] == asked + 2 + len(pages), "two were refused"
    server.fail("feed", 400, message="Reduce page size and try again.", times=9)
    put(orders, "large")
    with pytest.raises(SettingsError, match="Reduce page size"):
        read_pages(following, 1)


@pytest.mark.slow
def test_a_range_that_is_gone_without_children_is_waited_for_and_not_asked_a_thousand_times(
    server: CosmosServer, orders: StoredContainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The SDK by itself repeats 410/1002 without a pause, some 940 times."""
    put(orders, "one")
    feed = feed_of(server)
    following = feed.follow(*only(feed.begin()))
    server.fail("feed", 410, 1002, times=3)
    assert ids_of(feed, read_pages(following, 1)) == ['["a","one"]']
    assert server.counts["feed"] == 4
    server.fail("feed", 410, 1007, times=1000)
    monkeypatch.setattr("penstock.feeds.cosmos.following.GONE", 0.3)
    with pytest.raises(Unavailable, match="no children"):
        read_pages(following, 1)
    assert server.counts["feed"] < 20
    assert not following.drained


@pytest.mark.parametrize("sub_status", [0, 1000, 1002, 1007, 1008])
def test_a_range_that_is_gone_by_a_split_ends(
    server: CosmosServer, orders: StoredContainer, sub_status: int
) -> None:
    feed = feed_of(server)
    name, begun = only(feed.begin())
    following = feed.follow(name, begun)
    orders.split()
    server.fail("feed", 410, sub_status)
    assert read_pages(following, 1) == []
    assert following.drained


def test_a_container_that_is_gone_is_a_gap(server: CosmosServer, orders: StoredContainer) -> None:
    feed = feed_of(server, on_gap="continue")
    name, begun = only(feed.begin())
    following = feed.follow(name, begun)
    del server.databases["shop"]["orders"]
    with pytest.raises(HistoryLost) as raised:
        read_pages(following, 1)
    gap = raised.value.gap
    assert (gap.cause, gap.policy) == ("container_gone", "continue")
    # Also where another process finds it, and it is waited for after the gap.
    fresh = feed_of(server, on_gap="continue", page_items=7)  # a client of its own
    with pytest.raises(HistoryLost) as again:
        fresh.follow(name, begun)
    assert again.value.gap.cause == gap.cause
    for each in (fresh, feed):
        with pytest.raises(Unavailable):
            each.follow(name, begun, despite=[gap]).read(0.0)


def test_a_container_that_is_gone_by_the_list_of_ranges_is_the_gap(
    server: CosmosServer, orders: StoredContainer
) -> None:
    """A 410 makes the ranges be listed again: 404/1003 for a container that was deleted."""
    feed = feed_of(server)
    following = feed.follow(*only(feed.begin()))
    server.fail("feed", 410, 1002)
    del server.databases["shop"]["orders"]
    with pytest.raises(HistoryLost) as raised:
        read_pages(following, 1)
    assert raised.value.gap.cause == "container_gone"


@pytest.mark.parametrize("sub_status", [0, 1003, 1013])
@pytest.mark.parametrize("what", ["feed", "pkranges"])
def test_a_404_of_a_container_that_is_there_is_no_gap(
    server: CosmosServer, orders: StoredContainer, what: str, sub_status: int
) -> None:
    put(orders, "one")
    feed = feed_of(server)
    following = feed.follow(*only(feed.begin()))
    if what == "pkranges":
        server.fail("feed", 410, 1002)
    server.fail(what, 404, sub_status, message="not here")
    with pytest.raises(Unavailable):
        read_pages(following, 1)
    assert ids_of(feed, read_pages(following, 1)) == ['["a","one"]']


def test_another_container_of_the_same_name_is_never_read_by_an_old_continuation(
    server: CosmosServer, orders: StoredContainer
) -> None:
    """The SDK answers COLLECTION_RID_MISMATCH by reading the other one."""
    put(orders, "old")
    feed = feed_of(server, on_gap="continue")
    name, begun = only(feed.begin())
    following = feed.follow(name, begun)
    (page,) = read_pages(following, 1)
    put(server.container("shop", "orders"), "new", "newer")
    with pytest.raises(HistoryLost) as raised:
        read_pages(following, 1)
    gap = raised.value.gap
    assert (gap.cause, gap.policy) == ("container_replaced", "fail"), "LSNs begin again"
    assert "another `name`" in raised.value.hint
    stored = following.bookmark(page.last)
    assert stored is not None
    with pytest.raises(HistoryLost):
        feed.follow(name, stored, despite=[gap])


@pytest.mark.parametrize("read_first", [True, False], ids=["continuation", "beginning"])
def test_a_replaced_container_is_noticed_where_the_client_knows_the_new_one(
    server: CosmosServer, orders: StoredContainer, read_first: bool
) -> None:
    """The SDK renews its own properties of a container: azure-cosmos `container.py` (`read`) and
    `_container_recreate_retry_policy.py`."""
    put(orders, "old")
    feed = feed_of(server)
    following = feed.follow(*only(feed.begin()))
    if read_first:
        read_pages(following, 1)
    put(server.container("shop", "orders"), "new", "newer")
    container_of(feed.settings)._container.read()
    with pytest.raises(HistoryLost) as raised:
        read_pages(following, 2)
    assert raised.value.gap.cause == "container_replaced"


def test_a_listing_has_the_identity_of_the_container_that_it_lists(
    server: CosmosServer, orders: StoredContainer
) -> None:
    feed = feed_of(server)
    assert feed.partitions().history == orders.rid
    assert feed.partitions().history == orders.rid
    made = server.container("shop", "orders")
    assert feed.partitions().history == made.rid


def test_a_bookmark_of_another_range_is_refused(
    server: CosmosServer, orders: StoredContainer
) -> None:
    feed = feed_of(server)
    _, begun = only(feed.begin())
    with pytest.raises(Malformed, match="made by the range"):
        feed.follow(KeyRange("", "20").name, begun)


@pytest.mark.slow
def test_lsns_that_go_back_end_the_range_rather_than_lose_changes(
    server: CosmosServer, orders: StoredContainer
) -> None:
    """Nothing documents how a merged partition numbers what comes: places must not go back."""
    orders.ranges[0].lsn = 500
    put(orders, "one")
    put(orders, "two")
    feed = feed_of(server)
    name, begun = only(feed.begin())
    following = feed.follow(name, begun)
    (page,) = read_pages(following, 2)
    orders.items.clear()
    orders.ranges[0].lsn = 0
    put(orders, "three")
    server.databases["shop"]["orders"].feed = _answering(orders)  # type: ignore[method-assign]
    assert read_pages(following, 1) == []
    last = following.bookmark(page.last)
    assert last is not None
    children = feed.partitions({name: last._replace(ended=True)})
    assert [KeyRange.of(each.partition).min for each in children][1:] == ["", "7F8" + 29 * "0"]
    found: list[str] = []
    for n in range(4, 9):
        put(orders, f"item {n}", pk=f"p{n}")
    for child in list(children)[1:]:
        half = feed.follow(child.partition, child.first or Bookmark())
        deadline = time.monotonic() + 20
        while half.status()["details"]["tip_reached"] is False:
            assert time.monotonic() < deadline
            found += ids_of(feed, list(half.read(0.05)))
    assert sorted(found) == ['["a","three"]', *(f'["p{n}","item {n}"]' for n in range(4, 9))]


def _answering(orders: StoredContainer) -> Any:
    """The feed of a service that numbers anew: what comes after any continuation is LSN 1."""
    stock, answered = orders.feed, set[int]()

    def feed(place: Any, **given: Any) -> Any:
        after = given["after"] if given["after"] in answered else 0
        page = stock(place, **{**given, "after": after})
        answered.add(int(page.etag.strip('"')))
        return page

    return feed


def test_every_version_and_delete_has_its_images(
    server: CosmosServer, orders: StoredContainer
) -> None:
    """Shapes: "Change feed modes in Azure Cosmos DB", .NET's ChangeFeedMetadata."""
    feed = feed_of(server, mode=_EVERY)
    following = feed.follow(*only(feed.begin()))
    orders.put({"id": "i", "pk": "a", "n": 1}, how="create")
    orders.put({"id": "i", "pk": "a", "n": 2}, how="replace")
    orders.put({"id": "i", "pk": "a"}, how="delete")
    orders.put({"id": "j", "pk": "a"})
    orders.put({"id": "j", "pk": "a"}, how="delete", ttl=True)
    rows = rows_of(feed, read_pages(following, 5))
    assert [(row["operation"], row["before"], row["after"]) for row in rows] == [
        ("INSERT", None, '{"id":"i","pk":"a","n":1}'),
        ("REPLACE", '{"id":"i","pk":"a","n":1}', '{"id":"i","pk":"a","n":2}'),
        ("DELETE", '{"id":"i","pk":"a","n":2}', None),
        ("INSERT", None, '{"id":"j","pk":"a"}'),
        ("DELETE", '{"id":"j","pk":"a"}', None),
    ]
    assert {row["document_id"] for row in rows} == {'["a","i"]', '["a","j"]'}
    assert [row["delta"] for row in rows] == [None] * 4 + ['{"expired":true}']
    assert all(row["committed_at"] for row in rows)


def test_a_delete_without_its_previous_image_has_its_key(
    server: CosmosServer, orders: StoredContainer
) -> None:
    orders.previous_images = False
    feed = feed_of(server, mode=_EVERY)
    following = feed.follow(*only(feed.begin()))
    orders.put({"id": "i", "pk": "a"})
    orders.put({"id": "i", "pk": "a"}, how="delete")
    _, row = rows_of(feed, read_pages(following, 2))
    assert (row["operation"], row["key"]) == ("DELETE", '{"pk":"a","id":"i"}')
    assert row["document_id"] == '["a","i"]'
    assert (row["before"], row["after"]) == (None, None)


def test_a_delete_that_lacks_a_value_of_its_key_is_malformed_and_one_that_is_null_is_not() -> None:
    paths = ["/pk", "/a/b"]
    document = {"metadata": {"id": "x", "partitionKey": {"pk": None, "a.b": 1}}, "current": {}}
    assert key_of(document, paths, every=True) == {"pk": None, "a.b": 1, "id": "x"}
    del document["metadata"]["partitionKey"]["a.b"]
    with pytest.raises(Malformed, match=r"no value of the partition key a\.b"):
        key_of(document, paths, every=True)


def test_an_empty_answer_before_the_newest_lsn_is_not_the_tip(
    server: CosmosServer, orders: StoredContainer
) -> None:
    """As .NET reads on after an empty 200: on a part of a merged partition."""
    for name in "abcdef":
        put(orders, name)
    feed = feed_of(server, poll=100)
    name, begun = only(feed.begin())
    following = feed.follow(name, begun)
    stock, steps = orders.feed, iter(['"1"', '"1"'])

    def slowly(place: Any, **given: Any) -> Any:
        page = stock(place, **given)
        step = next(steps, None)
        return page if step is None else replace(page, documents=[], etag=step, lsn=9)

    orders.feed = slowly  # type: ignore[method-assign]
    assert feed.remaining(name, begun) == 1
    assert following.read(0.0) == []
    status = following.status()
    assert (status["details"]["tip_reached"], following.next_in) == (False, 0.0)
    assert status["lag_seconds"] is None
    assert len(ids_of(feed, list(following.read(0.0)))) == 5, "after LSN 1"


@pytest.mark.slow
def test_a_delete_stays_before_the_create_of_the_same_id_in_one_transaction(
    server: CosmosServer, orders: StoredContainer
) -> None:
    for previous in (True, False):
        orders.previous_images = previous
        feed = feed_of(server, mode=_EVERY)
        for n in range(8):
            orders.put({"id": "i", "pk": "a", "n": n})
            following = feed.follow(*only(feed.begin()))
            again = {"id": "i", "pk": "a", "n": n + 1}
            orders.transaction([("delete", again), ("upsert", again), ("replace", again)])
            rows = rows_of(feed, read_pages(following, 3))
            assert [row["operation"] for row in rows] == ["DELETE", "INSERT", "REPLACE"]
            orders.put(again, how="delete")


def fallen_behind(feed: CosmosFeed, orders: StoredContainer) -> tuple[PartitionId, Bookmark, Gap]:
    """A change after the beginning is older than the retention."""
    name, begun = only(feed.begin())
    put(orders, "one")
    orders.retained = 1
    with pytest.raises(HistoryLost) as raised:
        feed.follow(name, begun).read(0.0)
    return name, begun, raised.value.gap


def test_what_begins_anew_after_a_gap_needs_a_continuation_of_its_range(
    server: CosmosServer, orders: StoredContainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = feed_of(server, mode=_EVERY, on_gap="continue")
    name, begun, gap = fallen_behind(feed, orders)
    stock = orders.feed
    monkeypatch.setattr(orders, "feed", lambda *a, **k: replace(stock(*a, **k), etag=""))
    with pytest.raises(Unavailable, match="no continuation"):
        feed.follow(name, begun, despite=[gap])


@pytest.mark.slow
def test_a_range_that_is_split_while_it_has_a_gap_ends_and_each_child_has_the_gap_too(
    server: CosmosServer, orders: StoredContainer
) -> None:
    feed = feed_of(server, mode=_EVERY, on_gap="continue")
    name, begun, gap = fallen_behind(feed, orders)
    orders.split()
    put(orders, "two")
    feed.partitions()
    parent = feed.follow(name, begun, despite=[gap])
    assert parent.drained
    assert parent.read(0.0) == []
    ended = parent.bookmark(begun.place)
    assert ended is not None
    known: Bookmarks = {name: ended._replace(ended=True)}
    ready = openings(feed.partitions(known), known, ()).ready
    assert len(ready) == 2
    found = []
    for child, first in ready.items():
        with pytest.raises(HistoryLost) as lost:
            feed.follow(child, first).read(0.0)
        assert lost.value.gap.cause == "retention"
        following = feed.follow(child, first, despite=[lost.value.gap])
        assert following.read(0.0) == []
        found.append(following)
    put(orders, "three")
    assert [row for each in found for row in names(feed, list(each.read(2.0)))] == ['["a","three"]']


@pytest.mark.parametrize("etag", ["", '"1"'])
def test_documents_without_a_new_continuation_are_not_delivered(
    server: CosmosServer, orders: StoredContainer, monkeypatch: pytest.MonkeyPatch, etag: str
) -> None:
    put(orders, "one")
    feed = feed_of(server)
    following = feed.follow(*only(feed.begin()))
    read_pages(following, 1)
    put(orders, "two")
    stock = orders.feed
    monkeypatch.setattr(orders, "feed", lambda *a, **k: replace(stock(*a, **k), etag=etag))
    with pytest.raises(Unavailable, match="no new continuation"):
        following.read(0.0)
    monkeypatch.undo()
    assert ids_of(feed, read_pages(following, 1)) == ['["a","two"]']


@pytest.mark.slow
def test_a_400_to_any_token_is_no_gap(server: CosmosServer, orders: StoredContainer) -> None:
    """Where the feature is off in the account, "now" is refused as well."""
    feed = feed_of(server, mode=_EVERY)
    following = feed.follow(*only(feed.begin()))
    server.fail("feed", 400, message="Full Fidelity is not enabled", times=2)
    with pytest.raises(SettingsError, match="Full Fidelity"):
        following.read(0.0)
    put(orders, "one")
    assert len(read_pages(following, 1)) == 1
    server.fail("feed", 400, message="no")
    server.fail("feed", 503, message="busy", times=99)
    with pytest.raises(Unavailable):
        following.read(0.0)


@pytest.mark.slow
def test_a_service_that_is_silent_is_unavailable(
    server: CosmosServer, orders: StoredContainer
) -> None:
    name, begun = only(feed_of(server).begin())
    put(orders, "one")
    server.slow = 2.0
    with pytest.raises(Unavailable):
        feed_of(server, timeout=0.5).follow(name, begun).read(0.0)


def test_the_lag_and_what_remains_are_transactions(
    server: CosmosServer, orders: StoredContainer
) -> None:
    """As .NET's estimator counts: S - (first LSN - 1), 0 where nothing comes."""
    feed = feed_of(server)
    name, begun = only(feed.begin())
    assert feed.remaining(name, begun) == 0
    for n in range(5):
        put(orders, f"i{n}", f"j{n}")
    assert feed.remaining(name, begun) == 5
    following = feed.follow(name, begun)
    (page,) = read_pages(following, 10)
    bookmark = following.bookmark(page.last)
    assert bookmark is not None
    assert feed.remaining(name, bookmark) == 0
    following.acknowledge(bookmark)
    following.read(0.0)
    status = following.status()
    assert (status["lag"], status["lag_seconds"], status["lag_unit"]) == (0, 0.0, "changes")
    put(orders, "k")
    read_pages(following, 1)
    assert following.status()["lag"] == 1
